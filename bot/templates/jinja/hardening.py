"""What the render process takes from the sandbox: everything that prompts never need.

A prompt is made of texts and data. Whatever else a template can name (a function, a class, a
generator) tells about the process that renders it, and is refused wherever it would become text.
"""

import operator
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Environment, Undefined, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.filters import do_join, make_attrgetter
from jinja2.nodes import EvalContext

from bot.templates.jinja.sandbox import ChatTemplateSandbox, raise_exception

# Filters that choose, count and compute. All others write what they are given as text.
_WRITES_NOTHING = frozenset(
    (
        *("abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float"),
        *("groupby", "int", "items", "last", "length", "list", "map", "max", "min", "random"),
        *("reject", "rejectattr", "reverse", "round", "select", "selectattr", "slice", "sort"),
        *("sum", "tojson", "unique"),
    )
)
_INSIDES = re.compile(r"<(?:class|module|function|bound|built-in|[\w.]+ object)\b[^<>]*>")


def harden(environment: ChatTemplateSandbox) -> None:
    """Leave out what attacks begin with, and let nothing but data become text."""
    for name in ("cycler", "joiner", "lipsum"):
        del environment.globals[name]
    environment.globals["raise_exception"] = _refuse
    environment.finalize = require_data
    environment.intercepted_binops = frozenset("%")
    environment.binop_table["%"] = _modulo
    environment.filters.update(
        {
            name: _of_data(make)
            for name, make in environment.filters.items()
            if name not in _WRITES_NOTHING
        }
    )
    environment.filters["join"] = _join


def require_data(value: object) -> object:
    """Return the value; SecurityError when there is anything but data in it."""
    if is_data(value):
        return value
    raise SecurityError(f"a template prints texts and data, not a {type(value).__name__}")


def is_data(value: object) -> bool:
    match value:
        case str() | int() | float() | None | Undefined():
            return True
        case list() | tuple():
            return all(map(is_data, value))
        case dict():
            return all(map(is_data, value)) and all(map(is_data, value.values()))
        case _:
            return False


def redact_internals(text: str) -> str:
    """Take out of an error's text how Python shows an object."""
    return _INSIDES.sub("an object", text)


def _refuse(message: object) -> NoReturn:
    raise_exception(str(require_data(message)))


def _modulo(left: Any, right: Any) -> Any:
    return operator.mod(require_data(left), require_data(right))


def _of_data(make: Callable[..., Any]) -> Callable[..., Any]:
    takes_more = hasattr(make, "jinja_pass_arg")  # jinja's own context comes first

    @wraps(make)
    def guarded(*given: Any, **named: Any) -> Any:
        for value in (*given[takes_more:], *named.values()):
            require_data(value)
        return make(*given, **named)

    return guarded


@pass_eval_context
def _join(
    context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    """Join as jinja does, what was looked at first: a generator gives its items only once."""
    chosen = value if attribute is None else map(_getter(context, attribute), value)
    text: str = do_join(context, [require_data(item) for item in chosen], str(require_data(d)))
    return text


def _getter(context: EvalContext, attribute: str | int) -> Callable[[Any], Any]:
    environment: Environment = context.environment
    return make_attrgetter(environment, attribute)
