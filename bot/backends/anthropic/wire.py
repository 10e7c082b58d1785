"""Build Messages API requests and parse streamed responses (docs/sources.md#anthropic)."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from typing_extensions import override

from bot.backends.chat_completions import errors, parameter_table
from bot.backends.chat_completions.deltas import JsonObject
from bot.backends.chat_completions.parameter_table import (
    ParameterTable,
    ValueCheck,
    select_parameters_to_send,
)
from bot.backends.chat_completions.stop_strings import collect_stop_strings
from bot.backends.chat_completions.streaming import StreamParser, decode_event, parse_token_count
from bot.chat.prompt import FinishReason, Image, Message, Prompt, ToolCall, ToolExchange, Usage
from bot.errors import BackendUnavailable
from bot.texts.text import translatable

DEFAULT_MAX_TOKENS = 4096

_MIN_THINKING_TOKENS = 1024
_ADAPTIVE_REASONING_TOKENS = 8192  # added to the limit if the model decides how much it reasons
_EFFORT_LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_THINKING_TOKENS_BY_EFFORT = {"minimal": 1024, "low": 2048, "medium": 4096, "high": 16384}
_MAX_THINKING_TOKENS = 32_000
# Models up to 4.5 accept a token budget for reasoning and, when they do not reason, continue a
# prefilled answer. Later models accept an effort level and reject prefilled answers.
_MODELS_WITH_THINKING_BUDGET = re.compile(
    r"claude-(3\b|(opus|sonnet|haiku)-4(-[015])?(-\d{8}|-latest)?$)"
)
_TOKEN_LIMIT_PARAMETERS = ("max_tokens", "max_completion_tokens")
_UNCHANGED_PARAMETERS = frozenset({"temperature", "top_p", "top_k"})


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_thinking_setting(value: object) -> bool:
    match value:
        case {"type": "enabled", "budget_tokens": int(tokens)}:
            return tokens >= _MIN_THINKING_TOKENS
        case {"type": "adaptive" | "disabled"}:
            return True
        case _:
            return False


_POSITIVE_CHECK = ValueCheck(_is_positive_int, translatable("an integer of at least {low}", low=1))
_PARAMETER_CHECKS: Mapping[str, ValueCheck] = {
    "temperature": parameter_table.make_number_check(0, 1),
    "top_p": parameter_table.make_number_check(0, 1),
    "top_k": _POSITIVE_CHECK,
    "max_tokens": _POSITIVE_CHECK,
    "max_completion_tokens": _POSITIVE_CHECK,
    "stop": parameter_table.STOP_CHECK,
    "n": parameter_table.EQUALS_ONE_CHECK,
    "user": ValueCheck(lambda value: isinstance(value, str), translatable("text")),
    "reasoning_effort": ValueCheck(
        lambda value: value in _EFFORT_LEVELS,
        translatable("one of {names}", names=", ".join(_EFFORT_LEVELS)),
    ),
    "thinking": ValueCheck(
        _is_thinking_setting,
        translatable(
            "one of {forms}, where N is at least {tokens}",
            forms=(
                '{"type": "adaptive"}, {"type": "disabled"},'
                ' {"type": "enabled", "budget_tokens": N}'
            ),
            tokens=_MIN_THINKING_TOKENS,
        ),
    ),
}
_PARAMETER_TABLE = ParameterTable(
    _PARAMETER_CHECKS,
    translatable("the Messages API supports {names}", names=", ".join(sorted(_PARAMETER_CHECKS))),
)


def parameter_problems(_settings: object, parameters: Mapping[str, object]) -> list[str]:
    """Return an error line for each parameter that the API does not support."""
    return [*_PARAMETER_TABLE.find_problems(select_parameters_to_send(parameters))]


def build_parameter_fields(prompt: Prompt, model: str) -> dict[str, object]:
    """Return a prompt's parameters as request fields; raise `BackendUnavailable` if invalid."""
    parameter_table.raise_for_problems(parameter_problems(None, prompt.parameters))
    parameters = select_parameters_to_send(prompt.parameters)
    fields = {name: value for name, value in parameters.items() if name in _UNCHANGED_PARAMETERS}
    if "user" in parameters:
        fields["metadata"] = {"user_id": parameters["user"]}
    thinking_config, effort = _find_reasoning_fields(parameters, model)
    if thinking_config:
        fields["thinking"] = thinking_config
    if effort:
        fields["output_config"] = {"effort": effort}
    limits = [prompt.max_output_tokens, *(parameters.get(name) for name in _TOKEN_LIMIT_PARAMETERS)]
    limit = min((limit for limit in limits if isinstance(limit, int)), default=DEFAULT_MAX_TOKENS)
    fields["max_tokens"] = limit + _estimate_reasoning_tokens(thinking_config)
    return fields


