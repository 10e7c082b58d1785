"""Tools that a model may call during an answer: what is offered, what it calls, what came back."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from bot.value_class import value_class

ToolName: TypeAlias = Literal["time", "dice", "history", "stories"]
"""The tools that a preset may offer; none of them changes anything."""

UNKNOWN_TOOL = "unknown"
"""The name in a receipt of a call of a tool that was not offered."""


@value_class
class ToolSpec:
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of an object."""


@value_class
class ToolCall:
    """A call as the model wrote it: nothing of it can be trusted."""

    id: str
    name: str
    arguments: str
    """JSON, if the model wrote it well."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the provider, such as signatures; they go back with the call."""


@value_class
class ToolExchange:
    """The calls of one response, with their results: the model reads them in the next request."""

    text: str
    """What it wrote before them."""
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    """In the order of the calls."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """The provider's fields beside the calls, such as reasoning; they go back with the message."""


@value_class
class ToolRecord:
    """A call in a receipt."""

    name: str
    arguments: str
    result: str
    seconds: float
