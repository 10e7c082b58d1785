"""Build chat completions requests and parse streamed responses (docs/sources.md#openai)."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from typing_extensions import override

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.deltas import (
    JsonObject,
    extract_reasoning,
    extract_text,
    tool_exchanges_to_wire,
    tool_spec_to_wire,
)
from bot.backends.chat_completions.quirks import NO_QUIRKS, Quirks
from bot.backends.chat_completions.stop_strings import (
    UNSENT_TEMPLATE_PARAMETERS,
    collect_stop_strings,
)
from bot.backends.chat_completions.streaming import StreamParser, decode_event, parse_token_count
from bot.chat.incoming import to_storable_text
from bot.chat.prompt import FinishReason, Image, Prompt, PromptDescription, Usage
from bot.errors import BackendUnavailable
from bot.templates.capabilities import adapt_messages
from bot.texts.text import translatable

_STREAM_OPTIONS = {"include_usage": True}
_MAX_STOP_STRINGS = 4  # OpenAI rejects more
_ACCEPTED_NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # OpenAI's rule; others are omitted
# In lower case. `model_length` is Mistral's, `max_tokens` Gemini's, `sensitive` Zhipu's.
_FINISH_REASONS = {
    **dict.fromkeys(("length", "max_tokens", "model_length"), FinishReason.LENGTH),
    **dict.fromkeys(
        ("content_filter", "sensitive", "safety", "prohibited_content", "recitation", "refusal"),
        FinishReason.FILTERED,
    ),
}
_EMPTY_FINISH_REASONS = frozenset({"null", "none"})  # Qwen's servers send these words
_EMPTY_EVENTS = frozenset({b"", b"null", b"[]"})
# From OpenRouter, DeepSeek, Zhipu, vLLM and SGLang.
_FAILURE_REASONS = frozenset({"error", "insufficient_system_resource", "network_error", "abort"})
_MAX_SHOWN_DATA_CHARS = 80  # an image in a request has millions


def to_wire(
    prompt: Prompt, model: str, *, sends_names: bool = False, quirks: Quirks = NO_QUIRKS
) -> dict[str, object]:
    """Build a request; raise `BackendUnavailable` if the preset asks for several answers."""
    body = {"stream_options": _STREAM_OPTIONS, **build_request_parameters(prompt)}
    if prompt.max_output_tokens is not None:
        name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        preset_limit = body.get(name)
        limit = preset_limit if isinstance(preset_limit, int) else prompt.max_output_tokens
        body[name] = min(limit, prompt.max_output_tokens)
    if stops := collect_stop_strings(prompt):
        body["stop"] = stops[:_MAX_STOP_STRINGS]  # our own search of the answer covers the rest
    fields = quirks.adapt_body({name: value for name, value in body.items() if value is not None})
    messages: list[dict[str, Any]] = [
        {"role": each.role, "content": list(map(_part_to_wire, each.parts)) or each.content}
        for each in prompt.messages
    ]
    if sends_names:
        for message, each in zip(messages, prompt.messages, strict=True):
            message |= _build_name_field(each.name)
    messages = [dict(message) for message in adapt_messages(messages, quirks.capabilities)]
    if quirks.marks_cached_prefix:
        _mark_stable_prefix(messages)
    prefill = prompt.begun
    if messages and messages[-1]["role"] == "assistant" and quirks.continuation_fields:
        prefill = f"{messages.pop()['content'].rstrip()}{prefill}"
    messages += tool_exchanges_to_wire(prompt)
    if prompt.tools:
        fields["tools"] = [tool_spec_to_wire(spec) for spec in prompt.tools]
    if prefill and quirks.continuation_fields and not (prompt.tool_exchanges and not prompt.begun):
        message_fields, request_fields = quirks.continuation_fields
        fields |= request_fields
        messages.append({"role": "assistant", "content": prefill, **message_fields})
    return {**fields, "model": model, "messages": messages, "stream": True}


def _mark_stable_prefix(messages: Sequence[dict[str, Any]]) -> None:
    """Set up to four cache breakpoints in the prefix that the next prompt will share."""
    roles = [message["role"] for message in messages]
    system_count = next((index for index, role in enumerate(roles) if role != "system"), len(roles))
    answer_indexes = [index for index, role in enumerate(roles[:-1]) if role == "assistant"]
    for index in {
        *range(min(1, system_count)),
        *range(max(0, system_count - 1), system_count),
        *answer_indexes[-1:],
    }:
        content = messages[index]["content"]
        is_text = isinstance(content, str)
        parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if is_text else content
        if parts and parts[-1].get("text", "-").strip():  # an empty text cannot be marked
            parts[-1]["cache_control"] = {"type": "ephemeral"}
            messages[index]["content"] = parts


def _part_to_wire(part: str | Image) -> dict[str, object]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def build_request_parameters(prompt: Prompt) -> dict[str, object]:
    """Return the preset's parameters; raises `BackendUnavailable` if `n` is greater than 1."""
    if prompt.parameters.get("n") not in {None, 1}:
        raise BackendUnavailable(
            f"the parameter n is {prompt.parameters['n']!r}, but a chat gets one answer; remove n",
            translatable(
                "This preset asks for several answers at once; the bot's operator has to fix it."
            ),
        )
    return {
        name: value
        for name, value in prompt.parameters.items()
        if name not in UNSENT_TEMPLATE_PARAMETERS
    }


