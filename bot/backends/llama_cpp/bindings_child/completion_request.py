"""Parse a completion request with llama.cpp's parameters; none is silently ignored."""

import re
from typing import Annotated, TypeAlias

import msgspec

_Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Bias: TypeAlias = float | bool  # llama.cpp's `false` bans a token


class InvalidRequest(ValueError):
    """A request that the engine rejects; the text says what to change, `parameter` where."""

    def __init__(self, message: str, parameter: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter


class PromptTooLong(InvalidRequest):
    """The prompt fills the context: there is no space for an answer."""


class CompletionRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A prompt as token ids, limits, and sampling parameters with llama.cpp's defaults."""

    prompt: list[int]
    id_slot: int = -1  # any
    max_tokens: int | None = None
    stop: list[str] = []
    cache_prompt: bool = True
    n_cache_reuse: Annotated[int, msgspec.Meta(ge=0)] = 0  # tokens; 0 is off

    seed: int | None = None
    temperature: float = 0.8  # 0 or less is greedy
    dynatemp_range: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40  # 0 or less: all
    top_p: _Share = 0.95
    min_p: _Share = 0.05
    typical_p: _Share = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: _Share = 0.0
    xtc_threshold: _Share = 0.1
    repeat_penalty: _Positive = 1.0
    repeat_last_n: Annotated[int, msgspec.Meta(ge=-1)] = 64  # -1: all
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, _Bias] | list[tuple[int | str, _Bias]] = {}  # by a token's id, or a text
    ignore_eos: bool = False
    grammar: str | None = None  # GBNF
    json_schema: object = None

    preserved_tokens: list[str] = []  # control tokens to render as text

    # Parameters of llama.cpp's server that change nothing here.
    model: str = ""
    stream: bool = True
    stream_options: object = None


def parse_request(
    body: bytes, *, vocabulary_size: int, slot_tokens: int, slots: int
) -> CompletionRequest:
    """Parse and validate the body of a request.

    Raises:
        Refused: an unknown parameter, a wrong value, a token or a slot that does not exist.
        PromptTooLong: there is no space for an answer.
    """
    try:
        request = _decode(body)
    except msgspec.DecodeError as error:
        named = _PARAMETER.search(str(error))
        raise InvalidRequest(str(error), (named[1] or named[2]) if named else "") from None
    tokens = request.prompt
    if not tokens or not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
        raise InvalidRequest("the prompt is empty or holds an id that is no token", "prompt")
    if len(tokens) >= slot_tokens:
        raise PromptTooLong(f"the prompt has {len(tokens)} tokens of {slot_tokens}", "prompt")
    if not -1 <= request.id_slot < slots:
        raise InvalidRequest(f"there is no slot {request.id_slot}", "id_slot")
    return request


_decode = msgspec.json.Decoder(CompletionRequest, strict=False).decode  # 40.0 counts as an integer
_PARAMETER = re.compile(r"field `(\w+)`|at `\$\.(\w+)")
