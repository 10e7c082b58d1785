"""Translate ollama's Go templates to Jinja, so that both give the same prompt byte for byte.

Ollama runs a template in one of two ways (template/template.go, v0.5.7). One that names `.Messages`
sees them all, neighbours of one role merged. Any other runs once per exchange with `.System`,
`.Prompt` and `.Response`; in the last run everything after `.Response` is cut away, because there
the model goes on. The Jinja source asks for an answer always, as ollama does.
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
from bot.importers.modelfile.go_parser import parse
from bot.importers.modelfile.go_types import TypedExpression, element
from bot.importers.modelfile.jinja_preludes import AS_JSON_MACRO, LOOP_OVER_TURNS, MERGE_MESSAGES

_MAX_CHARS = 64 * 1024  # as much as the render worker takes

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
    """Raise TemplateError for what Go refuses, and naming the construct that Jinja cannot say."""
    if len(source) > _MAX_CHARS:
        raise TemplateError(f"the template is longer than {_MAX_CHARS} characters; shorten it")
    nodes = parse(source)
    used = {
        name.lower() for pipe in _pipes(nodes) for field in _fields(pipe) for name in field.names
    }
    if "messages" in used:
        return "\n".join(
            _TemplateTranslator(nodes, _MESSAGES_ROOT).lines([MERGE_MESSAGES], depth=0)
        )
    if "response" not in used:
        nodes = (*nodes, GoAction(GoPipe(((GoField(None, ("Response",)),),))))
    lines = _TemplateTranslator(nodes, _TURN_ROOT).lines([MERGE_MESSAGES, LOOP_OVER_TURNS], depth=1)
    return "\n".join([*lines, "{%- endfor %}"])


class _TemplateTranslator:
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

    def lines(self, prelude: list[str], depth: int) -> list[str]:
        self._depth = depth
        self._sequence(self._nodes)
        if self._assigned:
            prelude = [*prelude[:1], "{%- set var = namespace() %}", *prelude[1:]]
        if self._expressions.prints_json:
            prelude = [AS_JSON_MACRO, *prelude]
        return [*prelude, *self._lines]

    def _sequence(self, nodes: Sequence[GoNode]) -> None:
        """Translate nodes; those behind the first `.Response` are left out of the last turn."""
        for place, node in enumerate(nodes, start=1):
            was_cut = self._cut
            self._node(node)
            if self._cut and not was_cut and nodes[place:]:
                self._emit("{%- if not turn.last %}")
                self._inside(nodes[place:])
                self._emit("{%- endif %}")
                return

    def _inside(self, nodes: Sequence[GoNode]) -> None:
        """Translate a body: what is declared in it ends with it."""
        with self._scope():
            self._depth += 1
            self._sequence(nodes)
            self._depth -= 1

    def _node(self, node: GoNode) -> None:
        match node:
            case GoText(text):
                self._emit(f"{{{{- {jinja_literal(text)} }}}}")
            case GoAction(pipe):
                self._action(pipe)
                if self._legacy and any(
                    field.variable is None and "Response" in field.names for field in _fields(pipe)
                ):
                    self._cut = True
            case GoJump(word):
                self._emit(f"{{%- {word} %}}")
            case GoBranch("if"):
                self._if(node)
            case GoBranch("with"):
                self._with(node)
            case GoBranch():
                self._range(node)

    def _action(self, pipe: GoPipe) -> None:
        value = self._expressions.value(pipe)
        if pipe.variables:
            self._set(pipe, value)
        else:
            self._emit(f"{{{{- {self._expressions.printed(value, pipe.line)} }}}}")

    def _set(self, pipe: GoPipe, value: TypedExpression) -> TypedExpression:
        (name,) = pipe.variables
        target = (
            self._declare(name, value.type) if pipe.declares else self._expressions.variables[name]
        )
        self._emit(f"{{%- set {target.source} = {value.source} %}}")
        return target

    def _declare(self, name: str, type_name: str) -> TypedExpression:
        """Give a Go variable a name in Jinja; one that is assigned later must outlive a loop."""
        unique = self._unique("go_" + name.removeprefix("$"))
        target = TypedExpression(f"var.{unique}" if name in self._assigned else unique, type_name)
        self._expressions.variables[name] = target
        return target

    def _if(self, node: GoBranch) -> None:
        with self._scope():
            condition = self._expressions.value(node.pipe)
            if node.pipe.variables:
                condition = self._set(node.pipe, condition)
            self._emit(f"{{%- if {condition.source} %}}")
            self._inside(node.body)
            self._otherwise(node)
            self._emit("{%- endif %}")

    def _with(self, node: GoBranch) -> None:
        with self._scope():
            value = self._expressions.value(node.pipe)
            if node.pipe.variables:
                value = self._set(node.pipe, value)
            outside, self._expressions.dot = self._expressions.dot, value
            self._emit(f"{{%- if {value.source} %}}")
            self._inside(node.body)
            self._expressions.dot = outside
            self._otherwise(node)
            self._emit("{%- endif %}")

    def _range(self, node: GoBranch) -> None:
        with self._scope():
            container = self._expressions.value(node.pipe)
            item = TypedExpression(self._unique("item"), element(container.type))
            if container.type.startswith("map of "):
                place = self._unique("key")  # Go goes through a map in the order of its keys
                self._emit(
                    f"{{%- for {place}, {item.source} in {container.source} | dictsort(true) %}}"
                )
            else:
                place = "loop.index0"
                source = "[]" if container.type == "nothing" else container.source
                self._emit(f"{{%- for {item.source} in {source} %}}")
            self._bind(node.pipe.variables, TypedExpression(place), item)
            outside, self._expressions.dot = self._expressions.dot, item
            self._inside(node.body)
            self._expressions.dot = outside
            self._otherwise(node)
            self._emit("{%- endfor %}")

    def _bind(
        self, variables: Sequence[str], place: TypedExpression, item: TypedExpression
    ) -> None:
        """`range $item :=` or `range $index, $item :=`."""
        self._depth += 1
        for name, value in zip(reversed(variables), (item, place), strict=False):
            if name == "$_":
                continue
            target = self._declare(name, value.type)
            self._emit(f"{{%- set {target.source} = {value.source} %}}")
        self._depth -= 1

    def _otherwise(self, node: GoBranch) -> None:
        match node.otherwise:
            case ():
                pass
            case (GoBranch("if", GoPipe(variables=())) as inner,) if node.word != "range":
                self._emit(f"{{%- elif {self._expressions.value(inner.pipe).source} %}}")
                self._inside(inner.body)
                self._otherwise(inner)
            case nodes:
                self._emit("{%- else %}")
                self._inside(nodes)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Forget at the end what was declared and where the dot pointed."""
        dot, variables = self._expressions.dot, dict(self._expressions.variables)
        yield
        self._expressions.dot, self._expressions.variables = dot, variables

    def _unique(self, name: str) -> str:
        self._taken[name] += 1
        return name if self._taken[name] == 1 else f"{name}_{self._taken[name]}"

    def _emit(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)


def _pipes(nodes: Sequence[GoNode]) -> Iterator[GoPipe]:
    for node in nodes:
        match node:
            case GoAction(pipe):
                yield pipe
            case GoBranch(_, pipe, body, otherwise):
                yield pipe
                yield from _pipes(body)
                yield from _pipes(otherwise)
            case GoText() | GoJump():
                pass


def _fields(pipe: GoPipe) -> Iterator[GoField]:
    """Yield the fields that ollama finds; it does not look into `(...).Name`."""
    for command in pipe.commands:
        for operand in command:
            match operand:
                case GoField():
                    yield operand
                case GoPipe():
                    yield from _fields(operand)
                case _:
                    pass
