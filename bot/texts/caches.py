"""Caches for pure functions of people's texts and names, cleared when anything is forgotten."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

_clear: list[Callable[[], None]] = []


def text_cache(
    max_size: int,
) -> Callable[[Callable[Parameters, Value]], Callable[Parameters, Value]]:
    """Return a decorator like `lru_cache`, for functions whose arguments may be people's texts."""

    def decorate(compute: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
        cached = lru_cache(max_size)(compute)
        _clear.append(cached.cache_clear)
        return cached  # type: ignore[return-value] # its parameters are any hashable values

    return decorate


def clear_text_caches() -> None:
    """Clear all text caches; the next messages refill them."""
    for clear in _clear:
        clear()
