"""Stored answers that a model is asked for again, for somebody to compare."""

from bot.chat.prompt import FinishReason, Prompt
from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
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


@frozen_dataclass
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
