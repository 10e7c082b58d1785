"""Receipts: an answer's exact prompt, what was left out of it, and its cost."""

from dataclasses import field

from bot.chat.prompt import FinishReason, Prompt, ToolRecord, Usage
from bot.chat.usage import AnswerCharge
from bot.value_class import value_class


@value_class
class PromptSpan:
    """Where a section is in a prompt: whole messages, or a range of characters in one message."""

    section: str
    """One of "system", "persona", "lore", "stories"; "pinned"; "summary"; "history"; within the
    newest message "people", "thread", "observed", "quote", "file", "memory", "plugin",
    "newest"; and "post_history"."""
    message: int
    """The index of the section's first message in the prompt."""
    messages: int = 1
    chars: int | None = None
    """The number of characters, counted from the end of the previous span; None: all the rest."""
    name: str = ""
    """The name of the story or lorebook entry; for a memory, its source and recall reason."""
    score: float | None = None
    memory: int = 0
    """The id of the memory; 0: not a memory."""


@value_class
class DroppedItem:
    """Content that was left out of the prompt, and why."""

    section: str
    name: str
    why: str
    count: int = 1
    tokens: int | None = None
    """An estimate; None: not estimated."""
    score: float | None = None
    was_wanted: bool = True
    """False for lorebook entries whose conditions were not met."""


@value_class
class Timings:
    """The durations of an answer's steps, by this machine's clock."""

    queued_seconds: float
    """From the arrival of the message to the model request, including composing the prompt."""
    first_word_seconds: float | None
    """From the model request to the first delta."""
    seconds: float
    """From the model request to the end of the answer."""
    composed_seconds: float = 0.0
    """The time to load, compose and count the prompt."""
    edits: tuple[float, ...] = ()
    """From the arrival of the message to each time the unfinished answer was shown: first the new
    message, then its edits."""
    received_at: float | None = None
    """When the message was written, in Unix seconds."""


@value_class
class Receipt:
    """Everything that an answer was generated from; enough to repeat the request."""

    preset: str
    preset_version: int | None
    provider: str
    prompt: Prompt
    layout: tuple[PromptSpan, ...]
    dropped: tuple[DroppedItem, ...]
    tokens: int
    """The prompt's tokens, counted before the request."""
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
    """The scopes whose settings apply in its channel, narrowest first."""
    check: str = ""
    """Why the answer was withheld or could not be checked, in English; empty: no problem."""
    is_withheld: bool = False
    """Whether a check rejected the answer, so that a stock sentence replaces it."""

    @property
    def omitted_count(self) -> int:
        """How many wanted items were left out of the prompt."""
        return sum(one.count for one in self.dropped if one.was_wanted)


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
    """First the characters that would answer, in order, then the others."""
    is_command: bool = False
    prompt: Receipt | None = None
    """A receipt with the prompt but no answer; None: no character would answer."""
    max_answer_tokens: int | None = None
    problem: str | None = None
