"""OpenAI's chat completions on the wire: a prompt goes out as JSON, an answer comes as events."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from bot.backends.chat_completions import errors as faults
from bot.backends.chat_completions.errors import Endpoint, Fault
from bot.backends.chat_completions.reasoning import ANY, Cut, Thinking, Thoughts
from bot.backends.chat_completions.sse import EventStream, EventTooLong
from bot.backends.chat_completions.stop_strings import (
    STRING_TEMPLATE_PARAMETERS,
    StopStringFilter,
    stop_strings_of,
)
from bot.chat.prompt import FinishReason, Image, Message, Prompt, Usage
from bot.errors import BackendUnavailable

MAX_ANSWER_BYTES = 32 * 1024 * 1024  # on the wire; far beyond what any model writes in one answer

_WITH_USAGE = {"include_usage": True}
_MAX_STOPS = 4  # OpenAI refuses more
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # all that OpenAI takes; other names go unsaid
_REASONS = {"length": FinishReason.LENGTH, "content_filter": FinishReason.FILTERED}
_NO_REASONS = frozenset({"error", "insufficient_system_resource"})  # OpenRouter, DeepSeek: gave up


def to_wire(prompt: Prompt, model: str, *, names: bool = False) -> bytes:
    """Write the request's body; with `names` it tells who said each message as far as it can.

    Parameters go in as the preset gives them; one that is null is left out, also of what we add.

    Raises:
        BackendUnavailable: the parameters ask for several answers.
    """
    body = {"stream_options": _WITH_USAGE, **parameters(prompt)}
    if prompt.max_output_tokens is not None:
        name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        given = body.get(name)
        asked = given if isinstance(given, int) else prompt.max_output_tokens
        body[name] = min(asked, prompt.max_output_tokens)
    if stop := stop_strings_of(prompt):
        body["stop"] = stop[:_MAX_STOPS]  # the others are found in the answer
    messages = [
        {"role": each.role, "content": _content(each), **(_named(each.name) if names else {})}
        for each in prompt.messages
    ]
    given = {name: value for name, value in body.items() if value is not None}
    return streamed({**given, "model": model, "messages": messages})


def _content(message: Message) -> str | list[dict[str, object]]:
    if not message.parts:
        return message.content
    return [_part(part) for part in message.parts]


def _part(part: str | Image) -> dict[str, object]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def parameters(prompt: Prompt) -> dict[str, object]:
    """The preset's parameters, without those that are for us.

    Raises:
        BackendUnavailable: they ask for several answers.
    """
    if prompt.parameters.get("n") not in {None, 1}:
        raise BackendUnavailable(
            f"the parameter n is {prompt.parameters['n']!r}; a chat gets one answer: take it out",
            "This preset asks for several answers at once; an operator has to mend it.",
        )
    return {
        name: each
        for name, each in prompt.parameters.items()
        if name not in STRING_TEMPLATE_PARAMETERS
    }


def _named(label: str | None) -> dict[str, str]:
    written = (label or "").replace(" ", "_").replace("#", "-")
    return {"name": written} if _NAME.fullmatch(written) else {}


def streamed(body: Mapping[str, object]) -> bytes:
    """Write a body whose answer is to come as a stream."""
    return msgspec.json.encode({**body, "stream": True})


@dataclass(frozen=True, slots=True)
class ParsedChunk:
    """What some bytes of an answer brought."""

    text: str
    thought: str = ""
    progress: bool = False  # the model did something; comments and empty deltas are not
    fault: Fault | None = None  # what came after it


class Reading:
    """An answer while it comes in, as events or, from a server that cannot stream, in one piece."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        stop: Sequence[str],
        streamed: bool,
        now: float,
        thinking: Thinking = ANY,
    ) -> None:
        self.done = False  # nothing of interest follows
        self.reason: FinishReason | None = None
        self.usage = Usage()
        self._endpoint = endpoint
        self._model = model
        self._now = now
        self._thoughts = Thoughts(thinking)
        self._stops = StopStringFilter(stop)
        self._events = EventStream()
        self._whole: list[bytes] | None = None if streamed else []
        self._bytes = 0

    def feed(self, chunk: bytes) -> ParsedChunk:
        """Take the next bytes."""
        self._bytes += len(chunk)
        if self._bytes > MAX_ANSWER_BYTES:
            return self._failed(f"more than {MAX_ANSWER_BYTES} bytes")
        if self._whole is not None:
            self._whole.append(chunk)
            return ParsedChunk("")
        try:
            events = self._events.feed(chunk)
        except EventTooLong as error:
            return self._failed(str(error))
        return self._take(events)

    def end(self) -> ParsedChunk:
        """Say that the connection has ended; an answer that had not is a fault."""
        self.done = True
        last = self._events.end() if self._whole is None else [b"".join(self._whole)]
        heard = self._take(last)
        if self.reason is None and heard.fault is None:
            return replace(heard, fault=faults.cut(self._endpoint))
        return heard

    def _failed(self, what: str) -> ParsedChunk:
        return ParsedChunk("", fault=faults.garbled(self._endpoint, what))

    def _take(self, events: list[bytes]) -> ParsedChunk:
        text: list[str] = []
        thought: list[str] = []
        progress = False
        fault: Fault | None = None
        for data in events:
            if data.strip() == b"[DONE]":
                self.done = True
                fault = faults.cut(self._endpoint) if self.reason is None else None
                break
            try:
                progress = self._take_chunk(data, text, thought) or progress
            except Fault as found:
                fault = found
                break
            if self.done:
                break
        if fault or self.reason is not None:
            self._say(self._thoughts.rest(), text, thought)
            text.append(self._stops.flush())
        return ParsedChunk("".join(text), "".join(thought), progress, fault)

    def _take_chunk(self, data: bytes, text: list[str], thought: list[str]) -> bool:
        """Append what it says to `text`, what it thinks to `thought`; True if it did something."""
        if not data.strip():
            return False
        chunk = self._decoded(data)
        if chunk.usage:
            self.usage = chunk.usage.counted()
        if not chunk.choices or self.reason is not None:
            return False
        choice = chunk.choices[0]
        delta = choice.delta or choice.message or _Delta(choice.text)
        said = delta.text()
        thought.append(delta.thought())
        self._say(self._thoughts.feed(said), text, thought)
        if self._stops.hit:
            self.reason, self.done = FinishReason.STOP, True
            return True
        if choice.finish_reason in _NO_REASONS:
            raise faults.cut(self._endpoint)
        if choice.finish_reason:
            self.reason = _REASONS.get(choice.finish_reason, FinishReason.STOP)
        return bool(said or delta.thinks() or choice.finish_reason)

    def _decoded(self, data: bytes) -> "_Chunk":
        """Read an event; raises `Fault` for one that is an error or no chunk."""
        try:
            data, chunk = _read_chunk(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise faults.garbled(self._endpoint, "an event that is no chunk of an answer") from None
        if chunk.error:
            raise faults.from_event(self._endpoint, self._model, data, self._now)
        if chunk.choices is None and chunk.usage is None and (own := _decode_own_words(data)):
            self.done = own.stop  # no [DONE] follows
            return own.as_openai()
        return chunk

    def _say(self, cut: Cut, text: list[str], thought: list[str]) -> None:
        thought.append(cut.thought)
        text.append(self._stops.feed(cut.said))


class _Part(msgspec.Struct):
    text: str | None = None
    thinking: "str | list[_Part] | None" = None

    def thought(self) -> str:
        if isinstance(self.thinking, list):
            return "".join(part.text or "" for part in self.thinking)
        return self.thinking or ""


class _Delta(msgspec.Struct):
    content: str | list[_Part] | None = None  # Mistral's reasoning models send parts
    reasoning_content: object = None
    reasoning: object = None
    tool_calls: object = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""

    def thought(self) -> str:
        given = (self.reasoning_content, self.reasoning)
        parts = self.content if isinstance(self.content, list) else ()
        told = next((each for each in given if isinstance(each, str)), "")
        return told + "".join(part.thought() for part in parts)

    def thinks(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None  # where a whole answer has it
    text: str | None = None  # where the prompt was no messages
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek's name

    def counted(self) -> Usage:
        details = self.prompt_tokens_details or _PromptDetails()
        return Usage(
            prompt_tokens=_not_negative(self.prompt_tokens),
            cached_tokens=_not_negative(details.cached_tokens or self.prompt_cache_hit_tokens),
            output_tokens=_not_negative(self.completion_tokens),
        )


def _not_negative(given: int | None) -> int:
    return max(0, given or 0)  # some say -1 for what they have not counted


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


class _Timings(msgspec.Struct):
    cache_n: int = 0


class _OwnWords(msgspec.Struct):
    """A chunk as llama.cpp's server says it where it reads images: not in OpenAI's form."""

    content: str
    stop: bool
    stop_type: str = ""  # "limit", or what else ended the answer
    tokens_evaluated: int = 0
    tokens_predicted: int = 0
    timings: _Timings = msgspec.field(default_factory=_Timings)

    def as_openai(self) -> _Chunk:
        if not self.stop:
            return _Chunk([_Choice(text=self.content)])
        reason = "length" if self.stop_type == "limit" else "stop"
        cached = _PromptDetails(self.timings.cache_n)
        usage = _Usage(self.tokens_evaluated, self.tokens_predicted, cached)
        return _Chunk([_Choice(text=self.content, finish_reason=reason)], usage)


def _decode_own_words(data: bytes) -> _OwnWords | None:
    try:
        return _own_words(data)
    except msgspec.DecodeError:
        return None  # some services send chunks with nothing in them


def _read_chunk(data: bytes) -> tuple[bytes, _Chunk]:
    """Read an event, if need be mended, and give both."""
    try:
        return data, _decode_chunk(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        data = _with_whole_signs(data)
        return data, _decode_chunk(data)


def _with_whole_signs(data: bytes) -> bytes:
    """Put U+FFFD for half a character: a server that counts bytes or UTF-16 cuts emoji in two."""
    text = json.dumps(json.loads(data.decode(errors="replace")), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_own_words = msgspec.json.Decoder(_OwnWords).decode