def _build_name_field(author_label: str | None) -> dict[str, str]:
    name = (author_label or "").replace(" ", "_").replace("#", "-")
    return {"name": name} if _ACCEPTED_NAME_PATTERN.fullmatch(name) else {}


class ChatCompletionsParser(StreamParser):
    """Parses chat completion chunks, including other services' variants of OpenAI's format."""

    _has_deltas = False

    @override
    def _read_plain_texts(self, events: Sequence[bytes], start_index: int) -> Sequence[str]:
        texts: list[str] = []
        decode = _text_only_chunk_decoder.decode
        try:
            for index in range(start_index, len(events)):
                text = decode(events[index]).choices[0].delta.content
                if not text:
                    break
                texts.append(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # not a plain event
        self._has_deltas = self._has_deltas or bool(texts)
        return texts

    @override
    def _parse_event(self, data: bytes) -> bool:
        if data.strip() == b"[DONE]":
            self.is_done = True
            if self.finish_reason is None:
                raise errors.early_end_error(self._context.endpoint)
            return False
        if data.strip() in _EMPTY_EVENTS:
            return False
        chunk = self._decode_event(data)
        if chunk.usage:
            self.usage = _parse_usage(chunk.usage)
        choice = next((choice for choice in chunk.choices or () if choice.is_first_choice), None)
        if choice is None or self.finish_reason is not None:
            return False
        has_content = self._add_any_content(choice)
        if self._stop_filter.has_found_stop_string:
            return True
        finish_reason = str(choice.finish_reason or "").lower()
        finish_reason = "" if finish_reason in _EMPTY_FINISH_REASONS else finish_reason
        if finish_reason in _FAILURE_REASONS:
            raise errors.early_end_error(self._context.endpoint)
        if finish_reason:
            self.finish_reason = _FINISH_REASONS.get(finish_reason, FinishReason.STOP)
        return bool(has_content or finish_reason)

    def _add_any_content(self, choice: "_Choice") -> bool:
        delta = choice.delta or choice.message or {"content": choice.text}
        text, reasoning = extract_text(delta), extract_reasoning(delta)
        calls = _find_tool_calls(delta)
        is_delta = delta is not choice.message
        if is_delta or not self._has_deltas:  # a message after deltas repeats the whole answer
            self._round_trip_fields.feed(delta)
            self._add_reasoning(reasoning)
            self._add_text(text)
        if is_delta:
            self._tool_call_parser.feed(calls)
            self._has_deltas = self._has_deltas or bool(text or reasoning)
        if choice.message:
            self._tool_call_parser.replace_calls(_find_tool_calls(choice.message))
        return bool(text or reasoning or calls)

    def _decode_event(self, data: bytes) -> "_Chunk":
        context = self._context
        try:
            chunk = _decode_chunk(data)
        except (msgspec.ValidationError, ValueError, RecursionError):
            problem = "an event that is not a chat chunk"
            raise errors.bad_response_error(context.endpoint, problem) from None
        if chunk.error:
            raise self._translate_reported_error(decode_event(data))
        if chunk.choices is None and chunk.usage is None:
            event = decode_event(data)
            llama_cpp_chunk = _read_llama_cpp_chunk(event)
            if llama_cpp_chunk is not None:
                self.is_done = self.is_done or llama_cpp_chunk.usage is not None  # without [DONE]
                return llama_cpp_chunk
            if _is_error_report(event):
                raise self._translate_reported_error(event)
        return chunk

    def _translate_reported_error(self, event: object) -> errors.RequestFailed:
        data = to_storable_text(json.dumps(event, ensure_ascii=False)).encode()
        context = self._context
        return errors.translate_error_event(context.endpoint, context.model, data, context.now)


def _find_tool_calls(delta: JsonObject) -> object:
    legacy_call = delta.get("function_call")
    return delta.get("tool_calls") or ([{"function": legacy_call}] if legacy_call else None)


class _TextOnlyDelta(msgspec.Struct):
    content: str
    refusal: None = None
    reasoning_content: None = None
    reasoning: None = None
    reasoning_details: None = None
    thinking: None = None
    thinking_blocks: None = None
    extra_content: None = None
    tool_calls: None = None
    function_call: None = None


class _TextOnlyChoice(msgspec.Struct):
    delta: _TextOnlyDelta
    index: Literal[0] = 0
    message: None = None
    text: None = None
    finish_reason: None = None


class _TextOnlyChunk(msgspec.Struct):
    """A chunk that contains only text, like almost all chunks."""

    choices: tuple[_TextOnlyChoice]
    usage: None = None
    error: None = None


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None  # of a whole response
    text: str | None = None  # of the completions API
    finish_reason: object = None
    index: object = None

    @property
    def is_first_choice(self) -> bool:
        return self.index is None or self.index in (0, "0", "")


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: object = None
    error: object = None


def _parse_usage(value: object) -> Usage:
    usage = value if isinstance(value, dict) else {}
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    cached_tokens = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")  # DeepSeek
    written_tokens = details.get("cache_write_tokens") or usage.get("cache_creation_input_tokens")
    return Usage(
        prompt_tokens=parse_token_count(usage.get("prompt_tokens")),
        cached_tokens=parse_token_count(cached_tokens),
        output_tokens=parse_token_count(usage.get("completion_tokens")),
        written_tokens=parse_token_count(written_tokens),  # OpenAI's, OpenRouter's, LiteLLM's
    )


def _read_llama_cpp_chunk(event: object) -> _Chunk | None:
    """Parse a chunk in the format that llama.cpp's server uses for prompts with images."""
    match event:
        case {"content": str(text), "stop": False}:
            return _Chunk([_Choice(text=text)])
        case {"content": str(text), "stop": True, **rest}:
            finish_reason = "length" if rest.get("stop_type") == "limit" else "stop"
            timings = rest.get("timings")
            cached_tokens = timings.get("cache_n") if isinstance(timings, dict) else 0
            usage = {
                "prompt_tokens": rest.get("tokens_evaluated"),
                "completion_tokens": rest.get("tokens_predicted"),
                "prompt_tokens_details": {"cached_tokens": cached_tokens},
            }
            return _Chunk([_Choice(text=text, finish_reason=finish_reason)], usage)
        case _:
            return None


def _is_error_report(event: object) -> bool:
    """Return whether a body is an error from an old vLLM, DashScope, FastAPI, or MiniMax."""
    match event:
        case {"base_resp": {"status_code": int(code)}} if code:
            return True
        case {"detail": detail} if detail:
            return True
        case {"message": str(text), **others} if text:
            has_error_code = others.get("code") is not None or others.get("type") is not None
            return has_error_code or others.get("object") == "error"
        case _:
            return False


def _decode_chunk(data: bytes) -> _Chunk:
    try:
        return _chunk_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.convert(decode_event(data), _Chunk)


_chunk_decoder = msgspec.json.Decoder(_Chunk)
_text_only_chunk_decoder = msgspec.json.Decoder(_TextOnlyChunk)


def describe_request(model: str, body: Mapping[str, object]) -> PromptDescription:
    """Describe a request whose messages the service itself renders as a prompt."""
    text = json.dumps(_shorten_images(body), ensure_ascii=False, indent=2)
    details = {"template": "the service's own, which renders the messages below"}
    return PromptDescription(model, details, text, is_rendered=False)


def _shorten_images(value: Any) -> Any:
    match value:
        case dict():
            return {
                name: _shorten_image(each) if name in {"url", "data"} else _shorten_images(each)
                for name, each in value.items()
            }
        case list() | tuple():
            return [_shorten_images(item) for item in value]
        case _:
            return value


def _shorten_image(data: object) -> object:
    if not isinstance(data, str) or len(data) <= _MAX_SHOWN_DATA_CHARS:
        return data
    return f"{data[:_MAX_SHOWN_DATA_CHARS]}… ({len(data)} characters)"
