"""Texts for people: in English in the code, in other languages in gettext catalogs.

Code creates a `Text` in English; it is translated where the reader's language is known. Texts that
were stored in English are translated when they are shown (`to_translatable`). `make catalogues`
updates the catalogs in bot/texts/locales.
"""

import gettext
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from string import Formatter
from typing import Final, Self

_LOCALES_FOLDER = Path(__file__).parent / "locales"
_GETTEXT_DOMAIN = "troupe"
_LANGUAGE_SEPARATOR = re.compile(r"[-_.@]")
_LINE_FORGING_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LANGUAGES: Final = ("en", "zh")
"""The supported languages; the first is the language of the code and needs no catalog."""


class Text(str):
    """An English string that can be translated: it keeps its pattern and values.

    Text written by people may be a value, but never a part of the pattern.
    """

    _pattern: str
    _plural_pattern: str | None
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
        english_pattern = pattern if plural is None or count == 1 else plural
        text = super().__new__(cls, english_pattern.format_map(values))
        text._pattern, text._plural_pattern, text._count = pattern, plural, count
        text._values = values
        return text

    def translate_to(self, language: str) -> str:
        """Return the text in a language, or in English if the catalog has no translation."""
        catalog = _load_catalog(language)
        if self._plural_pattern is None:
            pattern = catalog.gettext(self._pattern) if self._pattern else ""
        else:
            pattern = catalog.ngettext(self._pattern, self._plural_pattern, self._count)
        values = {
            name: value.translate_to(language) if isinstance(value, Text) else value
            for name, value in self._values.items()
        }
        return pattern.format_map(values)

    def with_values(self, change: Callable[[str], str]) -> Self:
        """Return a copy with `change` applied to every value that is a plain string."""
        values = {name: _apply_to_strings(value, change) for name, value in self._values.items()}
        return type(self)(self._pattern, values, plural=self._plural_pattern, count=self._count)


EMPTY_TEXT: Final = Text("", {})
"""The empty text, the same in every language."""


def translatable(pattern: str, **values: object) -> Text:
    """Return a translatable text; `pattern` contains a `{name}` for each value."""
    return Text(pattern, values)


def translatable_count(singular: str, plural: str, count: int, **values: object) -> Text:
    """Return a translatable text in singular or plural form; both may contain `{count}`."""
    return Text(singular, {"count": count, **values}, plural=plural, count=count)


def marked(text: str) -> str:
    """Return a text unchanged, marking it for the catalogs that `to_translatable` uses."""
    return text


def join_texts(texts: Iterable[str], separator: str = "\n") -> Text:
    """Join texts into one; each `Text` among them remains translatable."""
    values = {f"part{index}": text for index, text in enumerate(texts)}
    pattern = "{separator}".join(f"{{{name}}}" for name in values)
    return Text(pattern, {**values, "separator": separator})


def _apply_to_strings(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, Text):
        return value.with_values(change)
    return change(value) if isinstance(value, str) else value


def translate(text: str, language: str) -> str:
    """Return a `Text` in a language, or a plain string unchanged."""
    return text.translate_to(language) if isinstance(text, Text) else text


def error_text(error: Exception) -> str:
    """Return an error's message, as a `Text` if the error was raised with one."""
    message = error.args[0] if error.args else None
    return message if isinstance(message, Text) else str(error)


def translate_to_all_languages(text: Text) -> str:
    """Return a text in all languages, one per line, for readers whose language is unknown."""
    return "\n".join(text.translate_to(language) for language in LANGUAGES)


def escape_to_one_line(text: str) -> str:
    """Escape characters that could forge another line: control, line break and direction marks."""
    return _LINE_FORGING_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)


@lru_cache(maxsize=256)  # called several times per message; clients may send any locale
def supported_language(locale: str | None) -> str:
    """Return the supported language for a locale such as "zh-CN" or "zh_CN.UTF-8", or English."""
    language = _LANGUAGE_SEPARATOR.split(locale or "", maxsplit=1)[0].lower()
    return language if language in LANGUAGES else LANGUAGES[0]


@cache
def _load_catalog(language: str) -> gettext.NullTranslations:
    return gettext.translation(_GETTEXT_DOMAIN, _LOCALES_FOLDER, [language], fallback=True)


_MAX_PARSED_CHARS = 2000

_TRANSLATED_VALUE_NAMES = frozenset({"found", "reason"})
"""Names of values that are translated, too; other values are numbers or people's words."""


class StoredPattern:
    """The pattern of a sentence that is stored in English with its values filled in.

    The pattern has a `{name}` for each value, and must be wrapped in `marked`. `to_translatable`
    parses stored sentences with all patterns, in order to translate them.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        parts = [*Formatter().parse(pattern)]
        self.literal_length = sum(len(literal) for literal, *_ in parts)
        regex_text = "".join(
            re.escape(literal) + (f"(?P<{name}>.*?)" if name else "") for literal, name, *_ in parts
        )
        self._regex = re.compile(regex_text, re.DOTALL)
        _stored_patterns.append(self)
        _stored_patterns.sort(key=lambda one: one.literal_length, reverse=True)

    def with_values(self, **values: object) -> str:
        """Return the English sentence with these values."""
        return self._pattern.format_map(values)

    def parse(self, text: str) -> Text | None:
        """Parse a sentence into a `Text`, or return None if it does not match this pattern."""
        pattern_match = self._regex.fullmatch(text)
        if pattern_match is None:
            return None
        values = {
            name: to_translatable(value) if name in _TRANSLATED_VALUE_NAMES else value
            for name, value in pattern_match.groupdict().items()
        }
        return Text(self._pattern, values)


_stored_patterns: list[StoredPattern] = []  # the pattern with the most literal text first


def to_translatable(text: str) -> Text:
    """Return a translatable text for a stored English one; unknown texts remain in English."""
    unparsed_text = Text(text.replace("{", "{{").replace("}", "}}"), {})
    has_translation = any(_load_catalog(one).gettext(text) != text for one in LANGUAGES[1:])
    if len(text) > _MAX_PARSED_CHARS or has_translation:
        return unparsed_text
    parsed_texts = (one.parse(text) for one in _stored_patterns)
    return next((one for one in parsed_texts if one is not None), unparsed_text)
