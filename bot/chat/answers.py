"""Stored answers as people look for them, and how one is asked for again."""

from collections.abc import Sequence

from bot.chat.prompt import FinishReason, Prompt
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


@value_class
class ReplayChanges:
    """What is different from the stored request; nothing by default."""

    preset: str = ""
    """Whose model, parameters and template are used; empty: as they were."""
    system: str | None = None
    """The text that the system message has instead; None: as it was."""
    draft: str = ""
    """The preset whose draft, or published version if it has none, the prompt is composed from
    anew, and whose model answers; the others do not count then. Empty: the stored prompt is sent.
    """


@value_class
class ReplayedAnswer:
    """Another answer to the prompt of a stored one."""

    text: str
    reason: FinishReason | None
    """None: it was interrupted."""
    provider: str
    model: str
    """The model's own name."""
    prompt_tokens: int
    output_tokens: int
    first_word_seconds: float | None
    seconds: float
    cost: int | None
    """In millionths of a US dollar; None: the price is not known."""
    prompt: Prompt
    """What was sent."""
