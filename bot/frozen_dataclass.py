"""The decorator of value objects: a dataclass that nothing changes once it is built.

`dataclass(frozen=True)` checks that when the program runs, and sets each field by
`object.__setattr__`: an `__init__` takes seven times as long, and a message builds more than a
hundred such objects (7 % of its CPU). Here the type checker does it (PEP 681, `frozen_default`): an
assignment to a field is an error of `make lint`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform, overload

_T = TypeVar("_T")


@overload
def frozen_dataclass(cls: type[_T], /) -> type[_T]: ...
@overload
def frozen_dataclass(*, kw_only: bool) -> Callable[[type[_T]], type[_T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(
    cls: type[_T] | None = None, /, *, kw_only: bool = False
) -> type[_T] | Callable[[type[_T]], type[_T]]:
    """Make `cls` a dataclass with slots, and with equality and a hash by its fields.

    The hash fails for a field whose value has none, as a list. `dataclasses.replace` makes a copy
    with other values.
    """
    decorate = dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)
    return decorate if cls is None else decorate(cls)
