"""Fit tools into a local model's context, and parse its tool calls (docs/sources.md#tool-calls).

The arguments of a malformed call are kept as written, so that the model sees its mistake.
"""

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import islice
from typing import Final, TypeAlias

import structlog

from bot.backends.chat_completions.deltas import MAX_ARGUMENT_CHARS, MAX_NAME_CHARS, MAX_TOOL_CALLS
from bot.backends.chat_completions.stop_strings import partial_match_length
from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent, Prompt, ToolCall
from bot.templates.renderer import ToolUse
from bot.templates.tool_forms import ToolCallFormat

Parameters: TypeAlias = Mapping[str, object]

_OPEN_TAG, _CLOSE_TAG, _CALL_LIST_TAG = "<tool_call>", "</tool_call>", "[TOOL_CALLS]"
_PYTHON_TAG, _CHANNEL_TAG, _RECIPIENT_PREFIX = "<|python_tag|>", "<|channel|>", "to=functions."
_SECTION_TAG, _SECTION_END_TAG = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL_TAG, _CALL_END_TAG = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS_TAG = "<|tool_call_argument_begin|>"
_SECTION_TOKENS: Final = (_SECTION_TAG, _CALL_TAG, _ARGUMENTS_TAG, _CALL_END_TAG, _SECTION_END_TAG)
_CHANNEL_TOKENS: Final = (_CHANNEL_TAG, "<|message|>", "<|constrain|>", "<|start|>", "<|call|>")

_NAME_FIELD_PATTERN: Final = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"')
_LISTED_CALL: Final = re.compile(r"\s*([\w.-]{1,64})\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*\{")
_SECTION_CALL: Final = re.compile(
    rf"{re.escape(_CALL_TAG)}\s*(?:functions\.)?([\w.-]{{1,64}}?)(?::\d+)?\s*{re.escape(_ARGUMENTS_TAG)}"
)
_SECTION_END: Final = re.compile(
    "|".join(map(re.escape, (_CALL_END_TAG, _CALL_TAG, _SECTION_END_TAG)))
)
_CHANNEL_CALL: Final = re.compile(
    r"to=functions\.([\w.-]{1,64})(?:(?!to=|<\|message\|>).){0,80}<\|message\|>"
)
_CHANNEL_END: Final = re.compile(r"<\|(?:call|end|start|return|channel)\|>")
_MARKUP_CALL_PATTERNS: Final = (
    (  # Qwen3.5, Qwen3-Coder
        re.compile(r"\s*<function=([\w.-]{1,64})>"),
        re.compile(
            r"<parameter=([^<>\n]{1,64})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
        ),
    ),
    (  # GLM-4.5 and later
        re.compile(r"\s*([\w.-]{1,64})\s*(?=<arg_key>|\Z)"),
        re.compile(
            r"<arg_key>([^<>\n]{1,64})</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|\Z)", re.DOTALL
        ),
    ),
)
_JSON_DECODER: Final = json.JSONDecoder()
PRESERVED_CALL_MARKERS: Final = (
    *(_OPEN_TAG, _CLOSE_TAG, _CALL_LIST_TAG, "[ARGS]", "[CALL_ID]"),
    *(_PYTHON_TAG, *_SECTION_TOKENS, *_CHANNEL_TOKENS),
)
"""Texts that the engine must return even if they are control tokens."""

_CALL_BEGINNINGS: Final[Mapping[ToolCallFormat, tuple[str, ...]]] = {
    ToolCallFormat.TAGGED: (_OPEN_TAG,),
    ToolCallFormat.LISTED: (_CALL_LIST_TAG,),
    ToolCallFormat.SECTION: (_SECTION_TAG,),
    ToolCallFormat.CHANNEL: (_CHANNEL_TAG, f" {_RECIPIENT_PREFIX}", _RECIPIENT_PREFIX),
}
"""The markers that start a call; in the format `BARE`, the whole answer is a call."""

_FORMATS_SHOWN_IF_INVALID: Final = (ToolCallFormat.BARE, ToolCallFormat.CHANNEL)
_MAX_CALL_CHARS: Final = 2 * MAX_ARGUMENT_CHARS  # of all calls in one answer
RESULTS_DIVISOR: Final = 6  # a sixth of the context is reserved for calls and results
_MIN_CONTEXT_TO_TOOL_SPECS_RATIO: Final = 3
_BYTES_PER_TOKEN: Final = 3  # a low estimate for most scripts
_MIN_RESULT_BYTES: Final = 120
_OMISSION_MARK: Final = "\n[the rest is omitted]"
_log = structlog.get_logger(__name__)


