"""Validate a preset's sampling parameters, and translate them for llama.cpp.

Names from OpenAI, Ollama, and LMDeploy are translated. Unknown names are errors, because the engine
would silently ignore them.
"""

from collections.abc import Mapping

from bot.backends.chat_completions import parameter_table
from bot.backends.chat_completions.parameter_table import (
    ParameterTable,
    ValueCheck,
    is_number,
    make_number_check,
    select_parameters_to_send,
)
from bot.backends.llama_cpp.engine import select_engine
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import OUTPUT_LIMIT_PARAMETERS, Prompt
from bot.texts.text import translatable

_RANDOM_SEED = 2**32 - 1  # llama.cpp's value for a random seed

_PARAMETER_REMEDIES = {
    "tfs_z": "llama.cpp no longer has this sampler; remove it from the preset",
    "penalize_newline": "llama.cpp no longer has this option; remove it from the preset",
    "num_ctx": "set the provider's CONTEXT_TOKENS, which applies to all presets",
    "stream": "write it next to 'parameters', not inside",
    "logprobs": "Troupe does not show probabilities; remove this parameter",
    "top_logprobs": "Troupe does not show probabilities; remove this parameter",
}
_STRING_LIST_CHECK = ValueCheck(parameter_table.is_string_list, translatable("a list of strings"))
_PARAMETER_ALIASES: Mapping[str, str] = {
    "repetition_penalty": "repeat_penalty",
    "random_seed": "seed",
    **dict.fromkeys(OUTPUT_LIMIT_PARAMETERS[1:], "max_tokens"),
}
_SERVER_ONLY_PARAMETERS = frozenset(
    {
        *("dynatemp_range", "dynatemp_exponent", "min_keep", "top_n_sigma", "samplers"),
        *("xtc_probability", "xtc_threshold", "adaptive_target", "adaptive_decay"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        "dry_sequence_breakers",
    }
)


def _make_integer_check(low: int, high: int = 2**31 - 1) -> ValueCheck:
    def is_integer_in_range(value: object) -> bool:
        return is_number(value) and low <= value <= high and value == int(value)

    if high < 10:  # few enough to list
        names = ", ".join(map(str, range(low, high + 1)))
        return ValueCheck(is_integer_in_range, translatable("one of {names}", names=names))
    return ValueCheck(is_integer_in_range, translatable("an integer of at least {low}", low=low))


def _is_token_bias(value: object) -> bool:
    return value is False or is_number(value)


def _is_bias_collection(value: object) -> bool:
    match value:
        case Mapping():
            return all(map(_is_token_bias, value.values()))
        case list() | tuple():
            return all(
                isinstance(pair, list | tuple) and len(pair) == 2 and _is_token_bias(pair[1])
                for pair in value
            )
        case _:
            return False


def _is_response_format(value: object) -> bool:
    match value:
        case {"type": "text" | "json_object"}:
            return True
        case {"type": "json_schema", "json_schema": {"schema": Mapping()}}:
            return True
        case _:
            return False


_BOOLEAN_CHECK = ValueCheck(lambda value: isinstance(value, bool), translatable("true or false"))
_PARAMETER_CHECKS: Mapping[str, ValueCheck] = {
    **dict.fromkeys(_SERVER_ONLY_PARAMETERS, make_number_check()),
    **dict.fromkeys(("dry_sequence_breakers", "samplers"), _STRING_LIST_CHECK),
    "temperature": make_number_check(0, 5),
    "top_p": make_number_check(0, 1),
    "top_k": _make_integer_check(-1),  # -1 and 0 mean no limit
    "min_p": make_number_check(0, 1),
    "typical_p": make_number_check(0, 1),
    "repeat_penalty": make_number_check(0, 10),
    "repeat_last_n": _make_integer_check(0),
    "presence_penalty": make_number_check(-2, 2),
    "frequency_penalty": make_number_check(-2, 2),
    "mirostat": _make_integer_check(0, 2),
    "mirostat_tau": make_number_check(0, 100),
    "mirostat_eta": make_number_check(0, 100),
    "seed": _make_integer_check(-1, 2**64),
    "logit_bias": ValueCheck(
        _is_bias_collection,
        translatable(
            "an object that maps token ids (or texts) to numbers, or to {no} to ban a token",
            no="false",
        ),
    ),
    "ignore_eos": _BOOLEAN_CHECK,
    "grammar": ValueCheck(
        lambda value: isinstance(value, str), translatable("a grammar in GBNF, as a string")
    ),
    "json_schema": ValueCheck(
        lambda value: isinstance(value, Mapping), translatable("a JSON schema")
    ),
    "response_format": ValueCheck(
        _is_response_format,
        translatable(
            "one of {forms}; json_schema needs a schema",
            forms='{"type": "text"}, "json_object", "json_schema"',
        ),
    ),
    "stop": parameter_table.STOP_CHECK,
    "max_tokens": _make_integer_check(-1),  # less than 1 means no limit
    "n": parameter_table.EQUALS_ONE_CHECK,
}
_PARAMETER_TABLE = ParameterTable(
    _PARAMETER_CHECKS,
    translatable("local models support {names}", names=", ".join(sorted(_PARAMETER_CHECKS))),
    _PARAMETER_ALIASES,
    _PARAMETER_REMEDIES,
)
BINDINGS_PARAMETERS = _PARAMETER_CHECKS.keys() - _SERVER_ONLY_PARAMETERS


def parameter_problems(settings: LlamaCppSettings, parameters: Mapping[str, object]) -> list[str]:
    return find_parameter_problems(parameters, select_engine(settings) or settings.engine)


def find_parameter_problems(
    parameters: Mapping[str, object], engine: str = "xllamacpp"
) -> list[str]:
    sent_parameters = select_parameters_to_send(parameters)
    problems: list[str] = [*_PARAMETER_TABLE.find_problems(sent_parameters)]
    if engine == "llama_cpp_python":
        problems += [
            translatable(
                "the engine llama_cpp_python has no parameter {name}; remove it", name=repr(name)
            )
            for name in sent_parameters
            if name in _SERVER_ONLY_PARAMETERS
        ]
    return problems


def to_sampling_parameters(prompt: Prompt, engine: str = "xllamacpp") -> dict[str, object]:
    """Return the parameters for the engine; raise `BackendUnavailable` if one is invalid."""
    parameter_table.raise_for_problems(find_parameter_problems(prompt.parameters, engine))
    sampling = {
        _PARAMETER_ALIASES.get(name, name): value
        for name, value in select_parameters_to_send(prompt.parameters).items()
    }
    for name in ("max_tokens", "stop", "n"):
        sampling.pop(name, None)
    sampling |= _to_json_schema_field(sampling.pop("response_format", None))
    seed = sampling.get("seed")
    if isinstance(seed, int) and seed >= _RANDOM_SEED:
        sampling["seed"] = seed % _RANDOM_SEED
    return sampling


def _to_json_schema_field(response_format: object) -> dict[str, object]:
    """Translate `response_format` to `json_schema`, the field that `/completions` accepts."""
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema}
        case {"type": "json_object", **other_fields}:
            return {"json_schema": other_fields.get("schema", {"type": "object"})}
        case _:
            return {}
