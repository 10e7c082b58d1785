"""The one list of template names: what a preset's `template` key may say."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar

from bot.errors import TemplateError

Factory = TypeVar("Factory", bound=Callable[..., Any])

_LONGEST_NAME = 80  # of what is told of a wrong one

_factories: dict[str, Callable[..., Any]] = {}


def register(*names: str) -> Callable[[Factory], Factory]:
    """Decorate a class or a function that makes a template; decorators stack.

    A name belongs to one template: TemplateError when it is taken.
    """

    def enter(factory: Factory) -> Factory:
        for name in names:
            if name in _factories:
                raise TemplateError(f"a template {name!r} is already registered; choose a new name")
            _factories[name] = factory
        return factory

    return enter


def get(name: str) -> Callable[..., Any]:
    """Return what was registered: `get("internlm")(**overrides)` is that model's template.

    TemplateError for an unknown name, with the nearest known ones.
    """
    if name not in _factories:
        nearest = get_close_matches(name, _factories, n=3)
        hint = " or ".join(map(repr, nearest)) if nearest else "one of `names()`"
        raise TemplateError(f"no template {name[:_LONGEST_NAME]!r}; did you mean {hint}?")
    return _factories[name]


def names() -> tuple[str, ...]:
    """All registered names, sorted."""
    return tuple(sorted(_factories))
