"""Read the characters of ChatHaruhi 1 and 2 from zip archives.

Version 1 is a folder with `system_prompt.txt` and a text for each story; in version 2 the stories
are in a database of Chroma beside it, `content/<role>/chroma.sqlite3`.
"""

import io
import re
import sqlite3
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final

from bot.errors import CharacterError
from bot.importers.zip_entries import read_zip_entry
from bot.prompting.personas.builtin_roles import with_default_placeholder
from bot.prompting.personas.haruhi_rows import CharacterData
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import translatable

_PERSONA = "system_prompt.txt"
_DATABASE = "chroma.sqlite3"
_STORY = re.compile(r"(^|/)[^/.]+[^/]*\.txt$")
_DOCUMENTS = "SELECT string_value FROM embedding_metadata WHERE key = 'chroma:document' ORDER BY id"
MAX_UNPACKED_BYTES: Final = 64 * 2**20
_MAX_FILES = 20_000
_DAMAGES: Final = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError),
    *(RuntimeError, NotImplementedError),  # a password, unknown compression
)


def read_haruhi_zip(content: bytes, source: str) -> CharacterData:
    """Return the persona and the stories; a persona without a place for stories gets one.

    Raises:
        CharacterError: it is no such archive, damaged or too large; the text names `source`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {info.filename: info for info in archive.infolist() if not info.is_dir()}
            size = sum(info.file_size for info in files.values())
            if size > MAX_UNPACKED_BYTES or len(files) > _MAX_FILES:
                limit = MAX_UNPACKED_BYTES // 2**20
                raise CharacterError(
                    translatable(
                        "{source} unpacks to more than {limit} MiB or {files} files",
                        source=source,
                        limit=limit,
                        files=_MAX_FILES,
                    )
                )
            persona_file = _find(files, _PERSONA)
            if persona_file is None:
                raise CharacterError(
                    translatable(
                        "{source} has no {persona}; a character of ChatHaruhi 1 or 2 is a zip"
                        " with {persona} and its stories",
                        source=source,
                        persona=_PERSONA,
                    )
                )
            persona = _text(read_zip_entry(archive, files[persona_file]), source)
            database = _find(files, _DATABASE)
            if database is not None:
                stories = _documents(read_zip_entry(archive, files[database]), source)
            else:
                names = sorted(name for name in files if _STORY.search(name))
                others = (name for name in names if name != persona_file)
                stories = [_text(read_zip_entry(archive, files[name]), source) for name in others]
    except _DAMAGES as error:
        raise CharacterError(
            translatable("{source} is a damaged archive: {error}", source=source, error=str(error))
        ) from error
    texts = tuple(story for story in stories if story.strip())
    return with_default_placeholder(CharacterData(persona, texts))


def _find(names: Iterable[str], wanted: str) -> str | None:
    """Return the file of this name that is least deep in folders."""
    found = (name for name in names if name.rpartition("/")[2] == wanted)
    return min(found, key=lambda name: name.count("/"), default=None)


def _text(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CharacterError(
            translatable("{source} has a text that is not UTF-8; save it as UTF-8", source=source)
        ) from error
    return strip_hidden_text(text).replace("\r\n", "\n").strip()


def _documents(data: bytes, source: str) -> list[str]:
    """Return the texts in a database of Chroma."""
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(data)
            database.execute("PRAGMA trusted_schema = OFF")
            return list(_strings(database.execute(_DOCUMENTS)))
    except sqlite3.Error as error:
        raise CharacterError(
            translatable(
                "{source}: its {database} cannot be read: {error}",
                source=source,
                database=_DATABASE,
                error=str(error),
            )
        ) from error


def _strings(rows: sqlite3.Cursor) -> Iterator[str]:
    for (value,) in rows:
        if isinstance(value, str):
            yield strip_hidden_text(value).replace("\r\n", "\n").strip()
