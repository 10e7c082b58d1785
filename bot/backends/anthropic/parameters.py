"""Translate a preset's parameters to those of the Messages API, and reject what it does not have.

Presets use OpenAI's names. Reasoning is asked for by `reasoning_effort`, as with OpenAI, or by the
API's own `thinking`.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.chat_completions.stop_strings import STRING_TEMPLATE_PARAMETERS
from bot.chat.prompt import Prompt
from bot.errors import BackendUnavailable
from bot.texts.text import Text, joined, translatable

DEFAULT_MAX_TOKENS = 4096
"""For the answer of a preset without a limit of its own; the API demands one."""

_MIN_BUDGET_TOKENS = 1024
_ADAPTIVE_TOKENS = 8192  # what a model that decides itself may reason, beyond the answer
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_BUDGET_TOKENS = {"minimal": 1024, "low": 2048, "medium": 4096, "high": 16384}
_MAX_BUDGET_TOKENS = 32_000
# Models up to 4.5 take a budget of tokens for reasoning, and the beginning of an answer unless they
# reason; later ones take an effort, and no beginning.
_BUDGET_MODELS = re.compile(r"claude-(3\b|(opus|sonnet|haiku)-4(-[015])?(-\d{8}|-latest)?$)")
_LIMITS = ("max_tokens", "max_completion_tokens")
_NOTICE = translatable(
    "This preset has parameters that its model does not know; the bot's operator has to fix it."
)


def _number(low: float, high: float) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_stop(value: object) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, list | tuple) and all(isinstance(each, str) for each in texts)


def _is_thinking(value: object) -> bool:
    match value:
        case {"type": "enabled", "budget_tokens": int(tokens)}:
            return tokens >= _MIN_BUDGET_TOKENS
        case {"type": "adaptive" | "disabled"}:
            return True
        case _:
            return False


_FROM_0_TO_1 = translatable("a number from {low} to {high}", low=0, high=1)
_PARAMETERS: Mapping[str, tuple[Callable[[object], bool], Text]] = {
    "temperature": (_number(0, 1), _FROM_0_TO_1),
    "top_p": (_number(0, 1), _FROM_0_TO_1),
    "top_k": (_is_count, translatable("an integer from {low}", low=1)),
    "max_tokens": (_is_count, translatable("an integer from {low}", low=1)),
    "max_completion_tokens": (_is_count, translatable("an integer from {low}", low=1)),
    "stop": (_is_stop, translatable("a text or a list of them")),
    "n": (lambda value: value == 1, translatable("1, as a chat gets one answer")),
    "user": (lambda value: isinstance(value, str), translatable("a text")),
    "reasoning_effort": (
        lambda value: value in _EFFORTS,
        translatable("one of {names}", names=", ".join(_EFFORTS)),
    ),
    "thinking": (
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
    "output_config": (
        lambda value: isinstance(value, Mapping),
        translatable("an object {example}", example="{...}"),
    ),
    "metadata": (
        lambda value: isinstance(value, Mapping),
        translatable("an object {example}", example="{...}"),
    ),
    "service_tier": (lambda value: isinstance(value, str), translatable("a text")),
}
_SENT_UNCHANGED = frozenset({"temperature", "top_p", "top_k", "metadata", "service_tier"})


def parameter_problems(_settings: AnthropicSettings, parameters: Mapping[str, object]) -> list[str]:
    """Return a line for each parameter that the API does not have or take."""
    given = _given(parameters)
    return [*_unknown(given), *_wrong_values(given), *_conflicts(given)]


def to_parameters(prompt: Prompt, model: str) -> dict[str, object]:
    """Return the fields of a request that come from a prompt's parameters, `max_tokens` included.

    Stop strings are not among them.

    Raises:
        BackendUnavailable: the API would not understand the parameters.
    """
    given = _given(prompt.parameters)
    if problems := [*_unknown(given), *_wrong_values(given), *_conflicts(given)]:
        raise BackendUnavailable(f"{'; '.join(problems)} (parameters of the preset)", _NOTICE)
    fields = {name: value for name, value in given.items() if name in _SENT_UNCHANGED}
    if "user" in given:
        fields["metadata"] = {"user_id": given["user"]}
    thinking, output_config = _reasoning(given, model)
    if thinking:
        fields["thinking"] = thinking
    if output_config:
        fields["output_config"] = output_config
    limits = [prompt.max_output_tokens, *(given.get(name) for name in _LIMITS)]
    limit = min((each for each in limits if isinstance(each, int)), default=DEFAULT_MAX_TOKENS)
    fields["max_tokens"] = limit + _reasoning_tokens(thinking)
    return fields


def can_continue(prompt: Prompt, model: str) -> bool:
    """Return whether a model goes on behind the beginning of its answer."""
    thinking, _ = _reasoning(_given(prompt.parameters), model)
    reasons = thinking.get("type", "disabled") != "disabled"
    return bool(_BUDGET_MODELS.search(model)) and not reasons


def _given(parameters: Mapping[str, object]) -> dict[str, Any]:
    return {
        name: value
        for name, value in parameters.items()
        if name not in STRING_TEMPLATE_PARAMETERS and value is not None
    }


def _reasoning(given: Mapping[str, Any], model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields `thinking` and `output_config`, empty if they are not sent."""
    thinking, output_config = given.get("thinking", {}), given.get("output_config", {})
    effort = given.get("reasoning_effort", "none")
    if effort == "none":
        return thinking, output_config
    if _BUDGET_MODELS.search(model):
        budget = _BUDGET_TOKENS.get(effort, _MAX_BUDGET_TOKENS)
        return {"type": "enabled", "budget_tokens": budget}, output_config
    effort = "low" if effort == "minimal" else effort
    return {"type": "adaptive"}, {**output_config, "effort": effort}


