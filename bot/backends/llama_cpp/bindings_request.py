"""Parse requests to the engine `llama_cpp_python`, and decode its tokens."""

import codecs
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

import msgspec

from bot.backends.chat_completions.stop_strings import StopStringFilter

_Bias: TypeAlias = float | bool  # llama.cpp's `false` bans a token


class InvalidRequest(ValueError):
    """The engine rejects this request; the message says what to change."""

    def __init__(self, message: str, error_type: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.error_type = error_type


class SamplingParameters(
    msgspec.Struct, rename={"temp": "temperature", "mirostat_mode": "mirostat"}
):
    temp: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 or less: no limit
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class CompletionRequest(SamplingParameters, kw_only=True):
    prompt: list[int]
    max_tokens: int | None = None
    stop: list[str] = []
    preserved_tokens: list[str] = []  # control tokens to render as text
    seed: int | None = None
    repeat_last_n: int = 64
    logit_bias: dict[str, _Bias] | list[tuple[int | str, _Bias]] = {}  # by token id or text
    ignore_eos: bool = False
    grammar: str | None = None  # GBNF
    json_schema: object = None


def parse_request(body: bytes) -> CompletionRequest:
    """Parse a request; raise `InvalidRequest` if a value is invalid."""
    try:
        return _decode_request(body)
    except msgspec.DecodeError as error:
        raise InvalidRequest(str(error)) from None


_decode_request = msgspec.json.Decoder(CompletionRequest, strict=False).decode  # 40.0 is an integer


class Detokenizer:
    def __init__(
        self, render_token: Callable[[int], bytes], *, end_ids: Container[int], stop: Sequence[str]
    ) -> None:
        self.has_ended = False
        self._render_token = render_token
        self._end_tokens = end_ids
        self._filter = StopStringFilter(stop)
        # A token may be part of a character: an emoji takes up to three tokens.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add_token(self, token: int) -> str:
        """Add a token and return the text that can no longer change; not allowed if `has_ended`."""
        if token in self._end_tokens:
            self.has_ended = True
            return self.flush()
        text = self._filter.feed(self._decoder.decode(self._render_token(token)))
        self.has_ended = self._filter.has_found_stop_string
        return text

    def flush(self) -> str:
        """Return the text still held back after the last token."""
        return self._filter.feed(self._decoder.decode(b"", final=True)) + self._filter.flush()
