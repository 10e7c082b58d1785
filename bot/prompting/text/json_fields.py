"""Read fields of JSON that another program wrote: each has its type, or the error names it."""

from collections.abc import Mapping
from typing import TypeVar

from bot.errors import PresetError
from bot.prompting.text.confusables import strip_hidden_text

T = TypeVar("T")


class JsonFields:
    """Fields by name; null is the same as not there.

    A wrong type raises `PresetError`, which names it and `where` it stands. What is `lenient` gives
    nothing instead: the `extensions` of a card belong to whatever program wrote them. Texts come
    without letters that models read and people do not see.
    """

    def __init__(self, given: Mapping[str, object], where: str, *, lenient: bool = False) -> None:
        self.values = given
        self.where = where
        self._lenient = lenient

    def text(self, name: str) -> str:
        """A text, empty where there is none."""
        return strip_hidden_text(self._read(name, str, "a text") or "")

    def texts(self, name: str) -> tuple[str, ...]:
        """Those that are not empty."""
        found = self._read(name, list, "a list of texts") or []
        if not all(isinstance(one, str) for one in found):
            raise PresetError(f"{self.where}: {name} must be a list of texts")
        return tuple(strip_hidden_text(one) for one in found if one)

    def integer(self, name: str) -> int | None:
        """A number without its fraction, a thousand million either way at most."""
        number = self.number(name)
        return None if number is None else int(max(-1e9, min(1e9, number)))

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        return self._read(name, float, "a number")

    def flag(self, name: str, *, default: bool = False) -> bool:
        told = self.optional_flag(name)
        return default if told is None else told

    def optional_flag(self, name: str) -> bool | None:
        """True or false, None where it is not said."""
        return self._read(name, bool, "true or false")

    def object_or_none(self, name: str) -> dict[str, object] | None:
        return self._read(name, dict, "an object {...}")

    def _read(self, name: str, kind: type[T], words: str) -> T | None:
        value = self.values.get(name)
        if value is None or isinstance(value, kind):
            return value
        if self._lenient:
            return None
        raise PresetError(f"{self.where}: {name} must be {words}, not {type(value).__name__}")
