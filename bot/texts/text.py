"""Texts shown in chats: English in the code, other languages in gettext catalogs.

A text is created where its cause is known, and translated where the reader's language is known or,
if it was stored in English, when it is shown. `make catalogues` updates bot/texts/locales.
"""

import gettext
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from string import Formatter
from typing import Final, Self

_FOLDER = Path(__file__).parent / "locales"
_DOMAIN = "troupe"
_LANGUAGE_END = re.compile(r"[-_.@]")
_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LANGUAGES: Final = ("en", "zh")
"""The languages of the service; the first needs no catalog."""


class Text(str):
    """An English text with the values for its translation; people's texts are only values."""

    _pattern: str
    _plural: str | None
    _count: int
    _values: Mapping[str, object]

    def __new__(
        cls,
        pattern: str,
        values: Mapping[str, object],
        *,
        plural: str | None = None,
        count: int = 1,
    ) -> Self:
        chosen = pattern if plural is None or count == 1 else plural
        text = super().__new__(cls, chosen.format_map(values))
        text._pattern, text._plural, text._count = pattern, plural, count
        text._values = values
        return text

    def translate_to(self, language: str) -> str:
        """Return the text in a language; English if its catalog lacks it."""
        catalog = _catalog(language)
        if self._plural is None:
            pattern = catalog.gettext(self._pattern) if self._pattern else ""
        else:
            pattern = catalog.ngettext(self._pattern, self._plural, self._count)
        values = {
            name: value.translate_to(language) if isinstance(value, Text) else value
            for name, value in self._values.items()
        }
        return pattern.format_map(values)

    def with_values(self, change: Callable[[str], str]) -> Self:
        """Return the text with `change` applied to all values that are plain strings."""
        values = {name: _apply_change(value, change) for name, value in self._values.items()}
        return type(self)(self._pattern, values, plural=self._plural, count=self._count)


EMPTY: Final = Text("", {})
"""The empty text, which is empty in every language."""


def translatable(pattern: str, **values: object) -> Text:
    """Return a translatable text; `pattern` contains a `{name}` for each value."""
    return Text(pattern, values)


def translatable_count(singular: str, plural: str, count: int, **values: object) -> Text:
    """Return a translatable text with the number `{count}`, in singular or plural."""
    return Text(singular, {"count": count, **values}, plural=plural, count=count)


def marked(text: str) -> str:
    """Return a text unchanged, for storing; `looked_up` translates it for display."""
    return text


def joined(texts: Iterable[str], separator: str = "\n") -> Text:
    """Join texts into one translatable text."""
    values = {f"part{index}": text for index, text in enumerate(texts)}
    pattern = "{separator}".join(f"{{{name}}}" for name in values)
    return Text(pattern, {**values, "separator": separator})


def _apply_change(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, Text):
        return value.with_values(change)
    return change(value) if isinstance(value, str) else value


def translate(text: str, language: str) -> str:
    """Return a text in a language; plain strings stay unchanged."""
    return text.translate_to(language) if isinstance(text, Text) else text


def text_of(error: Exception) -> str:
    """Return an error's text, as a `Text` if it was raised with one."""
    message = error.args[0] if error.args else None
    return message if isinstance(message, Text) else str(error)


def in_every_language(text: Text) -> str:
    """Return a text in each language, one per line, for readers of unknown language."""
    return "\n".join(text.translate_to(language) for language in LANGUAGES)


def escape_to_one_line(text: str) -> str:
    """Escape control characters, line breaks and direction marks, which could fake a line."""
    return _NOT_IN_A_LINE.sub(lambda found: repr(found[0])[1:-1], text)


@lru_cache(maxsize=256)  # every message asks several times; what clients send is not all known
def language_of(locale: str | None) -> str:
    """Return the language for a locale such as "zh-CN" or "zh_CN.UTF-8"; English if unsupported."""
    language = _LANGUAGE_END.split(locale or "", maxsplit=1)[0].lower()
    return language if language in LANGUAGES else LANGUAGES[0]


@cache
def _catalog(language: str) -> gettext.NullTranslations:
    return gettext.translation(_DOMAIN, _FOLDER, [language], fallback=True)


_MAX_CHARS = 2000

_NESTED = frozenset({"found", "reason"})
"""Values that are stored texts themselves; all others are words of people, or figures."""


class StoredPattern:
    """A sentence with a `{name}` for each value; wrap it in `marked` for the catalog."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        parts = [*Formatter().parse(pattern)]
        self.literal_chars = sum(len(literal) for literal, *_ in parts)
        expression = "".join(
            re.escape(literal) + (f"(?P<{name}>.*?)" if name else "") for literal, name, *_ in parts
        )
        self._expression = re.compile(expression, re.DOTALL)
        _patterns.append(self)
        _patterns.sort(key=lambda one: one.literal_chars, reverse=True)

    def with_values(self, **values: object) -> str:
        """Return the English sentence."""
        return self._pattern.format_map(values)

    def read(self, text: str) -> Text | None:
        """Parse a sentence that follows this pattern to a `Text`; None for other sentences."""
        found = self._expression.fullmatch(text)
        if found is None:
            return None
        values = {
            name: looked_up(value) if name in _NESTED else value
            for name, value in found.groupdict().items()
        }
        return Text(self._pattern, values)


_patterns: list[StoredPattern] = []  # the most particular first


def looked_up(text: str) -> Text:
    """Translate a text that was stored in English, if it is known."""
    whole = Text(text.replace("{", "{{").replace("}", "}}"), {})
    if len(text) > _MAX_CHARS or any(_catalog(one).gettext(text) != text for one in LANGUAGES[1:]):
        return whole
    readings = (one.read(text) for one in _patterns)
    return next((one for one in readings if one is not None), whole)
