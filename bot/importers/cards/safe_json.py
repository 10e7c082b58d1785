"""A card's JSON, read without trusting it: one object, no bombs of depth, no half surrogates."""

import json
import math
from typing import NoReturn

from bot.errors import PresetError

Json = dict[str, object]

MAX_FILE_BYTES = 10 * 2**20
_MAX_DEPTH = 64


def load(data: bytes, source: str) -> Json:
    """Raise PresetError in one line for what is no JSON object that can be stored again."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PresetError(f"{source}: the card's text is not UTF-8; export it anew") from None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        problem = str(error).partition(": line")[0]
        raise PresetError(
            f"{source}: the card is no valid JSON ({problem}); export it anew"
        ) from None
    if not isinstance(value, dict):
        raise PresetError(f"{source}: a card is one JSON object {{...}}; export it anew")
    _check_depth(value, source)
    try:
        dump(value)
    except UnicodeEncodeError:
        raise PresetError(
            f"{source}: the card holds half of a surrogate pair (a broken emoji); take it out"
        ) from None
    return value


def dump(content: Json, *, indent: int | None = None) -> bytes:
    """Raise UnicodeEncodeError for half of a surrogate pair."""
    text = json.dumps(content, ensure_ascii=False, indent=indent, allow_nan=False)
    return text.encode()


def _check_depth(value: object, source: str) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise _too_deep(source)


def _inside(value: object) -> list[object]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case _:
            return []


def _too_deep(source: str) -> PresetError:
    return PresetError(
        f"{source}: the card nests brackets deeper than {_MAX_DEPTH}; no program needs that, so"
        " get the card from somebody you trust"
    )


def _finite(word: str) -> float:
    return float(word) if math.isfinite(float(word)) else _refuse(word)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")
