"""Macro variables: `{{setvar::name::value}}`, `{{getvar::name}}`, `{{.name += 2}}`.

They last for one prompt only, because people could neither see nor reset stored values.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

_EXPRESSION = re.compile(
    r"\s*([.$])\s*([A-Za-z](?:[\w-]*\w)?)\s*"
    r"(?:(\+\+|--|\+=|-=|\|\|=|\?\?=|\|\||\?\?|==|!=|>=|<=|>|<|=)(.*))?",
    re.DOTALL,
)
_NUMBER = re.compile(r"\s*(?:[+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,2})?)?\s*")
_MAX_NUMBER_CHARS = 200  # a variable may hold a megabyte, and be compared a thousand times
_FALSE = frozenset({"", "0", "false", "off"})


VariableExpression: TypeAlias = tuple[str, str, str]
"""The key of a variable, an operator and its operand, as in `.name += 2`."""


def parse_expression(text: str) -> VariableExpression | None:
    """Parse an expression with a local `.name` or a global `$name`; None for other macros."""
    found = _EXPRESSION.fullmatch(text) if text.lstrip()[:1] in {".", "$"} else None
    if found is None:
        return None
    return _key(found[2], is_global=found[1] == "$"), found[3] or "", found[4] or ""


class Variables:
    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def call(self, macro: str, arguments: Sequence[str]) -> str:
        """Return the value of a macro such as `setvar` or `getglobalvar`."""
        verb = macro.replace("global", "").removesuffix("var")
        key = _key(arguments[0] if arguments else "", is_global="global" in macro)
        value = "::".join(arguments[1:])
        match verb:
            case "set":
                self._values[key] = value
            case "add":
                self._add(key, value)
            case "inc" | "dec":
                return self._add(key, "1" if verb == "inc" else "-1")
            case "has" | "varexists":
                return str(key in self._values).lower()
            case "delete" | "flush":
                self._values.pop(key, None)
            case _:
                return self._values.get(key, "")
        return ""

    def evaluate(self, expression: VariableExpression, expand: Callable[[str], str]) -> str:
        """Return an expression's value; its operand is expanded only if needed."""
        key, operator, operand = expression
        value = self._values.get(key, "")
        is_false = len(value) <= _MAX_NUMBER_CHARS and value.strip().lower() in _FALSE
        match operator:
            case "":
                return value
            case "=":
                self._values[key] = expand(operand)
                return ""
            case "++" | "--":
                return self._add(key, "1" if operator == "++" else "-1")
            case "+=" | "-=":
                added = expand(operand)
                if operator == "+=":
                    self._add(key, added)
                elif (number := _number(added)) is not None:
                    self._add(key, _written(-number))
                return ""
            case "||" | "??" | "||=" | "??=":
                if not (is_false if operator[0] == "|" else key not in self._values):
                    return value
                value = expand(operand)
                if operator.endswith("="):
                    self._values[key] = value
                return value
            case _:
                return str(_compare(value, operator, expand(operand))).lower()

    def _add(self, key: str, value: str) -> str:
        old = self._values.get(key, "")
        left, right = _number(old), _number(value)
        is_text = left is None or right is None
        self._values[key] = old + value if is_text else _written((left or 0) + (right or 0))
        return self._values[key]


def _key(name: str, *, is_global: bool) -> str:
    return ("$" if is_global else ".") + name.strip()


def _number(text: str) -> float | None:
    """Return a number; an empty text is 0, as in JavaScript."""
    is_number = len(text) <= _MAX_NUMBER_CHARS and _NUMBER.fullmatch(text)
    return float(text.strip() or 0) if is_number else None


def _written(number: float) -> str:
    return f"{number:.15g}"


def _compare(left: str, operator: str, right: str) -> bool:
    if operator in {"==", "!="}:
        return (left == right) == (operator == "==")
    first, second = _number(left), _number(right)
    if first is None or second is None:
        return False
    return (
        (first < second and "<" in operator)
        or (first > second and ">" in operator)
        or (first == second and "=" in operator)
    )
