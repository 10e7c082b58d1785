"""What a preset may say about sampling on this machine, under which names, with which values.

The names are llama.cpp's, as its server takes them. Presets also come with OpenAI's, ollama's and
LMDeploy's, which are translated. A name that is none of these would do nothing without a word, so
it is refused.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from bot.backends.chat_completions.stop_strings import STRING_TEMPLATE_PARAMETERS
from bot.backends.llama_cpp.engines.engine import chosen
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import Prompt
from bot.errors import BackendUnavailable

_LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict", "num_predict")
_FORMS = ("grammar", "json_schema", "response_format")  # how an answer must be written
_NOT_TAKEN = "This preset has parameters that its model does not know; an operator has to mend it."
_RANDOM_SEED = 2**32 - 1  # what llama.cpp, which counts seeds in 32 bits, takes for "any"

_REMEDIES = {
    "tfs_z": "llama.cpp samples so no more; take it out",
    "penalize_newline": "llama.cpp spares no signs any more; take it out",
    "num_ctx": "the provider's setting CONTEXT_TOKENS says it for all presets",
    "stream": "it belongs beside 'parameters', not into it",
    "logprobs": "a chat shows no probabilities; take it out",
    "top_logprobs": "a chat shows no probabilities; take it out",
}


def _number(low: float = -1e6, high: float = 1e6) -> "_Takes":
    def is_fine(value: object) -> bool:
        return _is_number(value) and low <= value <= high

    return _Takes(is_fine, f"a number from {low:g} to {high:g}" if high < 1e6 else "a number")


def _whole(low: int, high: int = 2**31 - 1) -> "_Takes":
    def is_fine(value: object) -> bool:
        return _is_number(value) and low <= value <= high and value == int(value)

    return _Takes(is_fine, f"a whole number from {low}" + (f" to {high}" if high < 100 else ""))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bias(value: object) -> bool:
    return value is False or _is_number(value)


def _are_biases(value: object) -> bool:
    match value:
        case Mapping():
            return all(map(_is_bias, value.values()))
        case list() | tuple():
            return all(
                isinstance(pair, list | tuple) and len(pair) == 2 and _is_bias(pair[1])
                for pair in value
            )
        case _:
            return False


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _is_form(value: object) -> bool:
    match value:
        case {"type": "text" | "json_object"}:
            return True
        case {"type": "json_schema", "json_schema": {"schema": Mapping()}}:
            return True
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _Takes:
    is_fine: Callable[[object], bool]
    wanted: str


@dataclass(frozen=True, slots=True)
class _Parameter:
    takes: _Takes
    also: tuple[str, ...] = ()  # what others call it
    bindings: bool = True  # whether llama-cpp-python's samplers have it, too


_SHARE = _number(0, 1)
_FLAG = _Takes(lambda value: isinstance(value, bool), "true or false")
_TEXTS = _Takes(_are_texts, "a list of texts")

_TABLE: Mapping[str, _Parameter] = {
    "temperature": _Parameter(_number(0, 5)),
    "dynatemp_range": _Parameter(_number(0, 5)),
    "dynatemp_exponent": _Parameter(_number(0, 10)),
    "top_p": _Parameter(_SHARE),
    "top_k": _Parameter(_whole(-1)),  # -1 and 0: all
    "min_p": _Parameter(_SHARE),
    "min_keep": _Parameter(_whole(0), bindings=False),
    "typical_p": _Parameter(_SHARE),
    "top_n_sigma": _Parameter(_number(-1, 100)),
    "xtc_probability": _Parameter(_SHARE),
    "xtc_threshold": _Parameter(_SHARE),
    "repeat_penalty": _Parameter(_number(0, 10), ("repetition_penalty",)),
    "repeat_last_n": _Parameter(_whole(0)),
    "presence_penalty": _Parameter(_number(-2, 2)),
    "frequency_penalty": _Parameter(_number(-2, 2)),
    "dry_multiplier": _Parameter(_number(0, 100), bindings=False),
    "dry_base": _Parameter(_number(1, 100), bindings=False),
    "dry_allowed_length": _Parameter(_whole(0), bindings=False),
    "dry_penalty_last_n": _Parameter(_whole(0), bindings=False),
    "dry_sequence_breakers": _Parameter(_TEXTS, bindings=False),
    "mirostat": _Parameter(_whole(0, 2), bindings=False),
    "mirostat_tau": _Parameter(_number(0, 100), bindings=False),
    "mirostat_eta": _Parameter(_number(0, 100), bindings=False),
    "adaptive_target": _Parameter(_number(-1, 1), bindings=False),
    "adaptive_decay": _Parameter(_number(0, 0.99), bindings=False),
    "samplers": _Parameter(_TEXTS, bindings=False),
    "seed": _Parameter(_whole(-1, 2**64), ("random_seed",)),
    "logit_bias": _Parameter(
        _Takes(_are_biases, "an object of token ids (or texts) with numbers, or false to ban one")
    ),
    "ignore_eos": _Parameter(_FLAG),
    "grammar": _Parameter(_Takes(lambda value: isinstance(value, str), "a text in GBNF")),
    "json_schema": _Parameter(_Takes(lambda value: isinstance(value, Mapping), "a JSON schema")),
    "response_format": _Parameter(
        _Takes(_is_form, 'one of {"type": "text"}, "json_object", "json_schema" with its schema')
    ),
    "stop": _Parameter(
        _Takes(
            lambda value: isinstance(value, str) or _are_texts(value), "a text or a list of them"
        )
    ),
    "max_tokens": _Parameter(_whole(-1), _LIMITS[1:]),  # below 1: no limit of its own
    "n": _Parameter(_Takes(lambda value: value == 1, "1, as a chat gets one answer")),
}
_NAMES = {name: name for name in _TABLE} | {
    other: name for name, parameter in _TABLE.items() for other in parameter.also
}


def parameter_problems(settings: LlamaCppSettings, parameters: Mapping[str, object]) -> list[str]:
    """Return a line for each parameter that the engine of these settings does not understand."""
    return problems(parameters, chosen(settings) or settings.engine)


def problems(parameters: Mapping[str, object], engine: str = "xllamacpp") -> list[str]:
    """What an engine would not understand, a line each: by name, with the nearest known one."""
    given = _given(parameters)
    return [*_unknown(given), *_wrong_values(given, engine), *_said_twice(given)]


def to_sampling(prompt: Prompt, engine: str = "xllamacpp") -> dict[str, object]:
    """What the engine's samplers are set to; limits, stops and `n` are not in it.

    Raises:
        BackendUnavailable: the engine would not understand the parameters.
    """
    if wrong := problems(prompt.parameters, engine):
        raise BackendUnavailable(f"{'; '.join(wrong)} (parameters of the preset)", _NOT_TAKEN)
    found = {
        _NAMES[name]: value
        for name, value in _given(prompt.parameters).items()
        if _NAMES[name] not in {"max_tokens", "stop", "n"}
    }
    found |= _schema(found.pop("response_format", None))
    seed = found.get("seed")
    if isinstance(seed, int) and seed >= _RANDOM_SEED:
        found["seed"] = seed % _RANDOM_SEED
    return found


def output_limit(prompt: Prompt) -> int | None:
    """The lowest limit of an answer's tokens that the preset gives in any of its names."""
    limits = [prompt.max_output_tokens, *(prompt.parameters.get(name) for name in _LIMITS)]
    return min((each for each in limits if isinstance(each, int) and each > 0), default=None)


