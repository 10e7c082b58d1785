"""Decode server-sent events and parse streamed responses."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.deltas import RoundTripFields, ToolCallParser
from bot.backends.chat_completions.errors import Endpoint, RequestFailed
from bot.backends.chat_completions.reasoning import (
    ANY_FORMAT,
    ReasoningFormat,
    ReasoningParser,
    SeparatedText,
)
from bot.backends.chat_completions.stop_strings import StopStringFilter
from bot.chat.incoming import SurrogateJoiner
from bot.chat.prompt import Finish, FinishReason, Usage
from bot.value_class import value_class

MAX_EVENT_BYTES = 1024 * 1024
_DATA_PREFIX = b"data: "
_FIELD_PREFIXES = (b":", b"event:", b"id:", b"retry:", b"data")
_MAX_STRAY_BYTES = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_RESPONSE_BYTES = 32 * 1024 * 1024  # far more than any model writes in one answer
_EVENT_STREAM_PREFIXES = (b"data:", b"event:", b"id:", b":")
_MAX_TOKEN_COUNT = 10**9  # a larger count must be wrong


class SseParser:
    """Decodes the data of server-sent events (HTML standard 9.2.6); ignores names and ids."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._partial_event = b""
        self._is_at_stream_start = True
        self.stray_lines: list[bytes] = []
        """Lines outside of events, up to 64 KiB, such as an error in plain JSON."""
        self._stray_byte_count = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the completed events; raise ValueError if an event is too long."""
        data, carriage_return = self._partial_event + chunk, b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # may be the first half of CRLF
                data, carriage_return = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, incomplete_block = data.split(b"\n\n")
        self._partial_event = incomplete_block + carriage_return
        if max(map(len, (*blocks, incomplete_block))) > self._max_event_bytes:
            raise ValueError(f"an event of more than {self._max_event_bytes} bytes")
        events: list[bytes] = []
        for block in blocks:
            if block.startswith(_DATA_PREFIX) and b"\n" not in block:  # the usual case
                events.append(block[len(_DATA_PREFIX) :])
                self._is_at_stream_start = False
            elif block:
                events += self._parse_lines(block)
        return events

    def flush(self) -> list[bytes]:
        """Return the last event when the stream ends; many servers omit the blank line after it."""
        return self.feed(b"\n\n")

    def _parse_lines(self, block: bytes) -> list[bytes]:
        if self._is_at_stream_start:
            self._is_at_stream_start = False
            block = block.removeprefix(_BYTE_ORDER_MARK)
        data_lines: list[bytes] = []
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                data_lines.append(line[5:].removeprefix(b" "))
            elif (
                line
                and not line.startswith(_FIELD_PREFIXES)
                and self._stray_byte_count < _MAX_STRAY_BYTES
            ):
                self.stray_lines.append(line)
                self._stray_byte_count += len(line)
        return [b"\n".join(data_lines)] if data_lines else []


@value_class
class ResponseContext:
    endpoint: Endpoint
    model: str
    stop_strings: Sequence[str] = ()
    is_streamed: bool = True
    """Whether the body is a stream of events instead of one JSON object."""
    now: float = 0.0
    reasoning: ReasoningFormat = ANY_FORMAT


@value_class
class ParsedChunk:
    text: str
    reasoning: str = ""
    has_model_output: bool = False
    """Whether this chunk contains model output, not only a comment or an empty delta."""
    error: RequestFailed | None = None
    retracts_earlier_text: bool = False


class StreamParser(ABC):
    """Parses a response into text and reasoning, up to its end or the first stop string."""

    def __init__(self, context: ResponseContext) -> None:
        self.is_done = False
        self.finish_reason: FinishReason | None = None
        self.usage = Usage()
        self._context = context
        self._reasoning_parser = ReasoningParser(context.reasoning)
        self._stop_filter = StopStringFilter(context.stop_strings)
        self._sse_parser = SseParser()
        self._tool_call_parser = ToolCallParser()
        self._round_trip_fields = RoundTripFields()
        self._text_joiner = SurrogateJoiner()
        self._reasoning_joiner = SurrogateJoiner()
        self._whole_response_chunks: list[bytes] | None = None if context.is_streamed else []
        self._received_byte_count = 0
        self._has_events = False
        self._text_pieces: list[str] = []
        self._reasoning_pieces: list[str] = []
        self._retracts_earlier_text = False

    def feed(self, chunk: bytes) -> ParsedChunk:
        self._received_byte_count += len(chunk)
        if self._received_byte_count > MAX_RESPONSE_BYTES:
            return self._build_error_chunk(f"more than {MAX_RESPONSE_BYTES} bytes")
        if self._whole_response_chunks is not None:
            self._whole_response_chunks.append(chunk)
            return ParsedChunk("")
        try:
            events = self._sse_parser.feed(chunk)
        except ValueError as error:
            return self._build_error_chunk(str(error))
        self._has_events = self._has_events or bool(events)
        return self._parse_events(events)

    def parse_end(self) -> ParsedChunk:
        """Parse what remains at the end; report an incomplete answer as an error."""
        self.is_done = True
        try:
            last_events = (
                self._sse_parser.flush()
                if self._whole_response_chunks is None
                else self._split_whole_response(self._whole_response_chunks)
            )
        except ValueError as error:
            return self._build_error_chunk(str(error))
        parsed_chunk = self._parse_events(last_events)
        self._has_events = self._has_events or bool(last_events)
        if self.finish_reason is None and parsed_chunk.error is None:
            return self._parse_stray_lines(parsed_chunk)
        return parsed_chunk

    def _split_whole_response(self, chunks: Sequence[bytes]) -> Sequence[bytes]:
        body = b"".join(chunks).removeprefix(b"\xef\xbb\xbf")
        if body.startswith(_EVENT_STREAM_PREFIXES):
            return [*self._sse_parser.feed(body), *self._sse_parser.flush()]
        return [body]

    def _parse_stray_lines(self, parsed_chunk: ParsedChunk) -> ParsedChunk:
        """Parse lines outside of events: an error, or an answer in plain JSON."""
        lines, endpoint = self._sse_parser.stray_lines, self._context.endpoint
        if not lines:
            return replace(parsed_chunk, error=errors.early_end_error(endpoint))
        if lines[0].lstrip().startswith(b"<"):
            return replace(parsed_chunk, error=errors.bad_response_error(endpoint, "a web page"))
        body = lines[-1] if self._has_events else b"\n".join(lines)
        stray_chunk = self._parse_events([body.removeprefix(b"error:")])  # from older llama.cpp
        if not self._has_events and self.finish_reason is not None:
            return stray_chunk
        self.finish_reason = None  # after events, only an error matters
        return replace(parsed_chunk, error=stray_chunk.error or errors.early_end_error(endpoint))

    @property
    def final_event(self) -> Finish:
        calls = self._tool_call_parser.calls
        attached_fields = self._round_trip_fields.collected_fields if calls else {}
        return Finish(self.finish_reason or FinishReason.STOP, self.usage, calls, attached_fields)

    @property
    def unmatched_end_tag(self) -> str | None:
        return self._reasoning_parser.unmatched_end_tag

    @abstractmethod
    def _parse_event(self, data: bytes) -> bool:
        """Parse an event or a whole response; return whether it contains model output.

        Implementations pass text to `_add_text` and `_add_reasoning`, and set `is_done`,
        `finish_reason`, and `usage` when known. Raises `RequestFailed`.
        """

    def _read_plain_texts(self, events: Sequence[bytes], start_index: int) -> Sequence[str]:
        """Return the texts of consecutive events, from `start_index`, that contain only text."""
        return ()

    def _add_text(self, text: str) -> None:
        self._add_separated_text(self._reasoning_parser.feed(self._text_joiner.feed(text)))
        if self._stop_filter.has_found_stop_string:
            self.finish_reason, self.is_done = FinishReason.STOP, True

    def _add_separated_text(self, separated_text: SeparatedText) -> None:
        if separated_text.retracts_earlier_text:
            self._reasoning_pieces += self._text_pieces
            self._text_pieces.clear()
            self._stop_filter = StopStringFilter(self._context.stop_strings)
            self._retracts_earlier_text = True
        self._reasoning_pieces.append(separated_text.reasoning)
        self._text_pieces.append(self._stop_filter.feed(separated_text.answer))

    def _add_reasoning(self, text: str) -> None:
        self._reasoning_pieces.append(self._reasoning_joiner.feed(text))
        if text:
            self._reasoning_parser.record_separate_reasoning()

    def _build_error_chunk(self, problem: str) -> ParsedChunk:
        return ParsedChunk("", error=errors.bad_response_error(self._context.endpoint, problem))

    def _parse_events(self, events: Sequence[bytes]) -> ParsedChunk:
        has_model_output = False
        error: RequestFailed | None = None
        index = 0
        while index < len(events) and not self._stop_filter.has_found_stop_string:
            if self.finish_reason is None and (texts := self._read_plain_texts(events, index)):
                self._add_text("".join(texts))
                has_model_output = True
                index += len(texts)
                continue
            try:
                has_model_output = self._parse_event(events[index]) or has_model_output
            except RequestFailed as failed:
                error = failed
                break
            if self.is_done:
                break
            index += 1
        if error or self.finish_reason is not None:
            self._add_text(self._text_joiner.flush())
            self._reasoning_pieces.append(self._reasoning_joiner.flush())
            is_cut = self.finish_reason is not FinishReason.STOP
            has_tool_calls = bool(self._tool_call_parser.calls)
            parser = self._reasoning_parser
            self._add_separated_text(parser.flush(is_cut=is_cut, has_tool_calls=has_tool_calls))
            self._text_pieces.append(self._stop_filter.flush())
        text, reasoning = "".join(self._text_pieces), "".join(self._reasoning_pieces)
        chunk = ParsedChunk(text, reasoning, has_model_output, error, self._retracts_earlier_text)
        self._text_pieces.clear()
        self._reasoning_pieces.clear()
        self._retracts_earlier_text = False
        return chunk


def decode_event(data: bytes) -> object:
    """Decode an event's JSON, even with half a surrogate pair; raise ValueError if invalid."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data.decode(errors="replace"))


def parse_token_count(value: object) -> int:
    """Return a token count reported by a service, or 0 if it is implausible."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MAX_TOKEN_COUNT else 0
