"""Parse chat completion deltas (text, reasoning, tool calls); serialize tools and results."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from bot.chat.incoming import to_storable_json, to_storable_text
from bot.chat.prompt import Prompt, ToolCall, ToolSpec

MAX_TOOL_CALLS = 8
MAX_NAME_CHARS = 64
MAX_ARGUMENT_CHARS = 16 * 1024
_FUNCTION_FIELDS = frozenset({"name", "arguments"})
_CALL_FIELDS = frozenset({"index", "id", "type", "function", *_FUNCTION_FIELDS})
JsonObject: TypeAlias = Mapping[str, Any]
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_REASONING_LIST_FIELDS = ("reasoning_details", "thinking_blocks")  # OpenRouter's, LiteLLM's
_TEXT_FIELDS = ("thinking", "text", "summary")
# Fields to send back with tool calls: reasoning, and signatures under any name.
_ROUND_TRIP_FIELD_PATTERN = re.compile(
    "reason|think|thought|signature|encrypted|extra_content|provider_specific"
)


def tool_spec_to_wire(spec: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "function": {
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
        },
    }


def tool_exchanges_to_wire(prompt: Prompt) -> Iterator[dict[str, object]]:
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
    attached_fields: Mapping[str, Any] = call.attached
    function_fields = {"name": call.name, "arguments": call.arguments or "{}"}
    return {
        **attached_fields,
        "id": call.id,
        "type": "function",
        "function": {**attached_fields.get("function", {}), **function_fields},
    }


class ToolCallParser:
    """Assembles tool calls from streamed deltas; drops malformed deltas and excess calls."""

    def __init__(self) -> None:
        self._calls: list[_PartialToolCall] = []

    def feed(self, deltas: object) -> None:
        for delta_position, delta in enumerate(deltas if isinstance(deltas, list) else ()):
            if isinstance(delta, dict):
                self._add_delta(delta, delta_position)

    def replace_calls(self, calls: object) -> None:
        """Replace the calls assembled so far with those of a complete message."""
        if isinstance(calls, list) and calls:
            self._calls.clear()
            self.feed(calls)

    def _add_delta(self, delta: Mapping[str, Any], delta_position: int) -> None:
        function_fields = delta.get("function")
        fields: Mapping[str, Any] = function_fields if isinstance(function_fields, dict) else delta
        index, call_id = _read_index(delta.get("index")), _read_id(delta.get("id"))
        name = fields.get("name")
        name = name if isinstance(name, str) else ""
        arguments = fields.get("arguments")
        arguments = json.dumps(arguments) if isinstance(arguments, dict) else arguments
        arguments = arguments if isinstance(arguments, str) else ""
        call = self._find_continued_call(index, call_id, name, arguments, delta_position)
        if call is None:
            call = _PartialToolCall(index)
            if len(self._calls) > MAX_TOOL_CALLS:
                self._calls.pop()  # one call beyond the limit absorbs the deltas to drop
            self._calls.append(call)
        call.id, call.name = call.id or call_id, name or call.name
        call.add_arguments(arguments)
        call.add_fields({key: value for key, value in delta.items() if key not in _CALL_FIELDS})
        if fields is not delta:
            extras = {key: value for key, value in fields.items() if key not in _FUNCTION_FIELDS}
            call.add_fields({"function": extras} if extras else {})

    def _find_continued_call(
        self, index: int | None, call_id: str, name: str, arguments: str, delta_position: int
    ) -> "_PartialToolCall | None":
        """Return the call that a delta continues, or None if the delta starts a new call.

        Services reuse or omit indexes and repeat ids and names. So a delta is matched by id, then
        by index, then to the last call. Only a delta with a name can start a call.
        """
        calls_with_id = [call for call in self._calls if call_id and call.id == call_id]
        candidate_calls = calls_with_id or self._calls
        calls_at_index = [call for call in candidate_calls if index is None or call.index == index]
        if not name or calls_with_id:
            calls_at_index = calls_at_index or candidate_calls
        if not calls_at_index:
            return None
        call = calls_at_index[-1]
        if not name or not call.name:
            return call
        has_new_id = bool(call_id and call.id and not calls_with_id)
        if has_new_id or (call.name != name and (not calls_with_id or call.has_complete_arguments)):
            return None
        if calls_with_id and (index is None or call.index in {index, None}):
            return call
        if index is not None and call.index == index:
            is_same_call = call.arguments == arguments or not arguments.lstrip().startswith("{")
            return call if is_same_call or not call.has_complete_arguments else None
        return None if call.has_complete_arguments or delta_position else call

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        calls_by_id: dict[str, ToolCall] = {}
        for call_number, call in enumerate(self._calls[:MAX_TOOL_CALLS]):
            call_id = to_storable_text(call.id)[:MAX_NAME_CHARS] or f"call_{call_number}"
            if call_id in calls_by_id:  # results are matched to calls by their ids
                call_id = f"{call_id[: MAX_NAME_CHARS - 2]}_{call_number}"
            if call.name:
                calls_by_id[call_id] = ToolCall(
                    call_id,
                    to_storable_text(call.name)[:MAX_NAME_CHARS],
                    to_storable_text(call.arguments)[:MAX_ARGUMENT_CHARS],
                    to_storable_json(call.extra_fields),
                )
        return tuple(calls_by_id.values())


class _PartialToolCall:
    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.extra_fields: dict[str, Any] = {}
        self._pieces: list[str] = []
        self._char_count = 0

    def add_arguments(self, piece: str) -> None:
        if self._pieces and piece.startswith("{") and piece.startswith(self._pieces[0]):
            self._pieces.clear()  # the piece repeats everything so far
            self._char_count = 0
        if piece and self._char_count < MAX_ARGUMENT_CHARS:
            self._pieces.append(piece)
            self._char_count += len(piece)

    def add_fields(self, fields: Mapping[str, Any]) -> None:
        self.extra_fields |= {key: value for key, value in fields.items() if value is not None}

    @property
    def arguments(self) -> str:
        """The arguments received so far, as a single JSON object if possible."""
        all_arguments = "".join(self._pieces)
        if _is_json_object(all_arguments):
            return all_arguments
        # Some services repeat all arguments at the end, or send an empty object first.
        json_starts = [i for i, piece in enumerate(self._pieces) if piece.lstrip()[:1] == "{"]
        json_texts = ("".join(self._pieces[i:]) for i in (*json_starts[1:2], *json_starts[-1:]))
        return next(filter(_is_json_object, json_texts), all_arguments)

    @property
    def has_complete_arguments(self) -> bool:
        return _is_json_object(self.arguments)


def _read_index(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_id(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def extract_text(delta: JsonObject) -> str:
    content = delta.get("content")
    if isinstance(content, list):  # Mistral's reasoning models send parts
        return "".join(_iterate_strings(content, ("text",)))
    refusal = delta.get("refusal")  # OpenAI puts a refusal here instead of in `content`
    return next((text for text in (content, refusal) if text and isinstance(text, str)), "")


def extract_reasoning(delta: JsonObject) -> str:
    for name in _REASONING_FIELDS:
        if isinstance(value := delta.get(name), str) and value:
            return value
    for name in _REASONING_LIST_FIELDS:
        if text := "".join(_iterate_strings(delta.get(name), _TEXT_FIELDS)):
            return text
    content = delta.get("content")
    return "".join(_iterate_strings(content, ("thinking",))) if isinstance(content, list) else ""


def _iterate_strings(items: object, field_names: Sequence[str]) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        for name in field_names if isinstance(item, dict) else ():
            value = item.get(name)
            if isinstance(value, list):
                yield from _iterate_strings(value, ("text",))
            elif isinstance(value, str):
                yield value


@lru_cache(256)
def _is_round_trip_field(name: str) -> bool:
    return _ROUND_TRIP_FIELD_PATTERN.search(name) is not None


class RoundTripFields:
    """Collects fields that must be sent back with the tool calls, such as reasoning."""

    def __init__(self) -> None:
        self._text_pieces: dict[str, list[str]] = {}
        self._list_items: dict[str, list[dict[str, Any]]] = {}
        self._other_fields: dict[str, Any] = {}

    def feed(self, delta: JsonObject) -> None:
        for name, value in delta.items():
            if value is None or not _is_round_trip_field(name):
                continue
            if isinstance(value, str):
                self._text_pieces.setdefault(name, []).append(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, dict):
                        _add_or_merge_item(self._list_items.setdefault(name, []), item)
            else:
                self._other_fields[name] = value

    @property
    def collected_fields(self) -> JsonObject:
        texts = {name: "".join(pieces) for name, pieces in self._text_pieces.items()}
        fields: JsonObject = to_storable_json({**texts, **self._list_items, **self._other_fields})
        return fields


def _add_or_merge_item(items: list[dict[str, Any]], item: JsonObject) -> None:
    """Append an item or, if it continues the unfinished last item, merge it into that item."""
    last = items[-1] if items else {}
    item_keys = [(each.get("type"), each.get("index"), each.get("format")) for each in (last, item)]
    if not last or last.get("signature") or "data" in item or item_keys[0] != item_keys[1]:
        items.append(dict(item))
        return
    for name, value in item.items():
        is_text_piece = name in _TEXT_FIELDS and isinstance(value, str)
        if value is not None:
            last[name] = (last.get(name) or "") + value if is_text_piece else value
