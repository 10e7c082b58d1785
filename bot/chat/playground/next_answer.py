"""What would happen to a message that is still being written."""

from bot.chat.receipt import Receipt
from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class ConsideredCharacter:
    """A character of the channel, and why it would answer or not."""

    preset: str
    name: str
    is_chosen: bool
    score: float
    reasons: tuple[str, ...]


@frozen_dataclass
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
