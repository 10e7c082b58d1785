"""A character as ChatHaruhi keeps it: a row for the persona, and a row for each story.

A row has its text as `text` or, in base64, as `enc_text`, and a column for each embedding: there
stand `system_prompt`, `config`, or the story's vector (float32, big-endian, in base64).
"""

import base64
import binascii
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bot.errors import CharacterError
from bot.prompting.text.confusables import strip_hidden_text

Row: TypeAlias = Mapping[str, object]
Floats: TypeAlias = Sequence[float]

_TEXT_COLUMNS = ("text", "enc_text")
_FLOAT_BYTES = 4
_CONFIG = "Reserve Config Setting Here"  # what ChatHaruhi writes into the row that it keeps free


@dataclass(frozen=True, slots=True)
class CharacterData:
    """What a character is made of, besides its name."""

    persona: str
    texts: tuple[str, ...] = ()
    vectors: tuple[Floats, ...] | None = None  # None: there is not one for every text
    column: str | None = None  # the embedding that made them


def read_jsonl(text: str) -> list[Row]:
    """The rows of a file; a line that is no JSON object is passed over, as in ChatHaruhi."""
    rows: list[Row] = []
    for line in text.split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def read_rows(rows: Iterable[Row], source: str, column: str | None = None) -> CharacterData:
    """Of several personas the last counts; `column` None: the first column with vectors.

    Raises:
        CharacterError: there is no persona, or a text or a vector cannot be decoded.
    """
    rows = list(rows)
    column = column or _first_column(rows)
    persona: str | None = None
    texts: list[str] = []
    vectors: list[Floats | None] = []
    for number, row in enumerate(rows, 1):
        try:
            match row.get(column or ""):
                case "system_prompt":
                    persona = _text(row)
                case "config":
                    continue
                case vector:
                    texts.append(_text(row))
                    vectors.append(
                        decode_floats(vector) if vector and isinstance(vector, str) else None
                    )
        except ValueError as error:
            raise CharacterError(f"{source}, row {number}: {error}") from error
    if not persona:
        raise CharacterError(
            f"{source}: no row has 'system_prompt' in the column {column!r};"
            " add one with the persona"
        )
    found = tuple(vector for vector in vectors if vector is not None)
    return CharacterData(persona, tuple(texts), found if len(found) == len(texts) else None, column)


def write_jsonl(persona: str, texts: Sequence[str], vectors: Sequence[Floats], column: str) -> str:
    """A file that `read_rows`, ChatHaruhi and the data set hub can read."""
    rows = [
        {"text": persona, column: "system_prompt"},
        {"text": _CONFIG, column: "config"},
        *(
            {"text": text, column: encode_floats(vector)}
            for text, vector in zip(texts, vectors, strict=True)
        ),
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def encode_floats(vector: Floats) -> str:
    return base64.b64encode(struct.pack(f"!{len(vector)}f", *vector)).decode()


def decode_floats(text: str) -> Floats:
    """Raises ValueError if these are no float32 numbers in base64."""
    data = _decoded(text)
    if len(data) % _FLOAT_BYTES:
        raise ValueError("the vector ends in the middle of a number")
    return struct.unpack(f"!{len(data) // _FLOAT_BYTES}f", data)


def decode_text(text: str) -> str:
    """Raises ValueError if this is no UTF-8 in base64."""
    return _decoded(text).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:20]!r} is not base64 ({error})") from error


def _first_column(rows: Iterable[Row]) -> str | None:
    return next((key for row in rows for key in row if key not in _TEXT_COLUMNS), None)


def _text(row: Row) -> str:
    """The text, without letters that models read and people do not see."""
    match row:
        case {"text": str(text)}:
            return strip_hidden_text(text)
        case {"enc_text": str(encoded)}:
            return strip_hidden_text(decode_text(encoded))
        case _:
            raise ValueError("it has neither 'text' nor 'enc_text'")
