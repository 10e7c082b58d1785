"""The usage of answers as a table for spreadsheets."""

import csv
import io
from collections.abc import Sequence

from bot.chat.usage import MICROS, UsageRow

_COLUMNS = (
    *("day", "person", "channel", "server", "preset", "provider", "model", "answers"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "cost_usd", "answers_without_cost"),
)
_FORMULA_STARTS = (*"=+-@", *"＝＋－＠")  # as OWASP lists them


def format_usage_table(rows: Sequence[UsageRow]) -> str:
    """Return CSV with a line of names and a line for each row."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_cells(row) for row in rows)
    return buffer.getvalue()


def _cells(row: UsageRow) -> list[object]:
    total = row.total
    is_known = total.unpriced < total.answers
    names = (row.person, row.conversation, row.server, row.preset, row.provider, row.model)
    return [
        row.day,
        *map(_without_formula, names),
        total.answers,
        total.prompt_tokens,
        total.cached_tokens,
        total.output_tokens,
        f"{total.cost / MICROS:.6f}" if is_known else "",
        total.unpriced,
    ]


def _without_formula(text: str) -> str:
    """Keep spreadsheets from running a name that begins like a formula, or holds a row."""
    text = " ".join(text.replace("\0", " ").split())
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
