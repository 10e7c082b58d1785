"""Stored answers with their receipts, and filters to search them."""

from collections.abc import Sequence

from bot.chat.receipt import Receipt
from bot.value_class import value_class


@value_class
class StoredAnswer:
    """A sent answer with its number, conversation and time."""

    number: int
    conversation: str
    at: float
    """In Unix seconds."""
    receipt: Receipt


@value_class
class AnswerSearch:
    """Filters for stored answers; the default matches all answers."""

    conversation: str = ""
    preset: str = ""
    person: str = ""
    model: str = ""
    """The name of the model or of its provider."""
    min_cost: int | None = None
    """In millionths of a US dollar."""
    min_seconds: float | None = None
    """Minimum time from the arrival of the message to the end of the answer."""
    cut_off: bool = False
    """Only answers that were cut off."""
    left_out: bool = False
    """Only answers whose prompt had to leave something out."""
    text: str = ""
    """Text in the answer or the answered message, ignoring case."""
    since: float | None = None
    until: float | None = None
    """The end of the period that starts at `since`; both are in Unix seconds."""
    sort: str = ""
    """Which answers come first, see `SORT_ORDERS` in storage/reports.py; empty: the newest."""
    before: int | None = None
    """Only answers with a number below this one; ignored in other orders."""


@value_class
class FoundAnswers:
    """A page of answers, newest first."""

    answers: Sequence[StoredAnswer]
    next_page_cursor: int | None
    """The value of `AnswerSearch.before` for the next page; None: this is the last page."""
