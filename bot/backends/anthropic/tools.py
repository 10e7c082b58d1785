"""Tools in the form of the Messages API: offered, called in blocks, answered in blocks."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bot.chat.prompt import Prompt
from bot.chat.tool import ToolCall, ToolExchange

THINKING_BLOCKS = "thinking_blocks"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def tool_fields(prompt: Prompt) -> dict[str, Any]:
    """Return the fields of a request that offer tools; none where there are none.

    A request with calls in it has to describe what was called, also where nothing more may be.
    """
    if prompt.tools:
        offered = [
            {"name": one.name, "description": one.description, "input_schema": one.parameters}
            for one in prompt.tools
        ]
        return {"tools": offered}
    called = [_name(call) for exchange in prompt.tool_exchanges for call in exchange.calls]
    if not called:
        return {}
    described = [
        {"name": name, "input_schema": {"type": "object"}} for name in dict.fromkeys(called)
    ]
    return {"tools": described, "tool_choice": {"type": "none"}}


def exchange_messages(prompt: Prompt) -> Iterator[dict[str, Any]]:
    """Yield the messages with what was called already, and with the results."""
    for number, exchange in enumerate(prompt.tool_exchanges):
        ids = [
            f"{number}_{at}_{_NOT_IN_NAMES.sub('_', one.id)}"
            for at, one in enumerate(exchange.calls)
        ]
        text = [{"type": "text", "text": exchange.text}] if exchange.text.strip() else []
        calls = [
            {"type": "tool_use", "id": each, "name": _name(call), "input": _input(call)}
            for each, call in zip(ids, exchange.calls, strict=True)
        ]
        yield {"role": "assistant", "content": [*thinking_blocks(exchange), *text, *calls]}
        yield {"role": "user", "content": list(_results(ids, exchange))}


def thinking_blocks(exchange: ToolExchange) -> list[dict[str, Any]]:
    """Return the reasoning that came with the calls, without what was not signed."""
    attached: Mapping[str, Any] = exchange.attached
    blocks = attached.get(THINKING_BLOCKS, ())
    return [block for block in blocks if block.get("signature") or block.get("data")]


def _results(ids: list[str], exchange: ToolExchange) -> Iterator[dict[str, Any]]:
    for each, result in zip(ids, exchange.results, strict=True):
        yield {"type": "tool_result", "tool_use_id": each, "content": result}


def _name(call: ToolCall) -> str:
    return _NOT_IN_NAMES.sub("_", call.name) or "unknown"


def _input(call: ToolCall) -> object:
    """Return the arguments as an object, which the API demands whatever the model wrote."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