def read_calls(
    call_format: ToolCallFormat, answer: str, tools: Mapping[str, Parameters], *, is_cut: bool
) -> list[tuple[str, str]]:
    """Return each call's name and JSON arguments; `is_cut` drops an incomplete last call."""
    match call_format:
        case ToolCallFormat.TAGGED:
            return _read_tagged_calls(answer, tools, is_cut=is_cut)
        case ToolCallFormat.LISTED:
            return _read_listed_calls(answer, is_cut=is_cut)
        case ToolCallFormat.BARE:
            return _read_bare_calls(answer)
        case ToolCallFormat.SECTION:
            return _read_named_calls(_SECTION_CALL, _SECTION_END, answer, is_cut=is_cut)
        case ToolCallFormat.CHANNEL:
            return _read_named_calls(_CHANNEL_CALL, _CHANNEL_END, answer, is_cut=is_cut)


def _read_tagged_calls(
    answer: str, tools: Mapping[str, Parameters], *, is_cut: bool
) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for block in answer.split(_OPEN_TAG)[1:]:
        call_text, close_tag, _ = block.partition(_CLOSE_TAG)
        if call_text.strip() and (close_tag or not is_cut):
            calls.append(_read_markup_call(call_text, tools) or _read_call(call_text))
    return calls


def _read_markup_call(block: str, tools: Mapping[str, Parameters]) -> tuple[str, str] | None:
    for opening_pattern, parameter_pattern in _MARKUP_CALL_PATTERNS:
        if opening_match := opening_pattern.match(block):
            properties = tools.get(opening_match[1], {}).get("properties")
            schemas = properties if isinstance(properties, Mapping) else {}
            matches = parameter_pattern.finditer(block, opening_match.end())
            arguments = {one[1]: _convert_to_type(one[2], schemas.get(one[1])) for one in matches}
            return opening_match[1], _encode_arguments(arguments)
    return None


def _convert_to_type(text: str, schema: object) -> object:
    text = text.removeprefix("\n").removesuffix("\n")
    value_type = schema.get("type") if isinstance(schema, Mapping) else "string"
    if value_type in {None, "string"}:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_named_calls(
    pattern: re.Pattern[str], end_pattern: re.Pattern[str], answer: str, *, is_cut: bool
) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for call_match in islice(pattern.finditer(answer), MAX_TOOL_CALLS):
        text = end_pattern.split(answer[call_match.end() :], 1)[0].strip()
        calls += _read_named_call(call_match[1], text, is_cut=is_cut)
    return calls


def _read_named_call(name: str, text: str, *, is_cut: bool) -> list[tuple[str, str]]:
    arguments = _decode_json(text)
    if isinstance(arguments, dict):
        return [(name, _encode_arguments(arguments))]
    return [] if is_cut else [(name, text)]


def _read_listed_calls(answer: str, *, is_cut: bool) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for block in answer.split(_CALL_LIST_TAG)[1:]:
        text = block.strip()
        items = _decode_json(text)
        if isinstance(items, list):
            call_objects = (one for one in items[:MAX_TOOL_CALLS] if isinstance(one, dict))
            calls += map(_parse_call_object, call_objects)
        elif match := _LISTED_CALL.match(text):
            calls += _read_named_call(match[1], text[match.end() - 1 :], is_cut=is_cut)
        elif text and not is_cut:
            calls.append(_read_call(text))
    return calls


def _read_bare_calls(answer: str) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    text = answer.strip().removeprefix(_PYTHON_TAG).strip()
    while text.startswith("{") and len(calls) < MAX_TOOL_CALLS:
        try:
            call_object, end = _JSON_DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        calls.append(_parse_call_object(call_object))
        text = text[end:].lstrip("; \t\r\n")
    return calls


def _read_call(text: str) -> tuple[str, str]:
    call_object = _decode_json(text.strip())
    if isinstance(call_object, dict):
        return _parse_call_object(call_object)
    name_match = _NAME_FIELD_PATTERN.search(text)
    return name_match[1] if name_match else "unknown", text.strip()


