"""Read zip archives: CHARX cards and folders of ChatHaruhi characters."""

import io
import re
import sqlite3
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Final

from bot.errors import CharacterError, PresetError
from bot.prompting.haruhi import CharacterData, with_default_placeholder
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import marked

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Python unpacks the others in whole blocks: 700 bytes of bzip2 may become gigabytes."""
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError)
_UNREADABLE = (NotImplementedError, RuntimeError)  # unknown compression, or a password


def read_zip_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of an entry, one byte more than its header says if it has more.

    `ZipFile.read` unpacks everything before it cuts it to the size in the header. Raises one of
    `_DAMAGES` or `_UNREADABLE`.
    """
    if entry.compress_type not in _METHODS:
        raise NotImplementedError("That compression method is not supported")
    with archive.open(entry) as stream:
        return stream.read(entry.file_size + 1)


MAIN_ICON = "assets/icon/image/main.png"
_CARD = "card.json"
_MAX_ENTRIES = 100
_MAX_UNPACKED_BYTES = 50 * 2**20
_MAX_RATIO = 100
_MIN_SUSPICIOUS_BYTES = 2**20  # small files may compress a thousandfold
_ENTRY_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same card gives the same file


def read_charx(data: bytes, source: str) -> tuple[bytes, dict[str, bytes]]:
    """Return card.json and the assets by path.

    Raises:
        PresetError: the zip is damaged, holds no card, or looks like a zip bomb.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            _check_entries(entries, source)
            files = {entry.filename: _unpack(archive, entry, source) for entry in entries}
    except _DAMAGES as error:
        raise PresetError.translatable(
            "{source}: the CHARX is damaged ({error}); download it again",
            source=source,
            error=str(error),
        ) from None
    except _UNREADABLE as error:
        raise PresetError.translatable(
            "{source}: the CHARX cannot be unpacked ({error}); zip it again",
            source=source,
            error=str(error),
        ) from None
    if _CARD not in files:
        raise PresetError.translatable(
            "{source}: there is no {file} in the zip, so it is not a CHARX card",
            source=source,
            file=_CARD,
        )
    return files.pop(_CARD), files


def write_charx(card: bytes, assets: Mapping[str, bytes]) -> bytes:
    """Return a CHARX file; the same card gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(_entry(_CARD), card, zipfile.ZIP_DEFLATED)
        for path, content in assets.items():  # images and sounds are compressed already
            archive.writestr(_entry(path), content, zipfile.ZIP_STORED)
    return buffer.getvalue()


def _check_entries(entries: Iterable[zipfile.ZipInfo], source: str) -> None:
    sizes: dict[str, int] = {}
    for entry in entries:
        path = entry.filename
        if path.startswith("/") or "\\" in path or ":" in path or ".." in path.split("/"):
            problem = marked(
                "{source}: the path {path} leads out of the CHARX; do not trust this file"
            )
        elif path in sizes:
            problem = marked("{source}: {path} is in the CHARX twice; zip it again")
        elif entry.file_size > max(_MAX_RATIO * entry.compress_size, _MIN_SUSPICIOUS_BYTES):
            problem = marked("{source}: {path} in the CHARX is a zip bomb; do not trust this file")
        else:
            sizes[path] = entry.file_size
            continue
        raise PresetError.translatable(problem, source=source, path=repr(path[:80]))
    if len(sizes) > _MAX_ENTRIES:
        raise PresetError.translatable(
            "{source}: the CHARX holds more than {limit} files; remove some",
            source=source,
            limit=_MAX_ENTRIES,
        )
    if sum(sizes.values()) > _MAX_UNPACKED_BYTES:
        raise PresetError.translatable(
            "{source}: the CHARX is larger than {limit} MiB unpacked; remove assets",
            source=source,
            limit=_MAX_UNPACKED_BYTES // 2**20,
        )


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, source: str) -> bytes:
    """Read one entry, at most one byte more than its header claims."""
    content = read_zip_entry(archive, entry)
    if len(content) != entry.file_size:
        raise PresetError.translatable(
            "{source}: {path} has a different size than the zip says; zip it again",
            source=source,
            path=repr(entry.filename[:80]),
        )
    return content


def _entry(path: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(path, _ENTRY_DATE)


_PERSONA = "system_prompt.txt"
_DATABASE = "chroma.sqlite3"
_STORY = re.compile(r"(^|/)[^/.]+[^/]*\.txt$")
_DOCUMENTS = "SELECT string_value FROM embedding_metadata WHERE key = 'chroma:document' ORDER BY id"
MAX_UNPACKED_BYTES: Final = 64 * 2**20
_MAX_FILES = 20_000


def read_haruhi_zip(content: bytes, source: str) -> CharacterData:
    """Return the persona and the stories; a persona without a place for stories gets one.

    Raises:
        CharacterError: it is not such an archive, damaged or too large; the text names `source`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {info.filename: info for info in archive.infolist() if not info.is_dir()}
            size = sum(info.file_size for info in files.values())
            if size > MAX_UNPACKED_BYTES or len(files) > _MAX_FILES:
                limit = MAX_UNPACKED_BYTES // 2**20
                raise CharacterError.translatable(
                    "{source} unpacks to more than {limit} MiB or {files} files",
                    source=source,
                    limit=limit,
                    files=_MAX_FILES,
                )
            persona_file = _find(files, _PERSONA)
            if persona_file is None:
                raise CharacterError.translatable(
                    "{source} has no {persona}; a character of ChatHaruhi 1 or 2 is a zip"
                    " with {persona} and its stories",
                    source=source,
                    persona=_PERSONA,
                )
            persona = _text(read_zip_entry(archive, files[persona_file]), source)
            database = _find(files, _DATABASE)
            if database is not None:
                stories = _documents(read_zip_entry(archive, files[database]), source)
            else:
                names = sorted(name for name in files if _STORY.search(name))
                others = (name for name in names if name != persona_file)
                stories = [_text(read_zip_entry(archive, files[name]), source) for name in others]
    except (*_DAMAGES, *_UNREADABLE) as error:
        raise CharacterError.translatable(
            "{source} is a damaged archive: {error}", source=source, error=str(error)
        ) from error
    texts = tuple(story for story in stories if story.strip())
    return with_default_placeholder(CharacterData(persona, texts))


def _find(names: Iterable[str], wanted: str) -> str | None:
    """Return the file with this name in the outermost folder."""
    found = (name for name in names if name.rpartition("/")[2] == wanted)
    return min(found, key=lambda name: name.count("/"), default=None)


def _text(data: bytes, source: str) -> str:
    try:
        return _plain_text(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CharacterError.translatable(
            "{source} has a text that is not UTF-8; save it as UTF-8", source=source
        ) from error


def _documents(data: bytes, source: str) -> list[str]:
    """Return the texts in a database of Chroma."""
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(data)
            database.execute("PRAGMA trusted_schema = OFF")
            rows = database.execute(_DOCUMENTS)
            return [_plain_text(text) for (text,) in rows if isinstance(text, str)]
    except sqlite3.Error as error:
        raise CharacterError.translatable(
            "{source}: its {database} cannot be read: {error}",
            source=source,
            database=_DATABASE,
            error=str(error),
        ) from error


def _plain_text(text: str) -> str:
    return strip_hidden_text(text).replace("\r\n", "\n").strip()
