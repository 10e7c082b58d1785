"""What a tool is: a specification for the model, and a function of its arguments."""

from collections.abc import Awaitable, Callable, Mapping

from bot.chat.tool import ToolSpec
from bot.errors import TroupeError
from bot.frozen_dataclass import frozen_dataclass

MAX_TEXT_CHARS = 200


class ToolFailed(TroupeError):
    """The call cannot be answered; the text tells the model why."""


@frozen_dataclass
class Tool:
    """A tool of one answer.

    `run` is given the arguments by name, whatever the model made of them, and returns a text. It
    may be repeated when an answer is made again; it raises `ToolFailed`.
    """

    spec: ToolSpec
    run: Callable[[Mapping[str, object]], Awaitable[str]]
    seconds: float = 5.0
    """How long a call may take."""


def text_parameter(name: str, description: str, *, is_required: bool = True) -> dict[str, object]:
    """Return the JSON schema of an object with one text."""
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}},
        "required": [name] if is_required else [],
        "additionalProperties": False,
    }


def text_argument(arguments: Mapping[str, object], name: str) -> str:
    """Return a text among the arguments, empty if it is missing.

    Raises:
        ToolFailed: it is no text, or too long.
    """
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise ToolFailed(f"{name} must be a text")
    if len(value) > MAX_TEXT_CHARS:
        raise ToolFailed(f"{name} must have at most {MAX_TEXT_CHARS} characters")
    return value.strip()
