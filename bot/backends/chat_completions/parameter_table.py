"""Check presets' parameters for backends that would silently ignore unknown ones."""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from typing import Any, TypeGuard

from bot.backends.chat_completions.stop_strings import UNSENT_TEMPLATE_PARAMETERS
from bot.errors import BackendUnavailable
from bot.texts.text import Text, translatable
from bot.value_class import value_class


@value_class
class ValueCheck:
    accepts_value: Callable[[object], bool]
    expected_value: Text


def make_number_check(low: float = -1e6, high: float = 1e6) -> ValueCheck:
    expected_value = translatable("a number from {low} to {high}", low=f"{low:g}", high=f"{high:g}")
    return ValueCheck(
        lambda value: is_number(value) and low <= value <= high,
        expected_value if high < 1e6 else translatable("a number"),
    )


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_string_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


STOP_CHECK = ValueCheck(
    lambda value: isinstance(value, str) or is_string_list(value),
    translatable("a string or a list of strings"),
)
EQUALS_ONE_CHECK = ValueCheck(
    lambda value: value == 1, translatable("1 (a chat gets only one answer)")
)


@value_class
class ParameterTable:
    """The parameters that an API accepts, with a check for each value."""

    checks: Mapping[str, ValueCheck]
    names_hint: Text
    aliases: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)

    def find_problems(self, parameters: Mapping[str, object]) -> Iterator[Text]:
        for name, value in parameters.items():
            value_check = self.checks.get(self.aliases.get(name, name))
            if value_check is None:
                hint = self.remedies.get(name) or self._suggest_name(name)
                yield translatable("unknown parameter {name}; {hint}", name=repr(name), hint=hint)
            elif not value_check.accepts_value(value):
                yield translatable(
                    "the parameter {name} must be {expected}, not {given}",
                    name=repr(name),
                    expected=value_check.expected_value,
                    given=f"{value!r:.60}",
                )

    def _suggest_name(self, name: str) -> Text:
        snake_case_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
        names = difflib.get_close_matches(snake_case_name, [*self.checks, *self.aliases], n=1)
        return (
            translatable("did you mean {name}?", name=repr(names[0])) if names else self.names_hint
        )


def raise_for_problems(problems: Collection[str]) -> None:
    """Raise `BackendUnavailable` with the problems of a preset's parameters, if there are any."""
    if problems:
        raise BackendUnavailable(
            f"{'; '.join(problems)} (in the preset's parameters)",
            translatable(
                "This preset has parameters that its model does not support; the bot's operator has"
                " to fix it."
            ),
        )


def select_parameters_to_send(parameters: Mapping[str, object]) -> dict[str, Any]:
    """Return the parameters to send, omitting unset ones and those that only Troupe uses."""
    return {
        name: value
        for name, value in parameters.items()
        if name not in UNSENT_TEMPLATE_PARAMETERS and value is not None
    }
