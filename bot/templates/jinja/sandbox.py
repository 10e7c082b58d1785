"""The Jinja environment of chat templates: transformers' sandbox with fast access to dictionaries.

Chat templates read `message.role` and `loop.first` far more often than anything else. The stock
sandbox answers each with a failed attribute look-up, an exception and a check of its rules. Here
the compiled code first tests whether the object is a plain `dict` (or jinja's own loop), which is
always safe, and asks the sandbox otherwise.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import do_trim
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.utils import Namespace
from markupsafe import Markup
from typing_extensions import override

DICT_ATTRIBUTES = frozenset(dir(dict))
LOOP_ATTRIBUTES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
# Methods that need no check by the sandbox. `str.format` is not among them: it reads attributes of
# its arguments.
SAFE_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"},
    dict: frozenset(("get", "items", "keys", "values")),
}


class DictAccessCodeGenerator(CodeGenerator):
    """Compiles `x.key` to `x["key"]` for plain dicts that have the key, else to the sandbox call.

    The tests `is none` and `is defined` are inlined as well.
    """

    @override
    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        guard = None
        if isinstance(node.node, nodes.Name):
            name = frame.symbols.ref(node.node.name)
            if node.node.name == "loop" and node.attr in LOOP_ATTRIBUTES:
                guard = f"{name}.{node.attr} if {name}.__class__ is LoopContext"
            elif node.attr not in DICT_ATTRIBUTES:  # jinja prefers the attribute to the key
                guard = _dict_guard(name, node.attr)
        self._guarded(guard, super().visit_Getattr, node, frame)

    @override
    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        guard = None
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if isinstance(node.node, nodes.Name) and isinstance(key, str):
            guard = _dict_guard(frame.symbols.ref(node.node.name), key)
        self._guarded(guard, super().visit_Getitem, node, frame)

    @override
    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        if node.name == "none":
            self.write("(")
            self.visit(node.node, frame)
            self.write(" is None)")
        elif node.name == "defined" and isinstance(node.node, nodes.Name):
            name = frame.symbols.ref(node.node.name)
            self.write(f"({name} is not missing and not isinstance({name}, Undefined))")
        else:
            super().visit_Test(node, frame)

    @override
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        if self.environment.finalize is not None:
            finalize = nodes.EnvironmentAttribute("finalize")
            node.nodes = [nodes.Call(finalize, [one], [], None, None) for one in node.nodes]
        super().visit_Concat(node, frame)

    def _guarded(
        self, guard: str | None, visit: Callable[..., None], node: nodes.Expr, frame: Frame
    ) -> None:
        if guard is None:
            visit(node, frame)
            return
        self.write(f"({guard} else ")
        visit(node, frame)
        self.write(")")


def _dict_guard(name: str, key: str) -> str:
    return f"{name}[{key!r}] if {name}.__class__ is dict and {key!r} in {name}"


class ChatTemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of transformers: no access to code or files, arguments are immutable."""

    code_generator_class = DictAccessCodeGenerator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTagExtension, LoopControlExtension],
        )
        self.filters["tojson"] = to_json
        self.filters["trim"] = trim
        self.globals["raise_exception"] = raise_exception
        self.globals["namespace"] = PublicNamespace

    @override
    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = obj.__class__
        if kind is dict and attribute not in DICT_ATTRIBUTES:
            return self.getitem(obj, attribute)
        if attribute in SAFE_METHODS.get(kind, ()):
            return getattr(obj, attribute)
        if kind is PublicNamespace and attribute in obj.__dict__:
            return obj.__dict__[attribute]
        return super().getattr(obj, attribute)

    @override
    def getitem(self, obj: Any, argument: Any) -> Any:
        if obj.__class__ is dict and argument.__class__ is str and argument not in DICT_ATTRIBUTES:
            return obj[argument] if argument in obj else self.undefined(obj=obj, name=argument)
        if obj.__class__ is list and argument.__class__ is int and -len(obj) <= argument < len(obj):
            return obj[argument]
        return super().getitem(obj, argument)

    @override
    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a `str.format` that applies `finalize` to its fields, as to printed values."""
        formatted = super().wrap_str_format(value)
        if formatted is None or self.finalize is None:
            return formatted
        text: str = value.__self__
        formatter = (
            FinalizingEscapeFormatter(self, escape=text.escape)
            if isinstance(text, Markup)
            else FinalizingFormatter(self)
        )
        if value.__name__ == "format_map":
            return lambda fields: text.__class__(formatter.vformat(text, (), fields))
        return lambda *given, **named: text.__class__(formatter.vformat(text, given, named))

    @override
    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Most calls of a template are string methods, which need no check.
        if obj.__class__ is BuiltinMethodType and obj.__self__.__class__ in SAFE_METHODS:
            kwargs.pop("_loop_vars", None)  # compiled code passes its scope with each call
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)


class FinalizingFormatter(SandboxedFormatter):
    """Applies the environment's `finalize` to each field of `str.format`, such as `{0.role}`."""

    @override
    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, str]:
        found, first = super().get_field(field_name, args, kwargs)
        return (self._env.finalize or str)(found), first


class FinalizingEscapeFormatter(FinalizingFormatter, SandboxedEscapeFormatter):
    """The same for `Markup` strings."""


class GenerationTagExtension(Extension):
    """Parses `{% generation %}`, which marks assistant text for training and changes no prompt."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it as an instance variable

    @override
    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class PublicNamespace(Namespace):
    """jinja's `namespace()` without names that begin with an underscore.

    The values are ordinary attributes, because jinja's own look-up is a slow Python function and
    templates read their namespaces for each message.
    """

    __getattribute__ = object.__getattribute__

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(
                "Chat templates cannot store underscore-prefixed attributes on a namespace, "
                f"but got {name!r}. Please rename the attribute."
            )
        self.__dict__[name] = value

    @override
    def __repr__(self) -> str:
        return f"<Namespace {self.__dict__!r}>"


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as in training data: without the HTML escapes that jinja's own filter adds."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def trim(value: Any, chars: str | None = None) -> str:
    """Strip a text; like jinja's own filter, but without its check for markup."""
    return value.strip(chars) if value.__class__ is str else do_trim(value, chars)


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


class CompiledTemplate:
    """A compiled template, with everything that stays the same from one rendering to the next."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._template: Template = ENVIRONMENT.from_string(source)
        # jinja keeps globals in a ChainMap and copies it for each rendering.
        self._globals: dict[str, Any] = dict(self._template.globals)

    def render(self, variables: Mapping[str, Any]) -> str:
        context = Context(
            ENVIRONMENT, {**self._globals, **variables}, self._template.name, self._template.blocks
        )
        return "".join(self._template.root_render_func(context))


ENVIRONMENT = ChatTemplateSandbox()


@lru_cache(maxsize=256)
def compile_template(source: str) -> CompiledTemplate:
    """Compile a source, or return it from the cache: compiling costs several milliseconds.

    Raises:
        jinja2.TemplateSyntaxError: the source cannot be parsed.
    """
    return CompiledTemplate(source)
