"""The receipt of an answer: what exactly was sent for it, what was left out, and what it took."""

from dataclasses import dataclass

from bot.chat.prompt import FinishReason, Prompt, Usage


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Where a section stands in a prompt: whole messages, or a stretch of one."""

    # "system", "persona", "lore", "stories"; "pinned"; "summary"; "history"; and with the newest
    # message "people", "quote", "post_history", "newest"
    section: str
    message: int  # the first of them
    messages: int = 1
    chars: int | None = None  # of this one message, after what stands before in it; None: all
    name: str = ""  # which story, which entry of a lorebook
    score: float | None = None


@dataclass(frozen=True, slots=True)
class DroppedItem:
    """Something that did not fit in, and why."""

    section: str
    name: str
    why: str
    count: int = 1
    tokens: int | None = None  # by the estimate; None: not worth estimating
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """How long an answer took, by our own clock."""

    queued_seconds: float  # from the message to the question to the model
    first_word_seconds: float | None  # from there
    seconds: float  # from there to the end of the answer


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one answer was made of: enough to ask for it again."""

    preset: str
    preset_version: int | None
    provider: str
    prompt: Prompt
    layout: tuple[PromptSpan, ...]
    dropped: tuple[DroppedItem, ...]
    tokens: int  # of the prompt, as it was counted before
    limit: int | None  # that it had to keep to
    answer: str
    reason: FinishReason | None  # None: the answer was interrupted
    usage: Usage
    timings: Timings
    thoughts: str = ""  # of a model that thinks before it answers; no reader sees them
