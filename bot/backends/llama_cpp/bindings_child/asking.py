"""What may be asked of the engine: in llama.cpp's words, and none is silently ignored."""

import re
from typing import Annotated, TypeAlias

import msgspec

_Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Bias: TypeAlias = float | bool  # llama.cpp's `false` forbids a token


class Refused(ValueError):
    """This cannot be asked; the text says what to change, `parameter` where."""

    def __init__(self, what: str, parameter: str = "") -> None:
        super().__init__(what)
        self.parameter = parameter


class TooLong(Refused):
    """The prompt leaves no room for an answer."""


class Question(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A prompt in token ids and how its answer is to be chosen, with the defaults of llama.cpp."""

    prompt: list[int]
    id_slot: int = -1  # any
    max_tokens: int | None = None
    stop: list[str] = []
    cache_prompt: bool = True
    n_cache_reuse: Annotated[int, msgspec.Meta(ge=0)] = 0  # tokens; 0: what follows a gap is read

    seed: int | None = None
    temperature: float = 0.8  # 0 or less: the likeliest token
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

    preserved_tokens: list[str] = []  # control tokens that are to come as text

    # What a client of llama.cpp's server also says, and what changes nothing here.
    model: str = ""
    stream: bool = True
    stream_options: object = None


def read_question(
    body: bytes, *, vocabulary_size: int, sequence_tokens: int, slots: int
) -> Question:
    """Read a request's body.

    Raises:
        Refused: an unknown parameter, a wrong value, a token or a slot that does not exist.
        TooLong: there is no room for an answer.
    """
    try:
        question = _decode(body)
    except msgspec.DecodeError as error:
        named = _NAMED.search(str(error))
        raise Refused(str(error), (named[1] or named[2]) if named else "") from None
    tokens = question.prompt
    if not tokens or not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
        raise Refused("the prompt is empty or holds an id that is no token", "prompt")
    if len(tokens) >= sequence_tokens:
        raise TooLong(f"the prompt has {len(tokens)} tokens of {sequence_tokens}", "prompt")
    if not -1 <= question.id_slot < slots:
        raise Refused(f"there is no slot {question.id_slot}", "id_slot")
    return question


_decode = msgspec.json.Decoder(Question, strict=False).decode  # 40.0 is a whole number, too
_NAMED = re.compile(r"field `(\w+)`|at `\$\.(\w+)")
