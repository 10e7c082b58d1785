"""Load ChatHaruhi characters: JSONL files, built-in roles, and roles from the data set hub."""

import base64
import binascii
import difflib
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module, resources  # noqa: TID251 # an optional library
from importlib.util import find_spec
from typing import TypeAlias

from bot.chat.story import Vector
from bot.errors import CharacterError
from bot.prompting.persona import DEFAULT_PLACEHOLDER, parse_persona
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import error_text, translatable
from bot.value_class import value_class

_SPEAKER_PREFIX = r"^[^\n:：「」]*[:：][ \t]*"
# The closing bracket is at the end of a line, before the next speaker's opening bracket.
_BRACKETED_UTTERANCE = re.compile(
    rf"({_SPEAKER_PREFIX})「((?:(?!{_SPEAKER_PREFIX}「)[\s\S])*?)」(?=[ \t\r]*$)", re.MULTILINE
)


def strip_dialogue_brackets(text: str) -> str:
    """Remove the brackets around whole utterances: `春日: 「早！」` becomes `春日: 早！`."""
    return _BRACKETED_UTTERANCE.sub(r"\1\2", text)


HaruhiRow: TypeAlias = Mapping[str, object]

_TEXT_COLUMNS = ("text", "enc_text")
_VERSION_1_KEYS = {"role_A", "dialogue", "query", "response", "keywords", "embed"} | {
    "title_text_embed"
}
_FLOAT_BYTES = 4
_RESERVED_TEXT = "Reserve Config Setting Here"  # the text of ChatHaruhi's reserved row


@value_class
class CharacterData:
    persona: str
    texts: tuple[str, ...] = ()
    vectors: tuple[Vector, ...] | None = None
    """The texts' vectors, or None if any is missing."""
    column: str | None = None
    """The name of the column with the vectors, which is also the embedding's name."""


def read_jsonl(text: str) -> list[HaruhiRow]:
    """Return a file's rows, skipping lines that are not JSON objects, as ChatHaruhi does."""
    rows: list[HaruhiRow] = []
    for line in text.split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def read_rows(rows: Iterable[HaruhiRow], column: str | None = None) -> CharacterData:
    """Read a character from rows, and vectors from `column`; raise `CharacterError` if invalid."""
    rows = list(rows)
    if not rows:
        raise CharacterError.translatable(
            "no row has 'system_prompt', because the file contains no JSON objects"
        )
    if _VERSION_1_KEYS & rows[0].keys() and not rows[0].keys() & set(_TEXT_COLUMNS):
        raise CharacterError.translatable(
            "it contains ChatHaruhi 1 dialogues or vectors, but no persona; use a zip of the"
            " character's folder, with system_prompt.txt and the texts"
        )
    other_columns = (key for row in rows for key in row if key not in _TEXT_COLUMNS)
    column = column or next(other_columns, "")
    persona: str | None = None
    texts: list[str] = []
    vectors: list[Vector] = []
    for number, row in enumerate(rows, 1):
        try:
            match row.get(column):
                case "system_prompt":
                    persona = _read_row_text(row)
                case "config":
                    continue
                case vector:
                    texts.append(_read_row_text(row))
                    if vector and isinstance(vector, str):
                        vectors.append(decode_floats(vector))
        except ValueError as error:
            raise CharacterError.translatable(
                "row {number}: {error}", number=number, error=error_text(error)
            ) from error
    if not persona:
        raise CharacterError.translatable(
            "no row has 'system_prompt' in the column {column}, or its text is empty; add a row"
            " with the persona",
            column=repr(column),
        )
    complete_vectors = tuple(vectors) if len(vectors) == len(texts) else None
    return CharacterData(persona, tuple(texts), complete_vectors, column or None)


def write_jsonl(persona: str, texts: Sequence[str], vectors: Sequence[Vector], column: str) -> str:
    """Return a JSONL file for `read_jsonl`, ChatHaruhi, and the data set hub."""
    rows = [{"text": persona, column: "system_prompt"}, {"text": _RESERVED_TEXT, column: "config"}]
    pairs = zip(texts, map(encode_floats, vectors), strict=True)
    rows += [{"text": text, column: vector} for text, vector in pairs]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def encode_floats(vector: Vector) -> str:
    return base64.b64encode(struct.pack(f"!{len(vector)}f", *vector)).decode()


