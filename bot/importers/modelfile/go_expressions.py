"""Translate the expressions of a Go template to Jinja."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from bot.errors import TemplateError
from bot.importers.modelfile.go_nodes import (
    GoChain,
    GoField,
    GoFunction,
    GoLiteral,
    GoOperand,
    GoPipe,
)
from bot.importers.modelfile.go_types import (
    FIELDS_BY_TYPE,
    JSON_TYPES,
    TypedExpression,
    element_type,
)
from bot.texts.text import translatable

ROOT_VALUE = TypedExpression("", "root")
MISSING_VALUE = TypedExpression("none", "nothing")  # the value of a missing key

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FORMAT_VERB = re.compile(r"%(.?)", re.DOTALL)


def jinja_literal(text: str) -> str:
    """Return a Jinja string literal on one line."""
    for character, escape in (
        ("\\", "\\\\"),
        ('"', '\\"'),
        ("\n", "\\n"),
        ("\r", "\\r"),
        ("\t", "\\t"),
    ):
        text = text.replace(character, escape)
    return f'"{text}"'


class ExpressionTranslator:
    """Translates expressions, with the dot and the variables at the current position."""

    def __init__(self, root: Mapping[str, TypedExpression]) -> None:
        self._root = root
        self.dot = ROOT_VALUE
        self.variables: dict[str, TypedExpression] = {"$": ROOT_VALUE}
        self.prints_json = False

    def translate(self, pipe: GoPipe) -> TypedExpression:
        """Translate a pipeline: the value of each command is the last argument of the next one."""
        piped: list[TypedExpression] = []
        for command in pipe.commands:
            piped = [self._translate_command(command, piped, pipe.line)]
        return piped[0]

    def print_value(self, value: TypedExpression, line: int) -> str:
        """Return an expression that prints the value as Go does."""
        match value.type:
            case "text" | "number" | "any":
                return value.source
            case "bool":
                return f'("true" if {value.source} else "false")'
            case "nothing":
                return '"<no value>"'
            case "list of text":
                return f'("[" ~ {value.source} | join(" ") ~ "]")'
            case "object":  # in OpenAI's API, the arguments of a call are a JSON text
                text = self._to_json(value).source
                return f"({value.source} if {value.source} is string else {text})"
            case kind if kind in JSON_TYPES:
                return self._to_json(value).source
            case kind:
                raise _not_supported(translatable("printing a whole {kind}", kind=kind), line)

    def _translate_command(
        self, operands: Sequence[GoOperand], piped: Sequence[TypedExpression], line: int
    ) -> TypedExpression:
        first, *rest = operands
        arguments = [*(self._translate_operand(operand, line) for operand in rest), *piped]
        if isinstance(first, GoFunction):
            return self._translate_call(first.name, arguments, line)
        if arguments:
            raise _not_supported(
                translatable("an argument for something that is not a function"), line
            )
        return self._translate_operand(first, line)

    def _translate_operand(self, operand: GoOperand, line: int) -> TypedExpression:
        match operand:
            case GoLiteral(value):
                return _literal(value)
            case GoField(None, names):
                return self._translate_field(self.dot, names, line)
            case GoField(variable, names):
                return self._translate_field(self.variables[str(variable)], names, line)
            case GoChain(pipe, names):
                return self._translate_field(self.translate(pipe), names, line)
            case GoPipe():
                return self.translate(operand)
            case GoFunction(name):
                return self._translate_call(name, [], line)

    def _translate_field(
        self, value: TypedExpression, names: Sequence[str], line: int
    ) -> TypedExpression:
        for name in names:
            value = self._translate_member(value, name, line)
        return value

    def _translate_member(self, value: TypedExpression, name: str, line: int) -> TypedExpression:
        match value.type:
            case "root":
                return self._root.get(name, MISSING_VALUE)
            case "any" | "nothing" | "object":
                return TypedExpression(f"{value.source}.{name}")
            case kind if kind.startswith("map of "):
                return TypedExpression(f"{value.source}[{jinja_literal(name)}]", element_type(kind))
            case kind if name in FIELDS_BY_TYPE.get(kind, {}):
                key, value_type = FIELDS_BY_TYPE[kind][name]
                source = f"{value.source}.{key}"
                empty = {"list": "[]", "map": "{}"}.get(value_type.partition(" of ")[0])
                return TypedExpression(f"({source} or {empty})" if empty else source, value_type)
            case kind:
                raise _not_supported(
                    translatable("the field .{name} of a {kind}", name=name, kind=kind), line
                )

    def _translate_call(
        self, name: str, given: list[TypedExpression], line: int
    ) -> TypedExpression:
        sources = [value.source for value in given]
        match name, given:
            case "currentDate", []:
                return TypedExpression('strftime_now("%Y-%m-%d")', "text")
            case "not", [_]:
                return TypedExpression(f"(not {sources[0]})", "bool")
            case "and" | "or", [_, *_]:
                kinds = {value.type for value in given}
                return TypedExpression(
                    _joined(f" {name} ", sources), kinds.pop() if len(kinds) == 1 else "any"
                )
            case "len", [_]:
                return TypedExpression(f"({sources[0]} | length)", "number")
            case "index", [container, _, *_]:
                return self._translate_index(container, sources[1:])
            case "slice", [container, *_] if len(given) <= 3:
                bounds = ":".join(sources[1:]) + (":" if len(given) < 3 else "")
                return TypedExpression(f"{sources[0]}[{bounds}]", container.type)
            case _ if name in _COMPARISONS and len(given) >= 2:
                return self._translate_comparison(name, sources)
            case _:
                return self._translate_text_call(name, given, line)

    def _translate_text_call(
        self, name: str, given: list[TypedExpression], line: int
    ) -> TypedExpression:
        match name, given:
            case "json", [value]:
                return self._to_json(value)
            case "print", [_, *_] if len(given) == 1 or {value.type for value in given} == {"text"}:
                printed = [self.print_value(value, line) for value in given]
                return TypedExpression(_joined(" ~ ", printed), "text")
            case "printf", [_, *_]:
                return self._translate_printf(given, line)
            case _:
                raise _not_supported(
                    translatable(
                        "the function {name} with {count} arguments", name=name, count=len(given)
                    ),
                    line,
                )

    def _translate_comparison(self, name: str, sources: list[str]) -> TypedExpression:
        first, *others = sources
        tests = [f"{first} {_COMPARISONS[name]} {other}" for other in others]
        return TypedExpression(
            _joined(" or ", tests), "bool"
        )  # only `eq` takes several values: one must match

    def _translate_index(self, container: TypedExpression, keys: Sequence[str]) -> TypedExpression:
        for key in keys:
            container = TypedExpression(f"{container.source}[{key}]", element_type(container.type))
        return container

    def _to_json(self, value: TypedExpression) -> TypedExpression:
        self.prints_json = True
        return TypedExpression(f"as_json({value.source})", "text")

    def _translate_printf(self, given: list[TypedExpression], line: int) -> TypedExpression:
        format_string, *rest = given
        if not format_string.source.startswith('"'):
            raise _not_supported(translatable("printf without a literal format"), line)
        arguments = iter(rest)
        parts: list[str] = []
        verbs = [match.span() for match in _FORMAT_VERB.finditer(format_string.source)]
        bounds = [(0, 0), *verbs, (len(format_string.source), len(format_string.source))]
        for (_, start), (end, after) in pairwise(bounds):
            parts.append(format_string.source[start:end])
            verb = format_string.source[end:after]
            match verb:
                case "%%":
                    parts.append("%")
                case "%s" | "%v" | "%d" if argument := next(arguments, None):
                    parts.append(f'" ~ {self.print_value(argument, line)} ~ "')
                case "":
                    pass
                case _:
                    raise _not_supported(translatable("printf with {verb}", verb=verb), line)
        if next(arguments, None):
            raise _not_supported(translatable("printf with more arguments than verbs"), line)
        return TypedExpression("(" + "".join(parts) + ")", "text")


def _joined(operator: str, sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"({operator.join(sources)})"


def _literal(value: str | float | bool | None) -> TypedExpression:
    match value:
        case None:
            return MISSING_VALUE
        case bool():
            return TypedExpression("true" if value else "false", "bool")
        case str():
            return TypedExpression(jinja_literal(value), "text")
        case _:
            return TypedExpression(repr(value), "number")


def _not_supported(construct: str, line: int) -> TemplateError:
    return TemplateError(
        translatable(
            "template: :{line}: {construct} cannot be translated to Jinja",
            line=line,
            construct=construct,
        )
    )
