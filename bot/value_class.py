"""A decorator for value types: dataclasses with slots, compared and hashed by field.

The type checker rejects assignments to fields (PEP 681, `frozen_default`); nothing does at run
time. `dataclass(frozen=True)` would, but its `__init__` takes seven times as long, and each message
creates more than a hundred such values (7 % of its CPU).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform, overload

_T = TypeVar("_T")


@overload
def value_class(cls: type[_T], /) -> type[_T]: ...
@overload
def value_class(*, kw_only: bool) -> Callable[[type[_T]], type[_T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(
    cls: type[_T] | None = None, /, *, kw_only: bool = False
) -> type[_T] | Callable[[type[_T]], type[_T]]:
    """Make `cls` a dataclass with slots, and with equality and a hash by its fields."""
    decorate = dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)
    return decorate if cls is None else decorate(cls)