def decode_floats(text: str) -> Vector:
    """Decode float32 values from base64; raise ValueError if the text is malformed."""
    data = _decode_base64(text)
    if len(data) % _FLOAT_BYTES:
        raise ValueError(translatable("the vector's length in bytes is not a multiple of 4"))
    return struct.unpack(f"!{len(data) // _FLOAT_BYTES}f", data)


def decode_base64_text(text: str) -> str:
    """Decode UTF-8 from base64; raise ValueError if the text is malformed."""
    return _decode_base64(text).decode()


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(
            translatable("{text} is not base64 ({error})", text=repr(text[:20]), error=str(error))
        ) from error


def _read_row_text(row: HaruhiRow) -> str:
    match row:
        case {"text": str(text)}:
            return strip_hidden_text(text)
        case {"enc_text": str(encoded)}:
            return strip_hidden_text(decode_base64_text(encoded))
        case _:
            raise ValueError(translatable("it has neither 'text' nor 'enc_text'"))


_HUB_DATASET = "silk-road/ChatHaruhi-RolePlaying"
_ROLES_FOLDER = resources.files("bot.prompting") / "roles"
_ROLE_NAMES: Mapping[str, str] = json.loads((_ROLES_FOLDER / "names.json").read_text("utf-8"))

_ROLE_FILES = {
    **{file_stem[0].upper() + file_stem[1:]: file_stem for file_stem in _ROLE_NAMES},
    **{name: file_stem for file_stem, name in _ROLE_NAMES.items()},
    **{file_stem: file_stem for file_stem in _ROLE_NAMES},
    "Professor McGonagall": "McGonagall",
    "Professor Dumbledore": "Dumbledore",
}


def find_builtin_role_name(name: str) -> str | None:
    """Return a built-in role's display name, such as 凉宫春日 for "haruhi", or None if unknown."""
    return _ROLE_NAMES[_ROLE_FILES[name]] if name in _ROLE_FILES else None


def load_builtin_role(name: str) -> CharacterData:
    file_stem = _ROLE_FILES.get(name)
    if file_stem is None:
        closest_name = next(iter(difflib.get_close_matches(name, _ROLE_FILES, n=1)), "haruhi")
        raise CharacterError.translatable(
            "{word} has no persona and is not a built-in role; pass a `persona`, or use {near}",
            word=repr(name),
            near=repr(closest_name),
        )
    shipped_file = _ROLES_FOLDER / f"{file_stem}.jsonl"
    if shipped_file.is_file():
        return read_rows(read_jsonl(shipped_file.read_text("utf-8")))
    return with_default_placeholder(load_hub_role(f"{_HUB_DATASET}/{file_stem}"))


def with_default_placeholder(data: CharacterData) -> CharacterData:
    """Add a story placeholder to a persona without one, as in ChatHaruhi 1 and 2."""
    if not data.texts or parse_persona(data.persona).placeholders:
        return data
    return replace(data, persona=f"{data.persona}\n{DEFAULT_PLACEHOLDER}\n")


def load_hub_role(name: str, column: str | None = None) -> CharacterData:
    """Load `owner/dataset[/role]` from the data set hub; raise `CharacterError` if that fails."""
    owner_name, _, dataset_and_file = name.partition("/")
    dataset, _, file = dataset_and_file.partition("/")
    if not (owner_name and dataset):
        raise CharacterError.translatable(
            "{name} is not the name of a data set; write owner/dataset or owner/dataset/role",
            name=repr(name),
        )
    if find_spec("datasets") is None:
        raise CharacterError.translatable(
            "to load {name} from the data set hub, run `pip install datasets` first",
            name=name,
        )
    data_files = {"train": f"{file}.jsonl"} if file else None
    try:
        rows: Iterable[HaruhiRow] = import_module("datasets").load_dataset(
            f"{owner_name}/{dataset}", data_files=data_files, split="train"
        )
    except (OSError, ValueError) as error:  # base classes of the library's own errors
        raise CharacterError.translatable(
            "{name} could not be loaded from the hub: {error}", name=name, error=str(error)
        ) from error
    return read_rows(rows, column)
