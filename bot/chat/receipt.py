"""Receipts: the exact input of an answer, what was left out, and its cost."""

from dataclasses import field

from bot.chat.prompt import FinishReason, Prompt, ToolRecord, Usage
from bot.chat.usage import AnswerCharge
from bot.value_class import value_class


@value_class
class PromptSpan:
    """A section's position in a prompt: whole messages, or a range of one."""

    section: str
    """One of "system", "persona", "lore", "stories"; "pinned"; "summary"; "history"; within the
    newest message "people", "thread", "observed", "quote", "file", "plugin", "newest"; and
    "post_history"."""
    message: int
    """The index of its first message."""
    messages: int = 1
    chars: int | None = None
    """How many characters of this one message, after those of earlier spans; None: all of it."""
    name: str = ""
    """Which story, which entry of a lorebook."""
    score: float | None = None


@value_class
class DroppedItem:
    """Content that did not fit into the prompt, and why."""

    section: str
    name: str
    why: str
    count: int = 1
    tokens: int | None = None
    """An estimate; None where it was not estimated."""
    score: float | None = None


@value_class
class Timings:
    """The times of an answer's steps, by this machine's clock."""

    queued_seconds: float
    """From the receipt of the message to the model request, the composing included."""
    first_word_seconds: float | None
    """From the model request to the first delta."""
    seconds: float
    """From the model request to the end of the answer."""
    composed_seconds: float = 0.0
    """Spent on loading, composing, and counting the prompt."""
    edits: tuple[float, ...] = ()
    """From the receipt of the message to each time that the growing answer was shown: the first is
    the message itself, the others are edits of it."""
    received_at: float | None = None
    """When the message was written, in Unix seconds."""


@value_class
class Receipt:
    """Everything that an answer was generated from, which is enough to repeat the request."""

    preset: str
    preset_version: int | None
    provider: str
    prompt: Prompt
    layout: tuple[PromptSpan, ...]
    dropped: tuple[DroppedItem, ...]
    tokens: int
    """Of the prompt, as counted before it was sent."""
    limit: int | None
    """The token budget of the prompt."""
    answer: str
    reason: FinishReason | None
    """None: the answer was interrupted."""
    usage: Usage
    timings: Timings
    thoughts: str = ""
    tool_calls: tuple[ToolRecord, ...] = ()
    charge: AnswerCharge = field(default_factory=AnswerCharge)
    scopes: tuple[str, ...] = ()
    """Where settings of its channel are looked up, the narrowest first."""
    check: str = ""
    """Why the answer was withheld, or shown unchecked, in English; empty: neither."""
    is_withheld: bool = False
    """Whether a check refused the answer, so a stock sentence was shown and kept instead."""


@value_class
class ConsideredCharacter:
    """A character of the channel, and why it would or would not answer."""

    preset: str
    name: str
    is_chosen: bool
    score: float
    reasons: tuple[str, ...]


@value_class
class NextAnswer:
    """The characters that would answer a message, and the first one's prompt."""

    characters: tuple[ConsideredCharacter, ...] = ()
    """Those who would answer come first, in their order."""
    is_command: bool = False
    prompt: Receipt | None = None
    """As the receipt of the answer would be, without the answer; None: nobody would answer."""
    max_answer_tokens: int | None = None
    problem: str | None = None
