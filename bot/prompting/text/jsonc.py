"""Parse JSON with comments and trailing commas, and read typed fields of third-party JSON."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import Text, marked, to_translatable, translatable

JsonPath = tuple[str | int, ...]
"""The keys and indexes that lead to a value, such as ("messages", 0, "role")."""

MAX_DEPTH = 64
MAX_CHARS = 10 * 2**20
# Also matches strings, so that text inside them is not taken for a comment.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*"?)|,(?=\s*[]}])', re.DOTALL)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[]{}[,]|[^]{}[,:"\s]+')
_PYTHON_JSON_ERRORS = (
    marked("expecting value"),
    marked("expecting ',' delimiter"),
    marked("expecting ':' delimiter"),
    marked("expecting property name enclosed in double quotes"),
    marked("extra data"),
    marked("invalid control character at"),
    marked("invalid \\escape"),
    marked("invalid \\uXXXX escape"),
    marked("unterminated string starting at"),
)
"""The error messages of Python's `json`, in lower case, for translation."""


class JsonSyntaxError(Exception):
    """A text is not valid JSON with comments; `line_number` counts from 1."""

    def __init__(self, problem: Text, line_number: int = 1) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line_number = line_number


class JsonDocument:
    """A parsed JSON text, with the line of every key."""

    def __init__(self, value: object, text: str = "") -> None:
        self.value = value
        self._text = text

    def line_at(self, path: JsonPath) -> int:
        """Return the line of a key or, if it does not exist, of the innermost value around it."""
        while path not in self._lines_by_path:
            path = path[:-1]
        return self._lines_by_path[path]

    @cached_property
    def _lines_by_path(self) -> dict[JsonPath, int]:
        return _find_key_lines(self._text)


def read_json(text: str) -> JsonDocument:
    """Parse JSON with comments and trailing commas; raise `JsonSyntaxError` if invalid."""
    if len(text) > MAX_CHARS:
        raise JsonSyntaxError(
            translatable("the text is longer than {limit} characters", limit=f"{MAX_CHARS:,}")
        )
    strict_text = _TRAILING_COMMA.sub(
        _blank_out_comment, _STRING_OR_COMMENT.sub(_blank_out_comment, text.removeprefix("\ufeff"))
    )
    return JsonDocument(read_strict_json(strict_text, rejects_duplicate_keys=True), strict_text)


def read_strict_json(text: str, *, rejects_duplicate_keys: bool = False) -> object:
    """Parse strict JSON; raise `JsonSyntaxError` if it is invalid or cannot be stored."""
    has_duplicate_keys = False

    def build_object(keys_and_values: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal has_duplicate_keys
        members = dict(keys_and_values)
        has_duplicate_keys |= len(members) < len(keys_and_values)
        return members

    value: object = None
    try:
        value = json.loads(text, object_pairs_hook=build_object, parse_constant=_refuse_constant)
        nested_values = [value]
        for _ in range(MAX_DEPTH + 1):
            nested_values = [child for parent in nested_values for child in _list_children(parent)]
        json.dumps(value if not nested_values else 0, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        problem = to_translatable(error.msg[0].lower() + error.msg[1:])
        raise JsonSyntaxError(problem, error.lineno) from None
    except RecursionError:
        nested_values = [text]
    except UnicodeEncodeError:
        raise JsonSyntaxError(
            translatable("this text has a lone surrogate, which cannot be stored")
        ) from None
    except ValueError:  # not a number, or one with too many digits
        raise JsonSyntaxError(translatable("this number is too large")) from None
    if nested_values:
        raise JsonSyntaxError(
            translatable("brackets are nested more than {limit} levels deep", limit=MAX_DEPTH)
        )
    if has_duplicate_keys and rejects_duplicate_keys:
        _find_key_lines(text)
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise JsonSyntaxError(translatable("{word} is not a JSON number", word=word))


def _list_children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _blank_out_comment(match: re.Match[str]) -> str:
    """Replace a comment or trailing comma with spaces, but keep line breaks and JSON strings."""
    return match[1] or re.sub(r"[^\n]", " ", match[0])


def _find_key_lines(text: str) -> dict[JsonPath, int]:
    """Return the line of each key and list item in valid JSON.

    Raises `JsonSyntaxError` for duplicate keys.
    """
    lines_by_path: dict[JsonPath, int] = {(): 1}
    line, end = 1, 0
    open_path: list[Any] = []  # the current key or index in each open container; None before a key
    for token in _TOKEN.finditer(text):
        line += text.count("\n", end, token.start())
        end = token.start()
        symbol, current_key = token[0], open_path[-1] if open_path else ""
        if symbol in {"}", "]"}:
            open_path.pop()
        elif symbol == ",":
            open_path[-1] = current_key + 1 if isinstance(current_key, int) else None
        elif current_key is None:
            open_path[-1] = json.loads(symbol)
            if first_line := lines_by_path.get(tuple(open_path)):
                problem = translatable(
                    "duplicate key {key}, first used on line {first}",
                    key=repr(open_path[-1]),
                    first=first_line,
                )
                raise JsonSyntaxError(problem, line)
            lines_by_path[tuple(open_path)] = line
        else:
            if isinstance(current_key, int):
                lines_by_path[tuple(open_path)] = line
            if symbol in {"{", "["}:
                open_path.append(None if symbol == "{" else 0)
    return lines_by_path


T = TypeVar("T")


class JsonFields:
    """Reads fields of another program's JSON object; values of a wrong type count as missing.

    Hidden characters are removed from texts, and line endings become line feeds.
    """

    def __init__(self, value: object) -> None:
        self.values: Mapping[str, object] = value if isinstance(value, Mapping) else {}

    def text(self, name: str) -> str:
        return _clean_text(self._read_value(name, str) or "")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the nonempty strings in a list field, or () if the field is missing."""
        items = self._read_value(name, list) or []
        return tuple(_clean_text(one) for one in items if one and isinstance(one, str))

    def integer(self, name: str) -> int | None:
        """Return a number field as an integer, limited to ±1e9, or None if it is missing."""
        number = self.number(name)
        return None if number is None else int(max(-1e9, min(1e9, number)))

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        return None

    def flag(self, name: str, *, default: bool = False) -> bool:
        flag = self.optional_flag(name)
        return default if flag is None else flag

    def optional_flag(self, name: str) -> bool | None:
        return self._read_value(name, bool)

    def object_or_none(self, name: str) -> dict[str, object] | None:
        return self._read_value(name, dict)

    def list_of_objects(self, name: str) -> list[Mapping[str, object]]:
        return [one for one in self._read_value(name, list) or [] if isinstance(one, Mapping)]

    def _read_value(self, name: str, value_type: type[T]) -> T | None:
        value = self.values.get(name)
        return value if isinstance(value, value_type) else None


def _clean_text(text: str) -> str:
    """Remove hidden characters and carriage returns, which models do not expect."""
    return strip_hidden_text(text).replace("\r\n", "\n").replace("\r", "\n")
