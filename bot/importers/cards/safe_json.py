"""Parse the JSON of a card safely: one object, limited nesting, no lone surrogates."""

import json
import math
from typing import NoReturn

from bot.errors import PresetError
from bot.texts.text import text_of, translatable

Json = dict[str, object]

MAX_FILE_BYTES = 10 * 2**20
_MAX_DEPTH = 64


def load_json(data: bytes, source: str) -> Json:
    """Parse a JSON object.

    Raises:
        PresetError: the data is no JSON object that can be stored again; the text is one line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PresetError(
            translatable("{source}: the card's text is not UTF-8; export it again", source=source)
        ) from None
    try:
        value = json.loads(text, parse_constant=_reject_constant, parse_float=_parse_float)
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        problem = text_of(error)
        if isinstance(error, json.JSONDecodeError):
            problem = f"{error.msg}: line {error.lineno}, column {error.colno}"
        raise PresetError(
            translatable(
                "{source}: the card is not valid JSON ({problem}); export it again",
                source=source,
                problem=problem,
            )
        ) from None
    if not isinstance(value, dict):
        raise PresetError(
            translatable(
                "{source}: the card is not a JSON object {{...}}; export it again", source=source
            )
        )
    _check_depth(value, source)
    try:
        dump_json(value)
    except UnicodeEncodeError:
        raise PresetError(
            translatable(
                "{source}: the card holds half of a surrogate pair (a broken emoji); remove it",
                source=source,
            )
        ) from None
    return value


def dump_json(content: Json, *, indent: int | None = None) -> bytes:
    """Write JSON as UTF-8.

    Raises:
        UnicodeEncodeError: a text holds half of a surrogate pair.
    """
    text = json.dumps(content, ensure_ascii=False, indent=indent, allow_nan=False)
    return text.encode()


def _check_depth(value: object, source: str) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return
    raise _too_deep(source)


def _children(value: object) -> list[object]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case _:
            return []


def _too_deep(source: str) -> PresetError:
    return PresetError(
        translatable(
            "{source}: the card nests brackets deeper than {limit}, which no"
            " program needs; get it from somebody you trust",
            source=source,
            limit=_MAX_DEPTH,
        )
    )


def _parse_float(word: str) -> float:
    return float(word) if math.isfinite(float(word)) else _reject_constant(word)


def _reject_constant(word: str) -> NoReturn:
    raise ValueError(translatable("{word} is not a JSON number", word=word))