def _reasoning_tokens(thinking: Mapping[str, Any]) -> int:
    """Return what to add to the limit of an answer, which covers the reasoning as well."""
    match thinking.get("type"):
        case "enabled":
            return int(thinking["budget_tokens"])
        case "adaptive":
            return _ADAPTIVE_TOKENS
        case _:
            return 0


def _unknown(given: Mapping[str, object]) -> Iterator[str]:
    for name in given:
        if name in _PARAMETERS:
            continue
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
        near = difflib.get_close_matches(snake, _PARAMETERS, n=1)
        known = translatable("the Messages API has {names}", names=", ".join(sorted(_PARAMETERS)))
        hint = translatable("did you mean {name}?", name=repr(near[0])) if near else known
        yield translatable("unknown parameter {name}; {hint}", name=repr(name), hint=hint)


def _wrong_values(given: Mapping[str, object]) -> Iterator[str]:
    for name, value in given.items():
        if name in _PARAMETERS:
            is_valid, wanted = _PARAMETERS[name]
            if not is_valid(value):
                yield translatable(
                    "the parameter {name} must be {expected}, not {given}",
                    name=repr(name),
                    expected=wanted,
                    given=f"{value!r:.60}",
                )


def _same(*names: str) -> Text:
    return translatable(
        "the parameters {names} mean the same; remove one",
        names=joined(map(repr, names), translatable(" and ")),
    )


def _conflicts(given: Mapping[str, object]) -> Iterator[str]:
    reasons = [name for name in ("thinking", "reasoning_effort") if name in given]
    if len(reasons) == 2:
        yield _same("thinking", "reasoning_effort")
    if "user" in given and "metadata" in given:
        yield _same("user", "metadata")
    thinks = given.get("thinking") not in (None, {"type": "disabled"})
    if thinks or given.get("reasoning_effort", "none") != "none":
        sampling = [name for name in ("temperature", "top_k") if given.get(name, 1) != 1]
        for name in sampling:
            yield translatable(
                "the parameters {names} exclude each other; remove one",
                names=joined([repr(name), repr(reasons[0])], translatable(" and ")),
            )
