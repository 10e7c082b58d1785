"""Tools in the form of OpenAI's chat completions: offered, called in pieces, answered."""

from collections.abc import Iterator

from bot.chat.prompt import Prompt
from bot.chat.tool import ToolCall, ToolSpec

MAX_CALLS = 8
MAX_NAME_CHARS = 64
MAX_ARGUMENT_CHARS = 16 * 1024


def spec_to_wire(spec: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "function": {
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
        },
    }


def exchanges_to_wire(prompt: Prompt) -> Iterator[dict[str, object]]:
    """Yield the messages with what was called already, and with the results."""
    for exchange in prompt.tool_exchanges:
        yield {
            "role": "assistant",
            "content": exchange.text or None,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments or "{}"},
                }
                for call in exchange.calls
            ],
        }
        for call, result in zip(exchange.calls, exchange.results, strict=True):
            yield {"role": "tool", "tool_call_id": call.id, "content": result}


class ToolCallParser:
    """Puts the calls of a response together from their deltas, which may be cut anywhere.

    What is no call is left out, and so is what is too much of one.
    """

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, str]] = {}

    def feed(self, deltas: object) -> None:
        """Add the `tool_calls` of a chunk, whatever a service made of them."""
        for position, delta in enumerate(deltas if isinstance(deltas, list) else ()):
            if not isinstance(delta, dict):
                continue
            index = delta.get("index")
            index = index if isinstance(index, int) else position
            if index not in self._parts and len(self._parts) >= MAX_CALLS:
                continue
            parts = self._parts.setdefault(index, {"id": "", "name": "", "arguments": ""})
            function = delta.get("function")
            given = {**function, "id": delta.get("id")} if isinstance(function, dict) else delta
            for key in parts:
                piece = given.get(key)
                if isinstance(piece, str) and len(parts[key]) < MAX_ARGUMENT_CHARS:
                    parts[key] += piece

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                parts["id"][:MAX_NAME_CHARS] or f"call_{index}",
                parts["name"][:MAX_NAME_CHARS],
                parts["arguments"][:MAX_ARGUMENT_CHARS],
            )
            for index, parts in sorted(self._parts.items())
            if parts["name"]
        )