def _given(parameters: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value
        for name, value in parameters.items()
        if name not in STRING_TEMPLATE_PARAMETERS and value is not None
    }


def _unknown(given: Mapping[str, object]) -> Iterator[str]:
    for name in given:
        if name not in _NAMES:
            remedy = _REMEDIES.get(name) or _nearest(name)
            yield f"unknown parameter {name!r}; {remedy}"


def _nearest(name: str) -> str:
    """TopP, top-p -> top_p."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
    if near := difflib.get_close_matches(snake, _NAMES, n=1):
        return f"did you mean {near[0]!r}?"
    return f"a model on this machine knows {', '.join(sorted(_TABLE))}"


def _wrong_values(given: Mapping[str, object], engine: str) -> Iterator[str]:
    for name, value in given.items():
        if name not in _NAMES:
            continue
        parameter = _TABLE[_NAMES[name]]
        if not parameter.takes.is_fine(value):
            yield f"the parameter {name!r} must be {parameter.takes.wanted}, not {value!r:.60}"
        elif engine == "llama_cpp_python" and not parameter.bindings:
            yield f"the engine llama_cpp_python has no parameter {name!r}; take it out"


def _said_twice(given: Mapping[str, object]) -> Iterator[str]:
    for name, parameter in _TABLE.items():
        names = [each for each in (name, *parameter.also) if each in given]
        if len(names) > 1 and name != "max_tokens":  # of limits, the lowest counts
            yield f"the parameters {' and '.join(map(repr, names))} mean the same; take one out"
    forms = [name for name in _FORMS if name in given and given[name] != {"type": "text"}]
    if len(forms) > 1:
        yield f"the parameters {' and '.join(map(repr, forms))} exclude each other; take one out"


def _schema(response_format: object) -> dict[str, object]:
    """What `/chat/completions` makes of `response_format`, which `/completions` does not know."""
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema}
        case {"type": "json_object", **rest}:
            return {"json_schema": rest.get("schema", {"type": "object"})}
        case _:
            return {}
