"""Validate the sampling parameters of a preset, and translate them for llama.cpp.

The names are those of llama.cpp's server; those of OpenAI, ollama and LMDeploy are translated. Any
other name would silently do nothing, so it is rejected.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeGuard

from bot.backends.chat_completions.stop_strings import STRING_TEMPLATE_PARAMETERS
from bot.backends.llama_cpp.engine import select_engine
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import OUTPUT_LIMIT_PARAMETERS, Prompt
from bot.errors import BackendUnavailable
from bot.texts.text import Text, joined, translatable
from bot.value_class import value_class

_FORMAT_PARAMETERS = ("grammar", "json_schema", "response_format")
_INVALID_PARAMETERS_NOTICE = translatable(
    "This preset has parameters that its model does not know; the bot's operator has to fix it."
)
_RANDOM_SEED = 2**32 - 1  # llama.cpp's 32-bit value for "any seed"

_REMEDIES = {
    "tfs_z": "llama.cpp has removed this sampler; remove it",
    "penalize_newline": "llama.cpp has removed this option; remove it",
    "num_ctx": "set CONTEXT_TOKENS of the provider, for all presets",
    "stream": "it belongs beside 'parameters', not inside",
    "logprobs": "a chat shows no probabilities; remove it",
    "top_logprobs": "a chat shows no probabilities; remove it",
}


def _number(low: float = -1e6, high: float = 1e6) -> "_Check":
    def is_valid(value: object) -> bool:
        return _is_number(value) and low <= value <= high

    span = translatable("a number from {low} to {high}", low=f"{low:g}", high=f"{high:g}")
    return _Check(is_valid, span if high < 1e6 else translatable("a number"))


def _integer(low: int, high: int = 2**31 - 1) -> "_Check":
    def is_valid(value: object) -> bool:
        return _is_number(value) and low <= value <= high and value == int(value)

    whole = translatable("an integer from {low}", low=low)
    bounded = translatable("an integer from {low} to {high}", low=low, high=high)
    return _Check(is_valid, bounded if high < 100 else whole)


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


def _is_response_format(value: object) -> bool:
    match value:
        case {"type": "text" | "json_object"}:
            return True
        case {"type": "json_schema", "json_schema": {"schema": Mapping()}}:
            return True
        case _:
            return False


@value_class
class _Check:
    is_valid: Callable[[object], bool]
    expected: Text


@value_class
class _Parameter:
    check: _Check
    aliases: tuple[str, ...] = ()
    in_bindings: bool = True
    """llama-cpp-python has it too."""


_PROBABILITY = _number(0, 1)
_FLAG = _Check(lambda value: isinstance(value, bool), translatable("true or false"))
_TEXTS = _Check(_are_texts, translatable("a list of texts"))

_PARAMETERS: Mapping[str, _Parameter] = {
    "temperature": _Parameter(_number(0, 5)),
    "dynatemp_range": _Parameter(_number(0, 5), in_bindings=False),
    "dynatemp_exponent": _Parameter(_number(0, 10), in_bindings=False),
    "top_p": _Parameter(_PROBABILITY),
    "top_k": _Parameter(_integer(-1)),  # -1 and 0 are all
    "min_p": _Parameter(_PROBABILITY),
    "min_keep": _Parameter(_integer(0), in_bindings=False),
    "typical_p": _Parameter(_PROBABILITY),
    "top_n_sigma": _Parameter(_number(-1, 100), in_bindings=False),
    "xtc_probability": _Parameter(_PROBABILITY, in_bindings=False),
    "xtc_threshold": _Parameter(_PROBABILITY, in_bindings=False),
    "repeat_penalty": _Parameter(_number(0, 10), ("repetition_penalty",)),
    "repeat_last_n": _Parameter(_integer(0)),
    "presence_penalty": _Parameter(_number(-2, 2)),
    "frequency_penalty": _Parameter(_number(-2, 2)),
    "dry_multiplier": _Parameter(_number(0, 100), in_bindings=False),
    "dry_base": _Parameter(_number(1, 100), in_bindings=False),
    "dry_allowed_length": _Parameter(_integer(0), in_bindings=False),
    "dry_penalty_last_n": _Parameter(_integer(0), in_bindings=False),
    "dry_sequence_breakers": _Parameter(_TEXTS, in_bindings=False),
    "mirostat": _Parameter(_integer(0, 2)),
    "mirostat_tau": _Parameter(_number(0, 100)),
    "mirostat_eta": _Parameter(_number(0, 100)),
    "adaptive_target": _Parameter(_number(-1, 1), in_bindings=False),
    "adaptive_decay": _Parameter(_number(0, 0.99), in_bindings=False),
    "samplers": _Parameter(_TEXTS, in_bindings=False),
    "seed": _Parameter(_integer(-1, 2**64), ("random_seed",)),
    "logit_bias": _Parameter(
        _Check(
            _are_biases,
            translatable(
                "an object of token ids (or texts) with numbers, or {no} to ban one", no="false"
            ),
        )
    ),
    "ignore_eos": _Parameter(_FLAG),
    "grammar": _Parameter(
        _Check(lambda value: isinstance(value, str), translatable("a text in GBNF"))
    ),
    "json_schema": _Parameter(
        _Check(lambda value: isinstance(value, Mapping), translatable("a JSON schema"))
    ),
    "response_format": _Parameter(
        _Check(
            _is_response_format,
            translatable(
                "one of {forms} with its schema",
                forms='{"type": "text"}, "json_object", "json_schema"',
            ),
        )
    ),
    "stop": _Parameter(
        _Check(
            lambda value: isinstance(value, str) or _are_texts(value),
            translatable("a text or a list of them"),
        )
    ),
    "max_tokens": _Parameter(_integer(-1), OUTPUT_LIMIT_PARAMETERS[1:]),  # below 1 is no limit
    "n": _Parameter(_Check(lambda value: value == 1, translatable("1, as a chat gets one answer"))),
}
BINDINGS_PARAMETERS = frozenset(
    name for name, parameter in _PARAMETERS.items() if parameter.in_bindings
)
_NAMES = {name: name for name in _PARAMETERS} | {
    other: name for name, parameter in _PARAMETERS.items() for other in parameter.aliases
}


def parameter_problems(settings: LlamaCppSettings, parameters: Mapping[str, object]) -> list[str]:
    """Return a line for each parameter that the engine of these settings would reject."""
    return find_problems(parameters, select_engine(settings) or settings.engine)


def find_problems(parameters: Mapping[str, object], engine: str = "xllamacpp") -> list[str]:
    """Describe the parameters that an engine would reject, a line each, with the nearest name."""
    given = _given_parameters(parameters)
    return [*_unknown(given), *_invalid_values(given, engine), *_duplicates(given)]


def to_sampling(prompt: Prompt, engine: str = "xllamacpp") -> dict[str, object]:
    """Return the engine's sampling parameters, without limits, stop strings and `n`.

    Raises:
        BackendUnavailable: a parameter is unknown or has an invalid value.
    """
    if wrong := find_problems(prompt.parameters, engine):
        raise BackendUnavailable(
            f"{'; '.join(wrong)} (parameters of the preset)", _INVALID_PARAMETERS_NOTICE
        )
    found = {
        _NAMES[name]: value
        for name, value in _given_parameters(prompt.parameters).items()
        if _NAMES[name] not in {"max_tokens", "stop", "n"}
    }
    found |= _schema(found.pop("response_format", None))
    seed = found.get("seed")
    if isinstance(seed, int) and seed >= _RANDOM_SEED:
        found["seed"] = seed % _RANDOM_SEED
    return found


def _given_parameters(parameters: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value
        for name, value in parameters.items()
        if name not in STRING_TEMPLATE_PARAMETERS and value is not None
    }


def _unknown(given: Mapping[str, object]) -> Iterator[str]:
    for name in given:
        if name not in _NAMES:
            remedy = _REMEDIES.get(name) or _suggestion(name)
            yield translatable("unknown parameter {name}; {hint}", name=repr(name), hint=remedy)


def _suggestion(name: str) -> Text:
    """Suggest the nearest parameter: TopP and top-p are top_p."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
    if near := difflib.get_close_matches(snake, _NAMES, n=1):
        return translatable("did you mean {name}?", name=repr(near[0]))
    names = ", ".join(sorted(_PARAMETERS))
    return translatable("local models have the parameters {names}", names=names)


