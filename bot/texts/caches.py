"""Caches whose keys may be people's texts and names; cleared when anyone's data is deleted."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

_clear_functions: list[Callable[[], None]] = []


def text_cache(
    max_size: int,
) -> Callable[[Callable[Parameters, Value]], Callable[Parameters, Value]]:
    """Return a decorator like `lru_cache`, whose cache `clear_text_caches` clears."""

    def decorate(compute: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
        cached = lru_cache(max_size)(compute)
        _clear_functions.append(cached.cache_clear)
        return cached  # type: ignore[return-value] # lru_cache loses the parameters' types

    return decorate


def clear_text_caches() -> None:
    """Clear the caches of all functions decorated with `text_cache`."""
    for clear in _clear_functions:
        clear()
