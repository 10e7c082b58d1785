"""Remove from the sandbox of the render process everything that prompts never need.

A prompt consists of texts and data. Everything else that a template can name (functions, classes,
generators) would disclose the internals of the process, so it is rejected where it would be
printed.
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

# Filters that select, count and compute. All others write their arguments as text.
_FILTERS_WITHOUT_TEXT = frozenset(
    (
        *("abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float"),
        *("groupby", "int", "items", "last", "length", "list", "map", "max", "min", "random"),
        *("reject", "rejectattr", "reverse", "round", "select", "selectattr", "slice", "sort"),
        *("sum", "tojson", "unique"),
    )
)
_INTERNALS = re.compile(r"<(?:class|module|function|bound|built-in|[\w.]+ object)\b[^<>]*>")


def harden(environment: ChatTemplateSandbox) -> None:
    """Remove the globals that attacks start from, and let nothing but data be printed."""
    for name in ("cycler", "joiner", "lipsum"):
        del environment.globals[name]
    environment.globals["raise_exception"] = _raise_exception
    environment.finalize = require_data
    environment.intercepted_binops = frozenset("%")
    environment.binop_table["%"] = _modulo
    environment.filters.update(
        {
            name: _checking_arguments(apply)
            for name, apply in environment.filters.items()
            if name not in _FILTERS_WITHOUT_TEXT
        }
    )
    environment.filters["join"] = _join


def require_data(value: object) -> object:
    """Return the value; raise SecurityError if it contains anything but data."""
    if is_data(value):
        return value
    raise SecurityError(f"a template may print texts and data, not a {type(value).__name__}")


def is_data(value: object) -> bool:
    """Tell whether a value consists of texts, numbers, lists and dictionaries only."""
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
    """Replace representations of Python objects in an error text."""
    return _INTERNALS.sub("an object", text)


def _raise_exception(message: object) -> NoReturn:
    raise_exception(str(require_data(message)))


def _modulo(left: Any, right: Any) -> Any:
    return operator.mod(require_data(left), require_data(right))


def _checking_arguments(apply: Callable[..., Any]) -> Callable[..., Any]:
    passes_context = hasattr(apply, "jinja_pass_arg")  # as the first argument

    @wraps(apply)
    def guarded(*given: Any, **named: Any) -> Any:
        for value in (*given[passes_context:], *named.values()):
            require_data(value)
        return apply(*given, **named)

    return guarded


@pass_eval_context
def _join(
    context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    """Join as jinja does, with a check of each item: a generator can be read only once."""
    items = value if attribute is None else map(_getter(context, attribute), value)
    text: str = do_join(context, [require_data(item) for item in items], str(require_data(d)))
    return text


def _getter(context: EvalContext, attribute: str | int) -> Callable[[Any], Any]:
    environment: Environment = context.environment
    return make_attrgetter(environment, attribute)
