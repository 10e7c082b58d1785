"""Translate ollama's Go templates to Jinja, so that both render the same prompt byte for byte.

Ollama runs a template in one of two ways (template/template.go, v0.5.7; docs/sources.md#ollama). A
template that names `.Messages` gets all of them, consecutive messages of one role merged. Any other
runs once per exchange with `.System`, `.Prompt` and `.Response`; in the last run everything after
`.Response` is cut, because the model continues there. As in ollama, the generation prompt is always
rendered.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bot.errors import TemplateError
from bot.importers.modelfile.go_expressions import ExpressionTranslator, jinja_literal
from bot.importers.modelfile.go_nodes import (
    GoAction,
    GoBranch,
    GoField,
    GoJump,
    GoNode,
    GoPipe,
    GoText,
)
from bot.importers.modelfile.go_parser import parse_go_template
from bot.importers.modelfile.go_types import TypedExpression, element_type
from bot.importers.modelfile.jinja_preludes import AS_JSON_MACRO, LOOP_OVER_TURNS, MERGE_MESSAGES
from bot.texts.text import translatable

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
        raise TemplateError(
            translatable(
                "the template is longer than {limit} characters; shorten it", limit=_MAX_CHARS
            )
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
            case GoBranch("if"):
                self._translate_if(node)
            case GoBranch("with"):
                self._translate_with(node)
            case GoBranch():
                self._translate_range(node)

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

    def _translate_if(self, node: GoBranch) -> None:
        with self._scope():
            condition = self._expressions.translate(node.pipe)
            if node.pipe.variables:
                condition = self._assign(node.pipe, condition)
            self._emit(f"{{%- if {condition.source} %}}")
            self._translate_body(node.body)
            self._translate_else(node)
            self._emit("{%- endif %}")

    def _translate_with(self, node: GoBranch) -> None:
        with self._scope():
            value = self._expressions.translate(node.pipe)
            if node.pipe.variables:
                value = self._assign(node.pipe, value)
            outside, self._expressions.dot = self._expressions.dot, value
            self._emit(f"{{%- if {value.source} %}}")
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
