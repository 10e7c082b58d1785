"""Units of work whose queries are inspected or changed by a test."""

from collections.abc import Callable
from typing import TypeVar

from bot.storage.statements import Query, Unit

T = TypeVar("T")


def through(change: Callable[[Query], Query], unit: Unit[T]) -> Unit[T]:
    """Run a unit of work, and apply `change` to each query before it runs."""
    try:
        query = next(unit)
        while True:
            query = unit.send((yield change(query)))
    except StopIteration as ended:
        value: T = ended.value
        return value
