"""Read and write ChatHaruhi's JSONL character files: one row for the persona, one for each story.

A row has its text in `text` or, as base64, in `enc_text`. A column for each embedding contains
`system_prompt`, `config`, or the vector of the story (float32, big-endian, base64). See
docs/sources.md#haruhi.
"""

import base64
import binascii
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from bot.chat.story import Vector
from bot.errors import CharacterError
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import Text, text_of, translatable

HaruhiRow: TypeAlias = Mapping[str, object]

_TEXT_COLUMNS = ("text", "enc_text")
_VERSION_1_KEYS = {
    "role_A",
    "dialogue",
    "query",
    "response",
    "keywords",
    "embed",
    "title_text_embed",
}
_FLOAT_BYTES = 4
_CONFIG = "Reserve Config Setting Here"  # the text of the row that ChatHaruhi reserves


@frozen_dataclass
class CharacterData:
    """The contents of a character file."""

    persona: str
    texts: tuple[str, ...] = ()
    vectors: tuple[Vector, ...] | None = None
    """None: not every text has one."""
    column: str | None = None
    """The name of the embedding."""


def read_jsonl(text: str) -> list[HaruhiRow]:
    """Return the rows of a file; lines that are not JSON objects are skipped, as in ChatHaruhi."""
    rows: list[HaruhiRow] = []
    for line in text.split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def read_rows(rows: Iterable[HaruhiRow], source: str, column: str | None = None) -> CharacterData:
    """Return the character in these rows; the last of several personas is used.

    Args:
        rows: the rows of a file or data set.
        source: the name of the file, for errors.
        column: the column with the vectors; None: the first one.

    Raises:
        CharacterError: there is no persona, or a text or a vector cannot be decoded.
    """
    rows = list(rows)
    if not rows:
        raise CharacterError(
            translatable(
                "{source}: no row has 'system_prompt': the file has no line with a JSON object",
                source=source,
            )
        )
    if _VERSION_1_KEYS & rows[0].keys() and not rows[0].keys() & set(_TEXT_COLUMNS):
        raise CharacterError(
            translatable(
                "{source} holds dialogues or vectors of ChatHaruhi 1, without a"
                " persona; use a zip of the character's folder, with"
                " system_prompt.txt and the texts",
                source=source,
            )
        )
    column = column or _first_column(rows)
    persona: str | None = None
    texts: list[str] = []
    vectors: list[Vector | None] = []
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
            raise CharacterError(
                translatable(
                    "{source}, row {number}: {error}",
                    source=source,
                    number=number,
                    error=text_of(error),
                )
            ) from error
    if not persona:
        raise CharacterError(_problem_without_persona(persona, source, column))
    found = tuple(vector for vector in vectors if vector is not None)
    return CharacterData(persona, tuple(texts), found if len(found) == len(texts) else None, column)


def _problem_without_persona(persona: str | None, source: str, column: str | None) -> Text:
    if persona is not None:
        return translatable(
            "{source}: the persona, the row with 'system_prompt', is empty; write its text",
            source=source,
        )
    return translatable(
        "{source}: no row has 'system_prompt' in the column {column}; add a row with the persona",
        source=source,
        column=repr(column),
    )


def write_jsonl(persona: str, texts: Sequence[str], vectors: Sequence[Vector], column: str) -> str:
    """Return the text of a file that `read_rows`, ChatHaruhi and the data set hub can read."""
    rows = [
        {"text": persona, column: "system_prompt"},
        {"text": _CONFIG, column: "config"},
        *(
            {"text": text, column: encode_floats(vector)}
            for text, vector in zip(texts, vectors, strict=True)
        ),
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def encode_floats(vector: Vector) -> str:
    return base64.b64encode(struct.pack(f"!{len(vector)}f", *vector)).decode()


def decode_floats(text: str) -> Vector:
    """Decode float32 numbers from base64.

    Raises:
        ValueError: the text is malformed.
    """
    data = _decode_base64(text)
    if len(data) % _FLOAT_BYTES:
        raise ValueError(translatable("the vector is not a whole number of float32 values"))
    return struct.unpack(f"!{len(data) // _FLOAT_BYTES}f", data)


def decode_text(text: str) -> str:
    """Decode UTF-8 from base64.

    Raises:
        ValueError: the text is malformed.
    """
    return _decode_base64(text).decode()


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(
            translatable("{text} is not base64 ({error})", text=repr(text[:20]), error=str(error))
        ) from error


def _first_column(rows: Iterable[HaruhiRow]) -> str | None:
    return next((key for row in rows for key in row if key not in _TEXT_COLUMNS), None)


def _text(row: HaruhiRow) -> str:
    """Return the text of a row without hidden characters."""
    match row:
        case {"text": str(text)}:
            return strip_hidden_text(text)
        case {"enc_text": str(encoded)}:
            return strip_hidden_text(decode_text(encoded))
        case _:
            raise ValueError(translatable("it has neither 'text' nor 'enc_text'"))
