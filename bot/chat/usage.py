"""What answers cost, and how much a person, a channel, a server or a preset may spend."""

from dataclasses import dataclass
from enum import StrEnum

from bot.frozen_dataclass import frozen_dataclass

MICROS = 1_000_000
"""Money is counted in whole millionths of a US dollar, so that sums are exact."""


@frozen_dataclass
class AnswerCharge:
    """What one answer cost, and whom it is counted for; it outlives the text of the answer."""

    person: str | None = None
    server: str | None = None
    """None: a private chat, or a group without channels."""
    model: str = ""
    """The model's own name."""
    cost: int | None = None
    """In millionths of a US dollar; None: the model's price is not known."""


@dataclass(slots=True)
class SpentAmount:
    """What something has cost, in millionths of a US dollar; noted once that is known."""

    micros: int = 0


class Period(StrEnum):
    DAY = "day"
    MONTH = "month"


class BudgetKind(StrEnum):
    """Whose spending a budget limits."""

    PERSON = "person"
    CHANNEL = "channel"
    SERVER = "server"
    PRESET = "preset"


@frozen_dataclass
class BudgetCap:
    """The most that may be spent for one thing in one day or month."""

    kind: BudgetKind
    period: Period
    owner: str
    """Whose: an id of a person, a channel or a server, or the name of a preset."""
    begins: str
    """The day or the month, such as "2026-11-22" or "2026-11", in UTC."""
    limit: int
    """In millionths of a US dollar."""

    @property
    def key(self) -> str:
        return f"{self.begins} {self.kind}:{self.owner}"


@frozen_dataclass
class UsageTotal:
    """The sum of some answers."""

    answers: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: int
    """Of the answers whose cost is known, in millionths of a US dollar."""
    unpriced: int
    """How many answers have an unknown cost."""


@frozen_dataclass
class UsageRow:
    """The answers of one day that have everything but their number in common."""

    day: str
    person: str
    conversation: str
    server: str
    preset: str
    provider: str
    model: str
    total: UsageTotal


def format_cost(micros: int) -> str:
    """Write an amount in US dollars, small ones with more digits."""
    digits = 2 if micros >= MICROS or micros % (MICROS // 100) == 0 else 4
    return f"${micros / MICROS:.{digits}f}"
