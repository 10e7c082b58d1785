"""Read typed fields of JSON objects that other programs wrote; errors name the field."""

from collections.abc import Mapping
from typing import TypeVar

from bot.errors import PresetError
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import Text, translatable

T = TypeVar("T")
_LIST_OF_TEXTS = translatable("a list of texts")


class JsonFields:
    """The fields of one object; null means absent.

    A wrong type raises `PresetError`, which names the field and `where` it is. With `lenient` such
    a field counts as absent, for the `extensions` of cards, which other programs define. Hidden
    characters are removed from texts, and lines end in a line feed alone.
    """

    def __init__(self, given: Mapping[str, object], where: str, *, lenient: bool = False) -> None:
        self.values = given
        self.where = where
        self._lenient = lenient

    def text(self, name: str) -> str:
        """Return a text; empty if absent."""
        return _plain_text(self._read(name, str, translatable("a text")) or "")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of a list that are not empty."""
        found = self._read(name, list, _LIST_OF_TEXTS) or []
        if not all(isinstance(one, str) for one in found):
            raise PresetError(
                translatable(
                    "{where}: {name} must be {expected}",
                    where=self.where,
                    name=name,
                    expected=_LIST_OF_TEXTS,
                )
            )
        return tuple(_plain_text(one) for one in found if one)

    def integer(self, name: str) -> int | None:
        """Return a number without its fraction, limited to ±1e9."""
        number = self.number(name)
        return None if number is None else int(max(-1e9, min(1e9, number)))

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        return self._read(name, float, translatable("a number"))

    def flag(self, name: str, *, default: bool = False) -> bool:
        flag = self.optional_flag(name)
        return default if flag is None else flag

    def optional_flag(self, name: str) -> bool | None:
        """Return true or false; None if absent."""
        return self._read(name, bool, translatable("true or false"))

    def object_or_none(self, name: str) -> dict[str, object] | None:
        return self._read(name, dict, translatable("an object {example}", example="{...}"))

    def _read(self, name: str, kind: type[T], expected: Text) -> T | None:
        value = self.values.get(name)
        if value is None or isinstance(value, kind):
            return value
        if self._lenient:
            return None
        raise PresetError(
            translatable(
                "{where}: {name} must be {expected}, not {given}",
                where=self.where,
                name=name,
                expected=expected,
                given=type(value).__name__,
            )
        )


def _plain_text(text: str) -> str:
    """Remove hidden characters, and the carriage returns of Windows, which no model expects."""
    return strip_hidden_text(text).replace("\r\n", "\n").replace("\r", "\n")