def can_continue(prompt: Prompt, model: str) -> bool:
    """Return whether the model can continue a prefilled answer."""
    thinking_config, _ = _find_reasoning_fields(select_parameters_to_send(prompt.parameters), model)
    is_reasoning = thinking_config.get("type", "disabled") != "disabled"
    return bool(_MODELS_WITH_THINKING_BUDGET.search(model)) and not is_reasoning


def _find_reasoning_fields(parameters: JsonObject, model: str) -> tuple[JsonObject, str | None]:
    """Return the request's `thinking` field (may be empty) and its effort level (may be None)."""
    effort = parameters.get("reasoning_effort", "none")
    if effort == "none":
        return parameters.get("thinking", {}), None
    if _MODELS_WITH_THINKING_BUDGET.search(model):
        thinking_tokens = _THINKING_TOKENS_BY_EFFORT.get(effort, _MAX_THINKING_TOKENS)
        return {"type": "enabled", "budget_tokens": thinking_tokens}, None
    return {"type": "adaptive"}, "low" if effort == "minimal" else effort


def _estimate_reasoning_tokens(thinking_config: Mapping[str, Any]) -> int:
    match thinking_config.get("type"):
        case "enabled":
            return int(thinking_config["budget_tokens"])
        case "adaptive":
            return _ADAPTIVE_REASONING_TOKENS
        case _:
            return 0


_DATA_URI_PATTERN = re.compile(r"data:(image/(?:jpeg|png|gif|webp));base64,")
_HTTP_URL_PATTERN = re.compile(r"https?://")
_MAX_SHOWN_URL_CHARS = 40
_UNREADABLE_IMAGE_NOTICE = translatable(
    "This preset has an image that the model cannot read; the bot's operator has to fix it."
)
_FIRST_USER_TEXT = "(The conversation begins.)"  # the API requires a user message first
_FINISH_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.FILTERED,
}
_STATUS_BY_ERROR_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
THINKING_BLOCKS_FIELD = "thinking_blocks"
_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


def to_wire(
    prompt: Prompt, model: str, *, cache_ttl: Literal["off", "5m", "1h"] = "off"
) -> dict[str, Any]:
    """Build a request; raise `BackendUnavailable` if the API would reject the prompt."""
    prefill = (Message("assistant", prompt.begun),) if prompt.begun else ()
    messages = (*prompt.messages, *prefill)
    roles = [message.role for message in messages]
    system_count = next((index for index, role in enumerate(roles) if role != "system"), len(roles))
    system_blocks = [block for message in messages[:system_count] for block in _to_blocks(message)]
    turns = _merge_messages_by_role(messages[system_count:])
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [_to_text_block(_FIRST_USER_TEXT)]})
    if turns[-1]["role"] == "assistant":
        if can_continue(prompt, model):  # the API rejects trailing white space
            last_block = turns[-1]["content"][-1]
            last_block["text"] = last_block["text"].rstrip()
        else:  # this model rejects a prefilled answer
            turns.pop()
    if cache_ttl != "off":
        _mark_stable_prefix(system_blocks, turns, cache_ttl)
    turns += build_exchange_messages(prompt)
    body = {"model": model, **build_parameter_fields(prompt, model), **build_tool_fields(prompt)}
    # While thinking is on, the API requires the thinking blocks of all earlier tool calls.
    if not all(map(find_thinking_blocks, prompt.tool_exchanges)):
        body.pop("thinking", None)
    if system_blocks:
        body["system"] = system_blocks
    body["messages"] = [{**turn, "content": _to_content(turn["content"])} for turn in turns]
    # The API rejects white space as a stop string; our own search of the answer covers it.
    if stop_strings := [text for text in collect_stop_strings(prompt) if text.strip()]:
        body["stop_sequences"] = stop_strings
    return {**body, "stream": True}


def _merge_messages_by_role(messages: Iterable[Message]) -> list[dict[str, Any]]:
    blocks_with_roles = [
        ("assistant" if message.role == "assistant" else "user", block)
        for message in messages
        for block in _to_blocks(message)
    ]
    return [
        {"role": role, "content": [block for _, block in group]}
        for role, group in groupby(blocks_with_roles, key=lambda pair: pair[0])
    ]


