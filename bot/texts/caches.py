"""Caches whose keys may be people's texts and names; cleared when anyone's data is deleted."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

_cache_clear_functions: list[Callable[[], None]] = []


def text_cache(limit: int) -> Callable[[Callable[Parameters, Value]], Callable[Parameters, Value]]:
    """Return a decorator like `lru_cache`, whose cache `clear_text_caches` clears."""

    def decorate(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
        cached_function = lru_cache(limit)(function)
        _cache_clear_functions.append(cached_function.cache_clear)
        return cached_function  # type: ignore[return-value] # lru_cache loses the parameters' types

    return decorate


def clear_text_caches() -> None:
    """Clear the caches of all functions decorated with `text_cache`."""
    for clear_cache in _cache_clear_functions:
        clear_cache()
