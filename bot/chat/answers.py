"""Stored answers with their receipts, and searching them."""

from collections.abc import Sequence

from bot.chat.receipt import Receipt
from bot.value_class import value_class


@value_class
class StoredAnswer:
    """A given answer, with its time and place."""

    number: int
    conversation: str
    at: float
    """In Unix seconds."""
    receipt: Receipt


@value_class
class AnswerSearch:
    """Filters for answers; without any, all answers match."""

    conversation: str = ""
    preset: str = ""
    person: str = ""
    model: str = ""
    """The model's own name, or that of its provider."""
    min_cost: int | None = None
    """In millionths of a US dollar."""
    min_seconds: float | None = None
    """From the receipt of the message to the end of the answer."""
    cut_off: bool = False
    """Only those that did not end by themselves."""
    left_out: bool = False
    """Only those with something left out of the prompt."""
    text: str = ""
    """In the answer or the newest message, ignoring case."""
    before: int | None = None
    """Only answers with a smaller number."""


@value_class
class FoundAnswers:
    """A page of answers, newest first."""

    answers: Sequence[StoredAnswer]
    next_before: int | None
    """The number before which the next page begins; None: this is the last page."""