def _to_blocks(message: Message) -> Iterator[dict[str, Any]]:
    for part in message.parts or (message.content,):
        if isinstance(part, Image):
            if message.role != "user":
                raise BackendUnavailable(
                    f"a message with the role {message.role!r} contains an image; Anthropic's"
                    " models accept images in user messages only",
                    _UNREADABLE_IMAGE_NOTICE,
                )
            yield {"type": "image", "source": _to_image_source(part)}
        elif part.strip():  # empty text is rejected
            yield _to_text_block(part)


def _to_text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _to_image_source(image: Image) -> dict[str, str]:
    if match := _DATA_URI_PATTERN.match(image.url):
        base64_data = image.url[match.end() :]
        return {"type": "base64", "media_type": match[1], "data": base64_data}
    if _HTTP_URL_PATTERN.match(image.url):
        return {"type": "url", "url": image.url}
    raise BackendUnavailable(
        f"the image {image.url[:_MAX_SHOWN_URL_CHARS]!r} is neither a link nor a base64 `data:` URI"
        " of a JPEG, PNG, GIF, or WebP",
        _UNREADABLE_IMAGE_NOTICE,
    )


def _mark_stable_prefix(
    system: Sequence[dict[str, Any]], turns: Sequence[dict[str, Any]], ttl: Literal["5m", "1h"]
) -> None:
    """Set up to four cache breakpoints in the prefix that the next prompt will share."""
    cache_control = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    blocks_to_mark = [*system[:1], *system[-1:]]
    answer_turns = (turn for turn in reversed(turns[:-1]) if turn["role"] == "assistant")
    blocks_to_mark += [answer["content"][-1] for answer in answer_turns][:1]
    for block in blocks_to_mark:
        block["cache_control"] = cache_control


def _to_content(blocks: Sequence[dict[str, Any]]) -> object:
    block = blocks[0]
    return block["text"] if len(blocks) == 1 and block.keys() == {"type", "text"} else blocks