def _parse_call_object(call: dict[str, object]) -> tuple[str, str]:
    function = call.get("function")
    call_fields = function if isinstance(function, dict) else call
    name = call_fields.get("name", function)
    arguments = call_fields.get("arguments", call_fields.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = _encode_arguments(arguments)
    return name if isinstance(name, str) and name else "unknown", arguments


def _encode_arguments(arguments: object) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (RecursionError, ValueError):
        return "too deep to be read"


def _decode_json(text: str) -> object:
    try:
        return _JSON_DECODER.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


class TextCallParser:
    """Separates tool calls from text in a streamed answer, in chunks of any size."""

    def __init__(self, call_format: ToolCallFormat, tools: Mapping[str, Parameters]) -> None:
        self._format = call_format
        self._tools = tools
        self._pending = ""  # text that may be the start of a marker
        self._is_in_call = False
        self._is_answering = False  # for BARE: the answer started as text
        self._call_text = ""

    def feed(self, text: str) -> str:
        if self._is_in_call:
            return self._add_call_text(text)
        self._pending += text
        if self._format is ToolCallFormat.BARE:
            return self._parse_bare_answer()
        markers = _CALL_BEGINNINGS[self._format]
        offsets = [offset for marker in markers if (offset := self._pending.find(marker)) >= 0]
        if offsets:
            text_before, call_text = self._pending[: min(offsets)], self._pending[min(offsets) :]
            self._pending, self._is_in_call = "", True
            return text_before + self._add_call_text(call_text)
        match_length = max(partial_match_length(self._pending, marker) for marker in markers)
        shown_text = self._pending[: len(self._pending) - match_length]
        self._pending = self._pending[len(shown_text) :]
        return shown_text

    def finish(self, *, is_cut: bool = False) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the remaining text and the calls; `is_cut` drops an incomplete last call."""
        if not self._is_in_call:
            return self._pending, ()
        name_argument_pairs = read_calls(self._format, self._call_text, self._tools, is_cut=is_cut)
        if self._format is ToolCallFormat.BARE:
            name_argument_pairs = [one for one in name_argument_pairs if one[0] in self._tools]
        if not name_argument_pairs and self._format in _FORMATS_SHOWN_IF_INVALID:
            return self._call_text, ()
        calls = [
            ToolCall(f"call_{number}", name[:MAX_NAME_CHARS], arguments[:MAX_ARGUMENT_CHARS])
            for number, (name, arguments) in enumerate(name_argument_pairs[:MAX_TOOL_CALLS])
        ]
        return "", tuple(calls)

    def _add_call_text(self, text: str) -> str:
        self._call_text += text
        if len(self._call_text) <= _MAX_CALL_CHARS:
            return ""
        if self._format is ToolCallFormat.BARE:  # too long for a call, so the JSON is the answer
            shown_text, self._call_text = self._call_text, ""
            self._is_in_call, self._is_answering = False, True
            return shown_text
        self._call_text = self._call_text[:_MAX_CALL_CHARS]
        return ""

    def _parse_bare_answer(self) -> str:
        pending_text = self._pending.lstrip()
        if not self._is_answering and pending_text.startswith(("{", _PYTHON_TAG)):
            text, self._pending, self._is_in_call = self._pending, "", True
            return self._add_call_text(text)
        if not self._is_answering and _PYTHON_TAG.startswith(pending_text):
            return ""
        self._is_answering = True
        shown_text, self._pending = self._pending, ""
        return shown_text


async def separate_calls(
    events: AsyncGenerator[GenerationEvent, None],
    call_format: ToolCallFormat,
    tools: Mapping[str, Parameters],
) -> AsyncGenerator[GenerationEvent, None]:
    """Yield the answer's events without its tool calls, which are added to the `Finish`."""
    parser = TextCallParser(call_format, tools)
    async with aclosing(events):
        async for event in events:
            match event:
                case Delta(text):
                    if shown_text := parser.feed(text):
                        yield Delta(shown_text)
                case Finish():
                    is_cut = event.reason is FinishReason.LENGTH
                    remaining_text, calls = parser.finish(is_cut=is_cut)
                    if remaining_text:
                        yield Delta(remaining_text)
                    yield replace(event, tool_calls=calls) if calls else event
                case _:
                    yield event


def fit_tools(prompt: Prompt, context_tokens: int, special_texts: Sequence[str]) -> ToolUse:
    """Return the tools, or none if they exceed 1/3 of the context; cut the results to 1/6 of it."""
    spec_chars = sum(len(one.description) + len(json.dumps(one.parameters)) for one in prompt.tools)
    specs = prompt.tools
    if spec_chars > context_tokens * _BYTES_PER_TOKEN // _MIN_CONTEXT_TO_TOOL_SPECS_RATIO:
        _log.warning("tools_too_long", model=prompt.model, characters=spec_chars)
        specs = ()
    result_count = sum(len(one.results) for one in prompt.tool_exchanges)
    bytes_per_result = context_tokens // RESULTS_DIVISOR * _BYTES_PER_TOKEN // max(1, result_count)
    bytes_per_result = max(bytes_per_result, _MIN_RESULT_BYTES)
    exchanges = [
        replace(one, results=tuple(_truncate_text(each, bytes_per_result) for each in one.results))
        for one in prompt.tool_exchanges
    ]
    return ToolUse(specs, exchanges, special_texts)


def _truncate_text(text: str, max_bytes: int) -> str:
    encoded_text = text.encode(errors="replace")
    if len(encoded_text) <= max_bytes:
        return text
    return encoded_text[:max_bytes].decode(errors="ignore") + _OMISSION_MARK
