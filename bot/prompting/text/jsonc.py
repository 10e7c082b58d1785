"""Read JSON with comments and trailing commas, and the typed fields of foreign JSON."""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, TypeVar

from bot.errors import PresetError
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import Text, looked_up, marked, translatable
from bot.value_class import value_class

Path = tuple[str | int, ...]
"""The path of a value: ("messages", 0, "role")."""

MAX_DEPTH = 64
MAX_CHARS = 10 * 2**20
MAX_COMMAS = 100_000
"""Texts with more, which take seconds, must be strict JSON, and get no line numbers."""
_SKIPPED = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_OF_PYTHON = (
    marked("expecting value"),
    marked("invalid control character at"),
    marked("invalid \\escape"),
    marked("invalid \\uXXXX escape"),
    marked("unterminated string starting at"),
)
"""A type as `json` names it, in lower case."""


class JsonSyntaxError(Exception):
    """The text is not JSON with comments; `line` and `column` count from 1."""

    def __init__(self, problem: Text, line: int, column: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column


@value_class
class JsonDocument:
    """A parsed text, and the line of every key."""

    value: object
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int:
        """Return the line of a key, or of the innermost existing value around it."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_json(text: str) -> JsonDocument:
    """Parse JSON with comments and trailing commas.

    Raises:
        JsonSyntaxError: also for a duplicate key in one object, for NaN and for Infinity.
    """
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_CHARS:
        told = translatable("the text is longer than {limit} characters", limit=f"{MAX_CHARS:,}")
        raise JsonSyntaxError(told, 1, 1)
    if text.count(",") > MAX_COMMAS:
        return JsonDocument(read_strict_json(text, refuses_duplicates=True), {(): 1})
    return _JsoncReader(text).read()


def read_strict_json(text: str, *, refuses_duplicates: bool = False) -> object:
    """Parse JSON without comments; it is fast, and texts that cannot be stored again are refused.

    Raises:
        JsonSyntaxError: also for NaN, Infinity and brackets deeper than `MAX_DEPTH`.
    """

    def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if refuses_duplicates and len(found) < len(pairs):
            raise JsonSyntaxError(translatable("an object has the same key twice"), 1, 1)
        return found

    value: object = None
    try:
        value = json.loads(text, object_pairs_hook=object_of, parse_constant=_refuse_constant)
        level = [value]
        for _ in range(MAX_DEPTH + 1):
            level = [inner for outer in level for inner in _children(outer)]
        json.dumps(value if not level else 0, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        problem = looked_up(error.msg[0].lower() + error.msg[1:])
        raise JsonSyntaxError(problem, error.lineno, error.colno) from None
    except RecursionError:
        level = [text]
    except UnicodeEncodeError:
        problem = translatable("this text has a lone surrogate, which cannot be stored")
        raise JsonSyntaxError(problem, 1, 1) from None
    except ValueError:  # not a number, or one with too many digits
        raise JsonSyntaxError(translatable("this number is too large"), 1, 1) from None
    if level:
        problem = translatable("brackets are nested deeper than {limit}", limit=MAX_DEPTH)
        raise JsonSyntaxError(problem, 1, 1)
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise JsonSyntaxError(translatable("{word} is not a JSON number", word=word), 1, 1)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class _JsoncReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_ends = [index for index, char in enumerate(text) if char == "\n"]
        self._lines: dict[Path, int] = {}
        self._scalars = json.JSONDecoder(parse_constant=_refuse_constant)

    def read(self) -> JsonDocument:
        self._skip()
        self._lines[()] = self._line()
        value = self._value(())
        self._skip()
        if self._at < len(self._text):
            self._fail(translatable("there is more text after the end of the JSON"))
        return JsonDocument(value, self._lines)

    def _value(self, path: Path) -> object:
        if len(path) > MAX_DEPTH:
            self._fail(translatable("brackets are nested deeper than {limit}", limit=MAX_DEPTH))
        match self._peek():
            case "{":
                return self._object(path)
            case "[":
                return self._array(path)
            case _:
                return self._scalar()

    def _object(self, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in self._items("}"):
            line = self._line()
            key = self._scalar() if self._peek() == '"' else None
            if not isinstance(key, str):
                self._fail(
                    translatable(
                        "a key in double quotes or a {closing} is missing here", closing='"}"'
                    )
                )
            if key in found:
                first = self._lines[(*path, key)]
                told = translatable(
                    "duplicate key {key}, first in line {first}", key=repr(key), first=first
                )
                self._fail(told, line)
            self._lines[(*path, key)] = line
            self._skip()
            if self._peek() != ":":
                self._fail(translatable('a ":" is missing after the key {key}', key=repr(key)))
            self._at += 1
            self._skip()
            found[key] = self._value((*path, key))
        return found

    def _array(self, path: Path) -> list[object]:
        found: list[object] = []
        for _ in self._items("]"):
            self._lines[(*path, len(found))] = self._line()
            found.append(self._value((*path, len(found))))
        return found

    def _items(self, closing: str) -> Iterator[None]:
        """Yield once at the beginning of each item between brackets, and consume the commas."""
        opened = self._line()
        self._at += 1
        self._skip()
        while self._peek() != closing:
            if not self._peek():
                self._fail(
                    translatable(
                        'the bracket opened in line {line} is never closed by "{closing}"',
                        line=opened,
                        closing=closing,
                    )
                )
            yield
            self._skip()
            if self._peek() == ",":
                self._at += 1
                self._skip()
            elif self._peek() not in {closing, ""}:
                self._fail(translatable('a "," or "{closing}" is missing here', closing=closing))
        self._at += 1

    def _scalar(self) -> object:
        if self._at == len(self._text):
            self._fail(translatable("the text ends too early"))
        try:
            value, self._at = self._scalars.raw_decode(self._text, self._at)
        except JsonSyntaxError as error:  # not a number
            self._fail(error.problem)
        except json.JSONDecodeError as error:
            self._fail(looked_up(error.msg[0].lower() + error.msg[1:]), self._line(error.pos))
        except ValueError:  # an integer with more digits than Python converts
            self._fail(translatable("this number is too long"))
        if isinstance(value, float) and not math.isfinite(value):  # 1e999
            self._fail(translatable("this number is too large"))
        if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
            self._fail(translatable("this text has a lone surrogate, which cannot be stored"))
        return value

    def _skip(self) -> None:
        """Skip white space and comments, `// ...` and `/* ... */`."""
        if skipped := _SKIPPED.match(self._text, self._at):
            self._at = skipped.end()
        if self._text.startswith("/*", self._at):
            self._fail(translatable("this comment is never closed by */"))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _line(self, position: int | None = None) -> int:
        return bisect_left(self._line_ends, self._at if position is None else position) + 1

    def _fail(self, problem: Text, line: int | None = None) -> NoReturn:
        column = self._at - self._text.rfind("\n", 0, self._at)
        raise JsonSyntaxError(problem, line or self._line(), column)


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
            raise PresetError.translatable(
                "{where}: {name} must be {expected}",
                where=self.where,
                name=name,
                expected=_LIST_OF_TEXTS,
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
        raise PresetError.translatable(
            "{where}: {name} must be {expected}, not {given}",
            where=self.where,
            name=name,
            expected=expected,
            given=type(value).__name__,
        )


def _plain_text(text: str) -> str:
    """Remove hidden characters, and the carriage returns of Windows, which no model expects."""
    return strip_hidden_text(text).replace("\r\n", "\n").replace("\r", "\n")