class AnthropicParser(StreamParser):
    """Parses the events of a streamed message, or a whole message if the server does not stream."""

    _is_thinking = False
    _token_counts: Mapping[str, int] = {}

    @override
    def _parse_event(self, data: bytes) -> bool:
        if not data.strip():
            return False
        event = self._decode_event(data)
        field_names = ("message", "content_block", "delta")
        message, block, delta = (_read_object(event.get(name)) for name in field_names)
        self._add_usage(message.get("usage") or event.get("usage"))
        match event.get("type"):
            case "content_block_start" if block:
                self._is_thinking = block.get("type") in {"thinking", "redacted_thinking"}
                self._add_block(block, event.get("index"))
                is_tool_call = block.get("type") == "tool_use"
                return self._is_thinking or is_tool_call or bool(_read_string(block))
            case "content_block_delta":
                return self._parse_delta(delta, event.get("index"))
            case "message_delta" if stop_reason := delta.get("stop_reason"):
                return self._record_stop_as_output(stop_reason)
            case "message_stop":
                return self._end_without_output()
            case "message":  # a whole message, not a stream
                blocks = event.get("content")
                for index, content_block in enumerate(blocks if isinstance(blocks, list) else ()):
                    self._add_block(_read_object(content_block), index)
                return bool(
                    stop_reason := event.get("stop_reason")
                ) and self._record_stop_as_output(stop_reason)
            case "ping":
                # A model that hides its reasoning may send only pings for minutes.
                return self._is_thinking
            case _:
                return False

    def _decode_event(self, data: bytes) -> JsonObject:
        context = self._context
        try:
            event = decode_event(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            problem = "an event that is not part of the Messages API"
            raise errors.bad_response_error(context.endpoint, problem)
        if event.get("type") == "error" or event.get("error"):
            arguments = (context.endpoint, context.model, data, context.now)
            raise errors.translate_error_event(*arguments, _STATUS_BY_ERROR_TYPE)
        return event

    def _add_block(self, block: JsonObject, index: object) -> None:
        self._add_answer_text(_read_string(block))
        match block.get("type"):
            case "thinking":
                self._add_thinking(block)
            case "redacted_thinking":
                data = block.get("data")
                self._collect_thinking_block({"type": "redacted_thinking", "data": data})
            case "tool_use":
                arguments = block.get("input") or ""
                self._add_tool_call(index, block.get("name"), arguments, id=block.get("id"))
            case _:
                pass

    def _add_thinking(self, block: JsonObject) -> None:
        text = _read_string(block, "thinking")
        self._add_reasoning(text)
        signature = block.get("signature") or None
        self._collect_thinking_block({"type": "thinking", "thinking": text, "signature": signature})

    def _collect_thinking_block(self, block: Mapping[str, object]) -> None:
        self._round_trip_fields.feed({THINKING_BLOCKS_FIELD: [block]})

    def _add_tool_call(
        self, index: object, name: object = "", arguments: object = "", **call_fields: object
    ) -> None:
        function_fields = {"name": name, "arguments": arguments}
        self._tool_call_parser.feed([{"index": index, "function": function_fields, **call_fields}])

    def _parse_delta(self, delta: JsonObject, index: object) -> bool:
        text, arguments = _read_string(delta), _read_string(delta, "partial_json")
        self._add_answer_text(text)
        if delta.get("thinking") or delta.get("signature"):
            self._add_thinking(delta)
        if arguments:
            self._add_tool_call(index, arguments=arguments)
        return bool(delta and (delta.get("type") != "text_delta" or text))

    def _add_answer_text(self, text: str) -> None:
        if text and self.finish_reason is None:
            self._add_text(text)

    def _record_stop_as_output(self, stop_reason: object) -> bool:
        if self.finish_reason is None:
            self.finish_reason = _FINISH_REASONS.get(str(stop_reason), FinishReason.STOP)
        return True

    def _end_without_output(self) -> bool:
        self.is_done = True
        if self.finish_reason is None:
            raise errors.early_end_error(self._context.endpoint, "no stop_reason")
        return False

    def _add_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        counts = {name: count for name, item in usage.items() if (count := parse_token_count(item))}
        self._token_counts = token_counts = {**self._token_counts, **counts}
        cached_tokens = token_counts.get("cache_read_input_tokens", 0)
        written_tokens = token_counts.get("cache_creation_input_tokens", 0)
        self.usage = Usage(
            prompt_tokens=token_counts.get("input_tokens", 0) + cached_tokens + written_tokens,
            cached_tokens=cached_tokens,
            output_tokens=token_counts.get("output_tokens", 0),
            written_tokens=written_tokens,
        )


def _read_object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _read_string(fields: JsonObject, name: str = "text") -> str:
    text = fields.get(name)
    return text if isinstance(text, str) else ""


def build_tool_fields(prompt: Prompt) -> dict[str, Any]:
    """Build the request fields for tools. The API requires them if an earlier answer used tools."""
    if prompt.tools:
        specs = [
            {"name": spec.name, "description": spec.description, "input_schema": spec.parameters}
            for spec in prompt.tools
        ]
        return {"tools": specs}
    names = [_clean_name(call) for exchange in prompt.tool_exchanges for call in exchange.calls]
    if not names:
        return {}
    stubs = [{"name": name, "input_schema": {"type": "object"}} for name in dict.fromkeys(names)]
    return {"tools": stubs, "tool_choice": {"type": "none"}}


def build_exchange_messages(prompt: Prompt) -> Iterator[dict[str, Any]]:
    for exchange_index, exchange in enumerate(prompt.tool_exchanges):
        safe_ids = (_INVALID_NAME_CHARS.sub("_", call.id) for call in exchange.calls)
        call_ids = [f"{exchange_index}_{index}_{safe_id}" for index, safe_id in enumerate(safe_ids)]
        text = [{"type": "text", "text": exchange.text}] if exchange.text.strip() else []
        calls = [
            {"type": "tool_use", "id": each, "name": _clean_name(call), "input": _parse_input(call)}
            for each, call in zip(call_ids, exchange.calls, strict=True)
        ]
        yield {"role": "assistant", "content": [*find_thinking_blocks(exchange), *text, *calls]}
        result_blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": result}
            for call_id, result in zip(call_ids, exchange.results, strict=True)
        ]
        yield {"role": "user", "content": result_blocks}


def find_thinking_blocks(exchange: ToolExchange) -> list[dict[str, Any]]:
    """Return the signed reasoning blocks that the model sent with its tool calls."""
    attached_fields: Mapping[str, Any] = exchange.attached
    blocks = attached_fields.get(THINKING_BLOCKS_FIELD, ())
    return [block for block in blocks if block.get("signature") or block.get("data")]


def _clean_name(call: ToolCall) -> str:
    return _INVALID_NAME_CHARS.sub("_", call.name) or "unknown"


def _parse_input(call: ToolCall) -> object:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
