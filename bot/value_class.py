"""A decorator for value types: dataclasses with slots, compared and hashed by their fields.

The type checker rejects assignments to fields (PEP 681, `frozen_default`), but they are not
prevented at run time. `dataclass(frozen=True)` would prevent them, but its `__init__` takes seven
times as long, and each message creates over a hundred such values (7 % of its CPU time).
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
    """Turn a class into a dataclass with slots that is compared and hashed by its fields."""
    decorate = dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)
    return decorate if cls is None else decorate(cls)
