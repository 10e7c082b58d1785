"""The Jinja environment of chat templates: that of transformers, but functions cannot be printed.

The stock sandbox keeps templates from code and files, but prints functions and classes with their
names and addresses. Here a template gets a `Function` instead, which it can only call.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from typing_extensions import override


class Function:
    """A function or class that a template may call, but not print."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @override
    def __str__(self) -> str:
        raise SecurityError("a template may print texts and data, not a function")

    @override
    def __repr__(self) -> str:
        return "a function"  # in a list, or in the text of an error


def _callable_only(value: Any) -> Any:
    is_function = callable(value) and not isinstance(value, Undefined | Function)
    return Function(value) if is_function else value


class ChatTemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of transformers: no access to code or files, arguments are immutable."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTagExtension, LoopControlExtension],
        )
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["namespace"] = PublicNamespace
        self.globals.update({name: _callable_only(one) for name, one in self.globals.items()})

    @override
    def getattr(self, obj: Any, attribute: str) -> Any:
        return _callable_only(super().getattr(obj, attribute))

    @override
    def getitem(self, obj: Any, argument: Any) -> Any:
        return _callable_only(super().getitem(obj, argument))


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
    """jinja's `namespace()` without names that begin with an underscore."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(
                "Chat templates cannot store underscore-prefixed attributes on a namespace, "
                f"but got {name!r}. Please rename the attribute."
            )
        super().__setitem__(name, value)


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


def raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


ENVIRONMENT = ChatTemplateSandbox()


@lru_cache(maxsize=256)
def compile_template(source: str) -> Template:
    """Compile a source, or return it from the cache: compiling costs several milliseconds.

    Raises:
        jinja2.TemplateSyntaxError: the source cannot be parsed.
    """
    return ENVIRONMENT.from_string(source)