def _invalid_values(given: Mapping[str, object], engine: str) -> Iterator[str]:
    for name, value in given.items():
        if name not in _NAMES:
            continue
        parameter = _PARAMETERS[_NAMES[name]]
        if not parameter.check.is_valid(value):
            yield translatable(
                "the parameter {name} must be {expected}, not {given}",
                name=repr(name),
                expected=parameter.check.expected,
                given=f"{value!r:.60}",
            )
        elif engine == "llama_cpp_python" and not parameter.in_bindings:
            yield translatable(
                "the engine llama_cpp_python has no parameter {name}; remove it", name=repr(name)
            )


def _duplicates(given: Mapping[str, object]) -> Iterator[str]:
    for name, parameter in _PARAMETERS.items():
        names = [each for each in (name, *parameter.aliases) if each in given]
        if len(names) > 1 and name != "max_tokens":  # the lowest of the limits counts
            yield translatable(
                "the parameters {names} mean the same; remove one",
                names=joined(map(repr, names), translatable(" and ")),
            )
    formats = [
        name for name in _FORMAT_PARAMETERS if name in given and given[name] != {"type": "text"}
    ]
    if len(formats) > 1:
        yield translatable(
            "the parameters {names} exclude each other; remove one",
            names=joined(map(repr, formats), translatable(" and ")),
        )


def _schema(response_format: object) -> dict[str, object]:
    """Translate `response_format` as `/chat/completions` does, since `/completions` lacks it."""
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema}
        case {"type": "json_object", **rest}:
            return {"json_schema": rest.get("schema", {"type": "object"})}
        case _:
            return {}
