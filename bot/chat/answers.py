"""Stored answers as people look for them, with what each was made of."""

from collections.abc import Sequence

from bot.chat.receipt import Receipt
from bot.value_class import value_class


@value_class
class StoredAnswer:
    """One answer that was given, and when and where."""

    number: int
    conversation: str
    at: float
    """In Unix seconds."""
    receipt: Receipt


@value_class
class AnswerSearch:
    """Which answers are wanted; what is empty is no condition."""

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
    """Only those for whose prompt something was left out."""
    text: str = ""
    """In the answer or the newest message, whatever the case of the letters."""
    before: int | None = None
    """Only answers with a smaller number."""


@value_class
class FoundAnswers:
    """A page of answers, newest first."""

    answers: Sequence[StoredAnswer]
    next_before: int | None
    """What to search before for the next page; None: everything was searched."""
