"""Tools in the form of OpenAI's chat completions: offered, called in pieces, answered."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bot.chat.prompt import Prompt
from bot.chat.storable import make_json_storable, make_storable
from bot.chat.tool import ToolCall, ToolSpec

MAX_CALLS = 8
MAX_NAME_CHARS = 64
MAX_ARGUMENT_CHARS = 16 * 1024
_FUNCTION_FIELDS = frozenset({"name", "arguments"})
_CALL_FIELDS = frozenset({"index", "id", "type", "function", *_FUNCTION_FIELDS})


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
            **exchange.attached,
            "role": "assistant",
            "content": exchange.text or None,
            "tool_calls": [_call_to_wire(call) for call in exchange.calls],
        }
        for call, result in zip(exchange.calls, exchange.results, strict=True):
            yield {"role": "tool", "tool_call_id": call.id, "content": result}


def _call_to_wire(call: ToolCall) -> dict[str, object]:
    attached: Mapping[str, Any] = call.attached
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return {
        **attached,
        "id": call.id,
        "type": "function",
        "function": {**attached.get("function", {}), **function},
    }


class ToolCallParser:
    """Assembles the calls of a response from their deltas, which may be cut anywhere.

    What is no call is left out, and so is what is too much of one.
    """

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []

    def feed(self, deltas: object) -> None:
        """Add the `tool_calls` of a chunk, whatever a service made of them."""
        for position, delta in enumerate(deltas if isinstance(deltas, list) else ()):
            if isinstance(delta, dict):
                self._add(delta, position)

    def replace(self, calls: object) -> None:
        """Take the calls of a whole message instead of those that were assembled so far."""
        if isinstance(calls, list) and calls:
            self._calls.clear()
            self.feed(calls)

    def _add(self, delta: Mapping[str, Any], position: int) -> None:
        given = delta.get("function")
        function: Mapping[str, Any] = given if isinstance(given, dict) else delta
        index, identifier = _read_index(delta.get("index")), _read_id(delta.get("id"))
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        piece = function.get("arguments")
        piece = json.dumps(piece) if isinstance(piece, dict) else piece
        piece = piece if isinstance(piece, str) else ""
        call = self._find(index, identifier, name, piece, position)
        if call is None:
            call = _PartialCall(index)
            if len(self._calls) > MAX_CALLS:
                self._calls.pop()  # one beyond the limit collects what is dropped
            self._calls.append(call)
        call.id, call.name = call.id or identifier, name or call.name
        call.add_arguments(piece)
        call.attach({key: value for key, value in delta.items() if key not in _CALL_FIELDS})
        if function is not delta:
            more = {key: value for key, value in function.items() if key not in _FUNCTION_FIELDS}
            call.attach({"function": more} if more else {})

    def _find(
        self, index: int | None, identifier: str, name: str, piece: str, position: int
    ) -> "_PartialCall | None":
        """Return the call that a delta continues; None if it opens another one.

        Services reuse indexes, leave them out, and repeat ids and names: a call is known by its id,
        else by its index, else it is the last one. Only a delta with a name opens a call.
        """
        known = [one for one in self._calls if identifier and one.id == identifier]
        candidates = known or self._calls
        at_index = [one for one in candidates if index is None or one.index == index]
        if not name or known:
            at_index = at_index or candidates
        if not at_index:
            return None
        call = at_index[-1]
        if not name or not call.name:
            return call
        has_new_id = bool(identifier and call.id and not known)
        if has_new_id or (call.name != name and (not known or call.is_complete)):
            return None
        if known and (index is None or call.index in {index, None}):
            return call
        if index is not None and call.index == index:
            is_repeated = call.arguments == piece or not piece.lstrip().startswith("{")
            return call if is_repeated or not call.is_complete else None
        return None if call.is_complete or position else call

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        found: dict[str, ToolCall] = {}
        for number, one in enumerate(self._calls[:MAX_CALLS]):
            identifier = make_storable(one.id)[:MAX_NAME_CHARS] or f"call_{number}"
            if identifier in found:  # results are matched to calls by their ids
                identifier = f"{identifier[: MAX_NAME_CHARS - 2]}_{number}"
            if one.name:
                found[identifier] = ToolCall(
                    identifier,
                    make_storable(one.name)[:MAX_NAME_CHARS],
                    make_storable(one.arguments)[:MAX_ARGUMENT_CHARS],
                    make_json_storable(one.attached),
                )
        return tuple(found.values())


class _PartialCall:
    """A call whose deltas are still arriving."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.attached: dict[str, Any] = {}
        self._pieces: list[str] = []
        self._chars = 0

    def add_arguments(self, piece: str) -> None:
        if self._pieces and piece.startswith("{") and piece.startswith(self._pieces[0]):
            self._pieces.clear()  # a snapshot of everything so far
            self._chars = 0
        if piece and self._chars < MAX_ARGUMENT_CHARS:
            self._pieces.append(piece)
            self._chars += len(piece)

    def attach(self, fields: Mapping[str, Any]) -> None:
        self.attached |= {key: value for key, value in fields.items() if value is not None}

    @property
    def arguments(self) -> str:
        """The arguments as one object where possible.

        Some services send the whole once more at the end, or an empty object first: then the pieces
        together are no JSON, but the last ones are.
        """
        whole = "".join(self._pieces)
        if _is_object(whole):
            return whole
        begins = [at for at, piece in enumerate(self._pieces) if piece.lstrip()[:1] == "{"]
        ends = ("".join(self._pieces[at:]) for at in (*begins[1:2], *begins[-1:]))
        return next(filter(_is_object, ends), whole)

    @property
    def is_complete(self) -> bool:
        return _is_object(self.arguments)


def _read_index(given: object) -> int | None:
    if isinstance(given, str) and given.isdecimal() and len(given) < 10:
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _read_id(given: object) -> str:
    return str(given) if isinstance(given, str | int) and not isinstance(given, bool) else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
