"""What would happen to a message that is still being written."""

from dataclasses import dataclass

from bot.chat.receipt import Receipt


@dataclass(frozen=True, slots=True)
class ConsideredCharacter:
    """A character of the channel, and why it would answer or not."""

    preset: str
    name: str
    is_chosen: bool
    score: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NextAnswer:
    """Who would answer a message, and what the first of them would be asked with."""

    characters: tuple[ConsideredCharacter, ...] = ()
    """Those who would answer come first, in their order."""
    is_command: bool = False
    prompt: Receipt | None = None
    """As the receipt of the answer would be, without the answer; None: nobody would answer."""
    max_answer_tokens: int | None = None
    problem: str | None = None
    """Why no prompt can be composed."""
