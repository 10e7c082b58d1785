"""Register chat templates by name, for the key `template` of presets."""

import hashlib
import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from bot.errors import TemplateError
from bot.templates.jinja_template import JinjaTemplate
from bot.texts.text import join_texts, translatable

Factory = TypeVar("Factory", bound=Callable[..., Any])

_MAX_SHOWN_NAME_CHARS = 80  # for an unknown name in an error message

_factories: dict[str, Callable[..., Any]] = {}


def register(*names: str) -> Callable[[Factory], Factory]:
    """Return a decorator that registers a class or factory under names; decorators can be stacked.

    Raises `TemplateError` if a name is taken.
    """

    def register_factory(factory: Factory) -> Factory:
        for name in names:
            if name in _factories:
                raise TemplateError(f"a template {name!r} is already registered; choose a new name")
            _factories[name] = factory
        return factory

    return register_factory


def get(name: str) -> Callable[..., Any]:
    """Return a registered class or factory; raise `TemplateError`, suggesting similar names."""
    if name not in _factories:
        matches = get_close_matches(name, _factories, n=3)
        hint = (
            join_texts(map(repr, matches), translatable(" or ")) if matches else "one of `names()`"
        )
        raise TemplateError.translatable(
            "no template {name}; did you mean {hint}?",
            name=repr(name[:_MAX_SHOWN_NAME_CHARS]),
            hint=hint,
        )
    return _factories[name]


def names() -> tuple[str, ...]:
    """Return all registered names, sorted."""
    return tuple(sorted(_factories))


FAMILY_NAMES: Final[list[str]] = []
"""The names of the files in families/ without `.jinja`, each of which is a registered name."""

FAMILY_BY_SHA256: Final[dict[str, str]] = {}


def detect_family(source: str) -> str | None:
    """Return the name of the model family with exactly this template, or None if unknown."""
    return FAMILY_BY_SHA256.get(hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest())


def _read_template(file: Path, **values: Any) -> JinjaTemplate:
    return JinjaTemplate(file.read_text(encoding="utf-8"), **values)


def _register_all() -> None:
    catalog = tomllib.loads(Path(__file__).with_name("family_templates.toml").read_text("utf-8"))
    for family in catalog["family"]:
        bos_token, eos_token = family.get("bos", ""), family.get("eos", "")
        stop_words = tuple(family.get("stop", [eos_token] if eos_token else []))
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        name, *other_names = family["names"]
        file = Path(__file__).parent / "families" / f"{name}.jinja"
        register(name, *other_names)(partial(_read_template, file, **tokens, stop_words=stop_words))
        FAMILY_NAMES.append(name)
        FAMILY_BY_SHA256.update(dict.fromkeys(family.get("sha256", ()), name))


_register_all()
