"""Translate Ollama's Go templates to Jinja."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from bot.errors import TemplateError
from bot.importers.go_parser import (
    GoAction,
    GoBranch,
    GoChain,
    GoField,
    GoFunction,
    GoJump,
    GoLiteral,
    GoNode,
    GoOperand,
    GoPipe,
    GoText,
    parse_go_template,
)
from bot.texts.text import marked, translatable
from bot.value_class import value_class


@value_class
class TypedExpression:
    """A Jinja expression and the Go type of its value."""

    source: str
    type: str = "any"


# Type -> Go's field name -> our key and the type of its value. Lists and maps are written
# `list of x` and `map of x`.
FIELDS_BY_TYPE: dict[str, dict[str, tuple[str, str]]] = {
    "message": {
        "Role": ("role", "text"),
        "Content": ("content", "text"),
        "Thinking": ("thinking", "text"),
        "ToolName": ("tool_name", "text"),
        "Images": ("images", "list of any"),
        "ToolCalls": ("tool_calls", "list of call"),
    },
    "call": {"ID": ("id", "text"), "Function": ("function", "called")},
    "called": {
        "Index": ("index", "number"),
        "Name": ("name", "text"),
        "Arguments": ("arguments", "object"),
    },
    "tool": {"Type": ("type", "text"), "Function": ("function", "declared")},
    "declared": {
        "Name": ("name", "text"),
        "Description": ("description", "text"),
        "Parameters": ("parameters", "schema"),
    },
    "schema": {
        "Type": ("type", "text"),
        "Required": ("required", "list of text"),
        "Properties": ("properties", "map of property"),
    },
    "property": {
        "Type": ("type", "text"),
        "Description": ("description", "text"),
        "Enum": ("enum", "list of text"),
    },
}

JSON_TYPES = frozenset({"tool", "list of tool", "declared"})
"""Types that ollama prints as JSON, with the keys in their original order."""


def element_type(type_name: str) -> str:
    """Return the element type of a list or map type: `tool` for `list of tool`."""
    return type_name.partition(" of ")[2] or "any"


# Consecutive messages of one role are merged, and all system messages together are `.System`.
MERGE_MESSAGES = """\
{%- set chat = namespace(system=[], messages=[]) %}
{%- for message in messages %}
  {%- set content = message.content or "" %}
  {%- if message.role == "system" %}
    {%- set chat.system = chat.system + [content] %}
  {%- endif %}
  {%- if chat.messages and chat.messages[-1].role == message.role %}
    {%- set content = chat.messages[-1].content ~ "\\n\\n" ~ content %}
    {%- set chat.messages = chat.messages[:-1] + [dict(chat.messages[-1], content=content)] %}
  {%- else %}
    {%- set chat.messages = chat.messages + [dict(message, content=content)] %}
  {%- endif %}
{%- endfor %}"""

# An exchange is a system message, a prompt and a response, each of which may be missing.
LOOP_OVER_TURNS = """\
{%- set past = namespace(turns=[], system="", prompt="", response="") %}
{%- for message in chat.messages %}
  {%- set late_system = message.role == "system" and (past.prompt or past.response) %}
  {%- if late_system or (message.role == "user" and past.response) %}
    {%- set turn = {"system": past.system, "prompt": past.prompt, "response": past.response} %}
    {%- set past.turns = past.turns + [turn] %}
    {%- set past.system = "" %}
    {%- set past.prompt = "" %}
    {%- set past.response = "" %}
  {%- endif %}
  {%- if message.role == "system" %}
    {%- set past.system = message.content %}
  {%- elif message.role == "user" %}
    {%- set past.prompt = message.content %}
  {%- elif message.role == "assistant" %}
    {%- set past.response = message.content %}
  {%- endif %}
{%- endfor %}
{%- set last = {"system": past.system, "prompt": past.prompt, "response": past.response} %}
{%- for turn in past.turns + [dict(last, last=true)] %}"""

# Go escapes these three characters in JSON.
AS_JSON_MACRO = """\
{%- macro as_json(value) %}
  {%- set text = value | tojson(separators=(",", ":")) %}
  {{- text | replace("&", "\\\\u0026") | replace("<", "\\\\u003c") | replace(">", "\\\\u003e") }}
{%- endmacro %}"""


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
                raise _not_supported(line, marked("printing a whole {kind}"), kind=kind)

    def _translate_command(
        self, operands: Sequence[GoOperand], piped: Sequence[TypedExpression], line: int
    ) -> TypedExpression:
        first, *rest = operands
        arguments = [*(self._translate_operand(operand, line) for operand in rest), *piped]
        if isinstance(first, GoFunction):
            return self._translate_call(first.name, arguments, line)
        if arguments:
            raise _not_supported(line, marked("an argument for something that is not a function"))
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
                    line, marked("the field .{name} of a {kind}"), name=name, kind=kind
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
                    line,
                    marked("the function {name} with {count} arguments"),
                    name=name,
                    count=len(given),
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
            raise _not_supported(line, marked("printf without a literal format"))
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
                    raise _not_supported(line, marked("printf with {verb}"), verb=verb)
        if next(arguments, None):
            raise _not_supported(line, marked("printf with more arguments than verbs"))
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


def _not_supported(line: int, construct: str, **values: object) -> TemplateError:
    return TemplateError.translatable(
        "template: :{line}: {construct} cannot be translated to Jinja",
        line=line,
        construct=translatable(construct, **values),
    )


_MAX_CHARS = 64 * 1024  # the limit of the render process

_MESSAGES_ROOT = {
    "System": TypedExpression('(chat.system | join("\\n\\n"))', "text"),
    "Messages": TypedExpression("chat.messages", "list of message"),
    "Tools": TypedExpression("(tools or [])", "list of tool"),
    "Response": TypedExpression('""', "text"),
}
_TURN_ROOT = {
    "System": TypedExpression("turn.system", "text"),
    "Prompt": TypedExpression("turn.prompt", "text"),
    "Response": TypedExpression("turn.response", "text"),
}


def jinja_from_go(source: str) -> str:
    """Translate a Go template.

    Raises:
        TemplateError: a syntax error with Go's text, or a construct that cannot be translated.
    """
    if len(source) > _MAX_CHARS:
        raise TemplateError.translatable(
            "the template is longer than {limit} characters; shorten it", limit=_MAX_CHARS
        )
    nodes = parse_go_template(source)
    used = {
        name.lower() for pipe in _pipes(nodes) for field in _fields(pipe) for name in field.names
    }
    if "messages" in used:
        return "\n".join(
            _TemplateTranslator(nodes, _MESSAGES_ROOT).translate([MERGE_MESSAGES], depth=0)
        )
    if "response" not in used:
        nodes = (*nodes, GoAction(GoPipe(((GoField(None, ("Response",)),),))))
    lines = _TemplateTranslator(nodes, _TURN_ROOT).translate(
        [MERGE_MESSAGES, LOOP_OVER_TURNS], depth=1
    )
    return "\n".join([*lines, "{%- endfor %}"])


class _TemplateTranslator:
    """Translates the nodes of one template to lines of Jinja."""

    def __init__(self, nodes: Sequence[GoNode], root: Mapping[str, TypedExpression]) -> None:
        self._nodes = nodes
        self._legacy = root is _TURN_ROOT
        self._cut = False
        self._expressions = ExpressionTranslator(root)
        self._assigned = {
            name for pipe in _pipes(nodes) if not pipe.declares for name in pipe.variables
        }
        self._taken: Counter[str] = Counter()
        self._depth = 0
        self._lines: list[str] = []

    def translate(self, prelude: list[str], depth: int) -> list[str]:
        self._depth = depth
        self._translate_nodes(self._nodes)
        if self._assigned:
            prelude = [*prelude[:1], "{%- set var = namespace() %}", *prelude[1:]]
        if self._expressions.prints_json:
            prelude = [AS_JSON_MACRO, *prelude]
        return [*prelude, *self._lines]

    def _translate_nodes(self, nodes: Sequence[GoNode]) -> None:
        """Translate nodes; those after the first `.Response` are left out of the last turn."""
        for position, node in enumerate(nodes, start=1):
            was_cut = self._cut
            self._translate_node(node)
            if self._cut and not was_cut and nodes[position:]:
                self._emit("{%- if not turn.last %}")
                self._translate_body(nodes[position:])
                self._emit("{%- endif %}")
                return

    def _translate_body(self, nodes: Sequence[GoNode]) -> None:
        """Translate a body; its variables end with it."""
        with self._scope():
            self._depth += 1
            self._translate_nodes(nodes)
            self._depth -= 1

    def _translate_node(self, node: GoNode) -> None:
        match node:
            case GoText(text):
                self._emit(f"{{{{- {jinja_literal(text)} }}}}")
            case GoAction(pipe):
                self._translate_action(pipe)
                if self._legacy and any(
                    field.variable is None and "Response" in field.names for field in _fields(pipe)
                ):
                    self._cut = True
            case GoJump(keyword):
                self._emit(f"{{%- {keyword} %}}")
            case GoBranch("range"):
                self._translate_range(node)
            case GoBranch():
                self._translate_condition(node)

    def _translate_action(self, pipe: GoPipe) -> None:
        value = self._expressions.translate(pipe)
        if pipe.variables:
            self._assign(pipe, value)
        else:
            self._emit(f"{{{{- {self._expressions.print_value(value, pipe.line)} }}}}")

    def _assign(self, pipe: GoPipe, value: TypedExpression) -> TypedExpression:
        (name,) = pipe.variables
        target = (
            self._declare(name, value.type) if pipe.declares else self._expressions.variables[name]
        )
        self._emit(f"{{%- set {target.source} = {value.source} %}}")
        return target

    def _declare(self, name: str, type_name: str) -> TypedExpression:
        """Give a Go variable a name in Jinja; if it is assigned again, it lives in a namespace."""
        unique = self._unique_name("go_" + name.removeprefix("$"))
        target = TypedExpression(f"var.{unique}" if name in self._assigned else unique, type_name)
        self._expressions.variables[name] = target
        return target

    def _translate_condition(self, node: GoBranch) -> None:
        """Translate `if`, and `with`, whose value becomes the dot in its body."""
        with self._scope():
            value = self._expressions.translate(node.pipe)
            if node.pipe.variables:
                value = self._assign(node.pipe, value)
            self._emit(f"{{%- if {value.source} %}}")
            outside = self._expressions.dot
            if node.keyword == "with":
                self._expressions.dot = value
            self._translate_body(node.body)
            self._expressions.dot = outside
            self._translate_else(node)
            self._emit("{%- endif %}")

    def _translate_range(self, node: GoBranch) -> None:
        with self._scope():
            container = self._expressions.translate(node.pipe)
            item = TypedExpression(self._unique_name("item"), element_type(container.type))
            if container.type.startswith("map of "):
                index = self._unique_name("key")  # Go iterates over maps in the order of their keys
                self._emit(
                    f"{{%- for {index}, {item.source} in {container.source} | dictsort(true) %}}"
                )
            else:
                index = "loop.index0"
                source = "[]" if container.type == "nothing" else container.source
                self._emit(f"{{%- for {item.source} in {source} %}}")
            self._declare_loop_variables(node.pipe.variables, TypedExpression(index), item)
            outside, self._expressions.dot = self._expressions.dot, item
            self._translate_body(node.body)
            self._expressions.dot = outside
            self._translate_else(node)
            self._emit("{%- endfor %}")

    def _declare_loop_variables(
        self, variables: Sequence[str], index: TypedExpression, item: TypedExpression
    ) -> None:
        """Declare the variables of `range $item :=` or `range $index, $item :=`."""
        self._depth += 1
        for name, value in zip(reversed(variables), (item, index), strict=False):
            if name == "$_":
                continue
            target = self._declare(name, value.type)
            self._emit(f"{{%- set {target.source} = {value.source} %}}")
        self._depth -= 1

    def _translate_else(self, node: GoBranch) -> None:
        match node.else_body:
            case ():
                pass
            case (GoBranch("if", GoPipe(variables=())) as inner,) if node.keyword != "range":
                self._emit(f"{{%- elif {self._expressions.translate(inner.pipe).source} %}}")
                self._translate_body(inner.body)
                self._translate_else(inner)
            case nodes:
                self._emit("{%- else %}")
                self._translate_body(nodes)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Restore the variables and the dot at the end."""
        dot, variables = self._expressions.dot, dict(self._expressions.variables)
        yield
        self._expressions.dot, self._expressions.variables = dot, variables

    def _unique_name(self, name: str) -> str:
        self._taken[name] += 1
        return name if self._taken[name] == 1 else f"{name}_{self._taken[name]}"

    def _emit(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)


def _pipes(nodes: Sequence[GoNode]) -> Iterator[GoPipe]:
    for node in nodes:
        match node:
            case GoAction(pipe):
                yield pipe
            case GoBranch(_, pipe, body, else_body):
                yield pipe
                yield from _pipes(body)
                yield from _pipes(else_body)
            case GoText() | GoJump():
                pass


def _fields(pipe: GoPipe) -> Iterator[GoField]:
    """Yield the fields that ollama finds: it does not look into `(...).Name`."""
    for command in pipe.commands:
        for operand in command:
            match operand:
                case GoField():
                    yield operand
                case GoPipe():
                    yield from _fields(operand)
                case _:
                    pass
