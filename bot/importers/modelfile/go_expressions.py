"""Say in Jinja what stands between the braces of a Go template."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from bot.errors import TemplateError
from bot.importers.modelfile.go_nodes import Chain, Field, Function, Literal, Operand, Pipe
from bot.importers.modelfile.go_types import FIELDS, JSON_TYPES, Value, element

ROOT = Value("", "root")
NO_VALUE = Value("none", "nothing")  # what a map gives for a key that it does not have

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_VERB = re.compile(r"%(.?)", re.DOTALL)


def quoted(text: str) -> str:
    """Write a Jinja string literal on one line."""
    for sign, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(sign, escape)
    return f'"{text}"'


class Expressions:
    """Knows the dot and the variables of the place in the template that is being translated."""

    def __init__(self, root: Mapping[str, Value]) -> None:
        self._root = root
        self.dot = ROOT
        self.variables: dict[str, Value] = {"$": ROOT}
        self.prints_json = False

    def value(self, pipe: Pipe) -> Value:
        """Translate a pipeline: each command's value is the last argument of the next one."""
        piped: list[Value] = []
        for command in pipe.commands:
            piped = [self._command(command, piped, pipe.line)]
        return piped[0]

    def printed(self, value: Value, line: int) -> str:
        """Print it as Go does."""
        match value.type:
            case "text" | "number" | "any":
                return value.source
            case "bool":
                return f'("true" if {value.source} else "false")'
            case "nothing":
                return '"<no value>"'
            case "list of text":
                return f'("[" ~ {value.source} | join(" ") ~ "]")'
            case "object":  # OpenAI's API gives the arguments of a call as JSON text
                text = self._json(value).source
                return f"({value.source} if {value.source} is string else {text})"
            case kind if kind in JSON_TYPES:
                return self._json(value).source
            case kind:
                raise _untranslatable(f"printing a whole {kind}", line)

    def _command(self, operands: Sequence[Operand], piped: Sequence[Value], line: int) -> Value:
        first, *rest = operands
        arguments = [*(self._operand(operand, line) for operand in rest), *piped]
        if isinstance(first, Function):
            return self._call(first.name, arguments, line)
        if arguments:
            raise _untranslatable("an argument for something that is no function", line)
        return self._operand(first, line)

    def _operand(self, operand: Operand, line: int) -> Value:
        match operand:
            case Literal(value):
                return _literal(value)
            case Field(None, names):
                return self._field(self.dot, names, line)
            case Field(variable, names):
                return self._field(self.variables[str(variable)], names, line)
            case Chain(pipe, names):
                return self._field(self.value(pipe), names, line)
            case Pipe():
                return self.value(operand)
            case Function(name):
                return self._call(name, [], line)

    def _field(self, value: Value, names: Sequence[str], line: int) -> Value:
        for name in names:
            value = self._member(value, name, line)
        return value

    def _member(self, value: Value, name: str, line: int) -> Value:
        match value.type:
            case "root":
                return self._root.get(name, NO_VALUE)
            case "any" | "nothing" | "object":
                return Value(f"{value.source}.{name}")
            case kind if kind.startswith("map of "):
                return Value(f"{value.source}[{quoted(name)}]", element(kind))
            case kind if name in FIELDS.get(kind, {}):
                key, behind = FIELDS[kind][name]
                source = f"{value.source}.{key}"
                empty = {"list": "[]", "map": "{}"}.get(behind.partition(" of ")[0])
                return Value(f"({source} or {empty})" if empty else source, behind)
            case kind:
                raise _untranslatable(f"the field .{name} of a {kind}", line)

    def _call(self, name: str, given: list[Value], line: int) -> Value:
        sources = [value.source for value in given]
        match name, given:
            case "currentDate", []:
                return Value('strftime_now("%Y-%m-%d")', "text")
            case "not", [_]:
                return Value(f"(not {sources[0]})", "bool")
            case "and" | "or", [_, *_]:
                kinds = {value.type for value in given}
                return Value(
                    _joined(f" {name} ", sources), kinds.pop() if len(kinds) == 1 else "any"
                )
            case "len", [_]:
                return Value(f"({sources[0]} | length)", "number")
            case "index", [container, _, *_]:
                return self._index(container, sources[1:])
            case "slice", [container, *_] if len(given) <= 3:
                bounds = ":".join(sources[1:]) + (":" if len(given) < 3 else "")
                return Value(f"{sources[0]}[{bounds}]", container.type)
            case _ if name in _COMPARISONS and len(given) >= 2:
                return self._comparison(name, sources)
            case _:
                return self._text_call(name, given, line)

    def _text_call(self, name: str, given: list[Value], line: int) -> Value:
        match name, given:
            case "json", [value]:
                return self._json(value)
            case "print", [_, *_] if len(given) == 1 or {value.type for value in given} == {"text"}:
                printed = [self.printed(value, line) for value in given]
                return Value(_joined(" ~ ", printed), "text")
            case "printf", [_, *_]:
                return self._printf(given, line)
            case _:
                raise _untranslatable(f"the function {name} with {len(given)} arguments", line)

    def _comparison(self, name: str, sources: list[str]) -> Value:
        first, *others = sources
        tests = [f"{first} {_COMPARISONS[name]} {other}" for other in others]
        return Value(_joined(" or ", tests), "bool")  # only `eq` takes several: one must match

    def _index(self, container: Value, keys: Sequence[str]) -> Value:
        for key in keys:
            container = Value(f"{container.source}[{key}]", element(container.type))
        return container

    def _json(self, value: Value) -> Value:
        self.prints_json = True
        return Value(f"as_json({value.source})", "text")

    def _printf(self, given: list[Value], line: int) -> Value:
        form, *rest = given
        if not form.source.startswith('"'):
            raise _untranslatable("printf without a literal format", line)
        arguments = iter(rest)
        pieces: list[str] = []
        places = [match.span() for match in _VERB.finditer(form.source)]
        bounds = [(0, 0), *places, (len(form.source), len(form.source))]
        for (_, start), (end, after) in pairwise(bounds):
            pieces.append(form.source[start:end])
            verb = form.source[end:after]
            match verb:
                case "%%":
                    pieces.append("%")
                case "%s" | "%v" | "%d" if argument := next(arguments, None):
                    pieces.append(f'" ~ {self.printed(argument, line)} ~ "')
                case "":
                    pass
                case _:
                    raise _untranslatable(f"printf with {verb}", line)
        if next(arguments, None):
            raise _untranslatable("printf with more arguments than verbs", line)
        return Value("(" + "".join(pieces) + ")", "text")


def _joined(operator: str, sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"({operator.join(sources)})"


def _literal(value: str | float | bool | None) -> Value:
    match value:
        case None:
            return NO_VALUE
        case bool():
            return Value("true" if value else "false", "bool")
        case str():
            return Value(quoted(value), "text")
        case _:
            return Value(repr(value), "number")


def _untranslatable(construct: str, line: int) -> TemplateError:
    return TemplateError(f"template: :{line}: {construct} cannot be translated to Jinja")
