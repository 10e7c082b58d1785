"""Register chat templates by name, for a preset's `template` key."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar

from bot.errors import TemplateError
from bot.texts.text import joined, translatable

Factory = TypeVar("Factory", bound=Callable[..., Any])

_MAX_SHOWN_NAME_CHARS = 80  # of an unknown name, in the error message

_factories: dict[str, Callable[..., Any]] = {}


def register(*names: str) -> Callable[[Factory], Factory]:
    """Register under these names; decorators stack. Raises `TemplateError` for duplicates."""

    def add(factory: Factory) -> Factory:
        for name in names:
            if name in _factories:
                raise TemplateError(f"a template {name!r} is already registered; choose a new name")
            _factories[name] = factory
        return factory

    return add


def get(name: str) -> Callable[..., Any]:
    """Return a registered template; raises `TemplateError` with the closest names."""
    if name not in _factories:
        nearest = get_close_matches(name, _factories, n=3)
        hint = joined(map(repr, nearest), translatable(" or ")) if nearest else "one of `names()`"
        raise TemplateError.translatable(
            "no template {name}; did you mean {hint}?",
            name=repr(name[:_MAX_SHOWN_NAME_CHARS]),
            hint=hint,
        )
    return _factories[name]


def names() -> tuple[str, ...]:
    """Return all registered names, sorted."""
    return tuple(sorted(_factories))
