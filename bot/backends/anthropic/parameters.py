"""Translate a preset's OpenAI-style parameters to those of the Messages API."""

import re
from collections.abc import Mapping
from typing import Any

from bot.backends.chat_completions import parameter_table
from bot.backends.chat_completions.parameter_table import Check, ParameterTable, given_parameters
from bot.chat.prompt import Prompt
from bot.texts.text import translatable

DEFAULT_MAX_TOKENS = 4096

_MIN_BUDGET_TOKENS = 1024
_ADAPTIVE_TOKENS = 8192  # what a model that decides itself may reason, beyond the answer
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_BUDGET_TOKENS = {"minimal": 1024, "low": 2048, "medium": 4096, "high": 16384}
_MAX_BUDGET_TOKENS = 32_000
# Models up to 4.5 take a budget of tokens for reasoning, and the beginning of an answer unless they
# reason; later ones take an effort, and no beginning.
_BUDGET_MODELS = re.compile(r"claude-(3\b|(opus|sonnet|haiku)-4(-[015])?(-\d{8}|-latest)?$)")
_LIMITS = ("max_tokens", "max_completion_tokens")
_SENT_UNCHANGED = frozenset({"temperature", "top_p", "top_k"})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_thinking(value: object) -> bool:
    match value:
        case {"type": "enabled", "budget_tokens": int(tokens)}:
            return tokens >= _MIN_BUDGET_TOKENS
        case {"type": "adaptive" | "disabled"}:
            return True
        case _:
            return False


_COUNT = Check(_is_count, translatable("an integer from {low}", low=1))
_CHECKS: Mapping[str, Check] = {
    "temperature": parameter_table.number(0, 1),
    "top_p": parameter_table.number(0, 1),
    "top_k": _COUNT,
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "stop": parameter_table.STOP,
    "n": parameter_table.ONE,
    "user": Check(lambda value: isinstance(value, str), translatable("a text")),
    "reasoning_effort": Check(
        lambda value: value in _EFFORTS, translatable("one of {names}", names=", ".join(_EFFORTS))
    ),
    "thinking": Check(
        _is_thinking,
        translatable(
            "{forms} with at least {tokens} tokens",
            forms=(
                '{"type": "adaptive"}, {"type": "disabled"},'
                ' {"type": "enabled", "budget_tokens": N}'
            ),
            tokens=_MIN_BUDGET_TOKENS,
        ),
    ),
}
_TABLE = ParameterTable(
    _CHECKS, translatable("the Messages API has {names}", names=", ".join(sorted(_CHECKS)))
)


def parameter_problems(_settings: object, parameters: Mapping[str, object]) -> list[str]:
    """Return a line for each parameter that the API does not support."""
    return [*_TABLE.find_problems(given_parameters(parameters))]


def to_parameters(prompt: Prompt, model: str) -> dict[str, object]:
    """Return a request's fields; raises `BackendUnavailable` for unknown parameters."""
    parameter_table.refuse(parameter_problems(None, prompt.parameters))
    given = given_parameters(prompt.parameters)
    fields = {name: value for name, value in given.items() if name in _SENT_UNCHANGED}
    if "user" in given:
        fields["metadata"] = {"user_id": given["user"]}
    thinking, effort = _reasoning(given, model)
    if thinking:
        fields["thinking"] = thinking
    if effort:
        fields["output_config"] = {"effort": effort}
    limits = [prompt.max_output_tokens, *(given.get(name) for name in _LIMITS)]
    limit = min((each for each in limits if isinstance(each, int)), default=DEFAULT_MAX_TOKENS)
    fields["max_tokens"] = limit + _reasoning_tokens(thinking)
    return fields


def can_continue(prompt: Prompt, model: str) -> bool:
    """Return whether a model continues a prefilled answer."""
    thinking, _ = _reasoning(given_parameters(prompt.parameters), model)
    reasons = thinking.get("type", "disabled") != "disabled"
    return bool(_BUDGET_MODELS.search(model)) and not reasons


def _reasoning(given: Mapping[str, Any], model: str) -> tuple[Mapping[str, Any], str | None]:
    """Return the `thinking` field, empty if omitted, and the effort, if any."""
    effort = given.get("reasoning_effort", "none")
    if effort == "none":
        return given.get("thinking", {}), None
    if _BUDGET_MODELS.search(model):
        budget = _BUDGET_TOKENS.get(effort, _MAX_BUDGET_TOKENS)
        return {"type": "enabled", "budget_tokens": budget}, None
    return {"type": "adaptive"}, "low" if effort == "minimal" else effort


def _reasoning_tokens(thinking: Mapping[str, Any]) -> int:
    match thinking.get("type"):
        case "enabled":
            return int(thinking["budget_tokens"])
        case "adaptive":
            return _ADAPTIVE_TOKENS
        case _:
            return 0
