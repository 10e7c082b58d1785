"""Costs of answers, budgets, and usage as CSV."""

import csv
import io
from collections.abc import Sequence
from enum import StrEnum

from bot.value_class import value_class

MICROS_PER_DOLLAR = 1_000_000
"""Millionths per US dollar; money is counted in these, so that sums are exact."""


@value_class
class AnswerCharge:
    """An answer's cost and who pays for it; kept longer than the answer's text."""

    person: str | None = None
    server: str | None = None
    """The server or group; None: a private chat."""
    model: str = ""
    """The model's own name."""
    cost: int | None = None
    """In millionths of a US dollar; None: the model's price is not known."""


class Period(StrEnum):
    DAY = "day"
    MONTH = "month"


class BudgetKind(StrEnum):
    """Whose spending a budget limits."""

    PERSON = "person"
    CHANNEL = "channel"
    SERVER = "server"
    PRESET = "preset"


@value_class
class BudgetCap:
    """The maximum spending of one budget in a day or month."""

    kind: BudgetKind
    period: Period
    owner: str
    """The id of the person, channel or server, or the name of the preset."""
    period_start: str
    """The day or the month, such as "2026-11-22" or "2026-11", in UTC."""
    limit: int

    @property
    def key(self) -> str:
        return f"{self.period_start} {self.kind}:{self.owner}"


@value_class
class UsageTotal:
    """Usage summed over several answers."""

    answers: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: int
    """The sum of the known costs, in millionths of a US dollar."""
    unpriced_answer_count: int
    """The number of answers whose cost is unknown."""


@value_class
class UsageRow:
    """Usage of the answers with the same day, person, channel, server, preset and model."""

    day: str
    person: str
    conversation: str
    server: str
    preset: str
    provider: str
    model: str
    total: UsageTotal


def format_cost(micros: int) -> str:
    """Format an amount in US dollars; small amounts get more digits."""
    if 0 < micros < MICROS_PER_DOLLAR // 10_000:
        return "<$0.0001"
    digits = 2 if micros >= MICROS_PER_DOLLAR or micros % (MICROS_PER_DOLLAR // 100) == 0 else 4
    return f"${micros / MICROS_PER_DOLLAR:.{digits}f}"


_CSV_COLUMNS = (
    *("day", "person", "channel", "server", "preset", "provider", "model", "answers"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "cost_usd", "answers_without_cost"),
)
_FORMULA_STARTS = (*"=+-@", *"＝＋－＠")  # as OWASP lists them


def format_usage_csv(rows: Sequence[UsageRow]) -> str:
    """Return CSV with a header and a line for each row."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    writer.writerows(_csv_row(row) for row in rows)
    return buffer.getvalue()


def _csv_row(row: UsageRow) -> list[object]:
    total = row.total
    is_cost_known = total.cost or total.unpriced_answer_count < total.answers
    names = (row.person, row.conversation, row.server, row.preset, row.provider, row.model)
    tokens = (total.prompt_tokens, total.cached_tokens, total.output_tokens)
    cost = f"{total.cost / MICROS_PER_DOLLAR:.6f}" if is_cost_known else ""
    counts = (total.answers, *tokens, cost, total.unpriced_answer_count)
    return [row.day, *map(_escape_formula, names), *counts]


def _escape_formula(text: str) -> str:
    """Escape a name so that a spreadsheet neither runs it as a formula nor splits it into rows."""
    text = " ".join(text.replace("\0", " ").split())
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
