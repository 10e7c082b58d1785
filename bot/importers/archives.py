"""Read and write zip archives: CHARX cards and ChatHaruhi characters."""

import io
import re
import sqlite3
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing

from bot.errors import CharacterError, PresetError
from bot.prompting.haruhi import CharacterData, with_default_placeholder
from bot.prompting.text.confusables import strip_hidden_text

_COMPRESSION_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""The supported compression methods. Python unpacks others in whole blocks, so that 700 bytes of
bzip2 can become gigabytes."""
_UNPACKING_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError),
    *(NotImplementedError, RuntimeError),  # unknown compression method, or a password
)
_MAX_UNPACKED_BYTES = 50 * 2**20
_MAX_ENTRIES = 20_000
_MAX_COMPRESSION_RATIO = 100
_MIN_SUSPICIOUS_BYTES = 2**20  # smaller files may be compressed a thousandfold

MAIN_ICON_PATH = "assets/icon/image/main.png"
_CARD_PATH = "card.json"
_ENTRY_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that equal cards become equal files

_PERSONA_FILE = "system_prompt.txt"
_DATABASE_FILE = "chroma.sqlite3"
_STORY_PATH_PATTERN = re.compile(r"(^|/)[^/.]+[^/]*\.txt$")
_DOCUMENTS_QUERY = (
    "SELECT string_value FROM embedding_metadata WHERE key = 'chroma:document' ORDER BY id"
)


def read_charx(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return a CHARX file's card.json and its assets by path; raise `PresetError` if invalid."""
    files = _unpack(data)
    if _CARD_PATH not in files:
        raise PresetError.translatable(
            "there is no {file} in the zip, so it is not a CHARX card", file=_CARD_PATH
        )
    return files.pop(_CARD_PATH), files


def encode_charx(card: bytes, assets: Mapping[str, bytes]) -> bytes:
    """Return a CHARX file; equal cards yield equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_CARD_PATH, _ENTRY_DATE), card, zipfile.ZIP_DEFLATED)
        for path, content in assets.items():  # images and sounds are already compressed
            archive.writestr(zipfile.ZipInfo(path, _ENTRY_DATE), content, zipfile.ZIP_STORED)
    return buffer.getvalue()


def read_haruhi_zip(data: bytes) -> CharacterData:
    """Return the ChatHaruhi character in a zip; raise `PresetError` or `CharacterError`."""
    files = _unpack(data)
    persona_file, database_file = (
        _find_topmost_file(files, _PERSONA_FILE),
        _find_topmost_file(files, _DATABASE_FILE),
    )
    if persona_file is None:
        raise CharacterError.translatable(
            "it has no {persona}; a ChatHaruhi 1 or 2 character is a zip with {persona} and"
            " stories",
            persona=_PERSONA_FILE,
        )
    if database_file is not None:
        stories = _read_documents(files[database_file])
    else:
        names = sorted(name for name in files if _STORY_PATH_PATTERN.search(name))
        stories = [_decode_text(files[name]) for name in names if name != persona_file]
    story_texts = tuple(story for story in stories if story.strip())
    return with_default_placeholder(CharacterData(_decode_text(files[persona_file]), story_texts))


def _unpack(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            _check_entries(entries)
            return {entry.filename: _read_entry(archive, entry) for entry in entries}
    except _UNPACKING_ERRORS as error:
        raise PresetError.translatable(
            "the archive cannot be unpacked ({error}); download it or zip it again",
            error=str(error),
        ) from None


def _check_entries(entries: Iterable[zipfile.ZipInfo]) -> None:
    sizes_by_path: dict[str, int] = {}
    for entry in entries:
        path, size = entry.filename, entry.file_size
        escapes_archive = (
            path.startswith("/") or "\\" in path or ":" in path or ".." in path.split("/")
        )
        is_bomb = size > max(_MAX_COMPRESSION_RATIO * entry.compress_size, _MIN_SUSPICIOUS_BYTES)
        if escapes_archive or is_bomb or path in sizes_by_path:
            raise PresetError.translatable(
                "{path} points outside the archive, occurs twice, or is a zip bomb; do not trust"
                " this file",
                path=repr(path[:80]),
            )
        sizes_by_path[path] = size
    if sum(sizes_by_path.values()) > _MAX_UNPACKED_BYTES or len(sizes_by_path) > _MAX_ENTRIES:
        raise PresetError.translatable(
            "it unpacks to more than {limit} MiB or {files} files",
            limit=_MAX_UNPACKED_BYTES // 2**20,
            files=_MAX_ENTRIES,
        )


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Read an entry without unpacking more than its declared size, unlike `ZipFile.read`."""
    if entry.compress_type not in _COMPRESSION_METHODS:
        raise NotImplementedError("its compression method is not supported")
    with archive.open(entry) as stream:
        content = stream.read(entry.file_size + 1)
    if len(content) != entry.file_size:
        raise zipfile.BadZipFile(f"{entry.filename[:80]!r} does not have its declared size")
    return content


def _find_topmost_file(paths: Iterable[str], file_name: str) -> str | None:
    """Return the path of the file named `file_name` nearest to the archive's root, or None."""
    matching_paths = (path for path in paths if path.rpartition("/")[2] == file_name)
    return min(matching_paths, key=lambda path: path.count("/"), default=None)


def _decode_text(data: bytes) -> str:
    try:
        return _clean_text(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CharacterError.translatable(
            "it contains text that is not UTF-8; save it as UTF-8"
        ) from error


def _read_documents(data: bytes) -> list[str]:
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(data)
            database.execute("PRAGMA trusted_schema = OFF")
            rows = database.execute(_DOCUMENTS_QUERY)
            return [_clean_text(text) for (text,) in rows if isinstance(text, str)]
    except sqlite3.Error as error:
        raise CharacterError.translatable(
            "its {database} cannot be read: {error}", database=_DATABASE_FILE, error=str(error)
        ) from error


def _clean_text(text: str) -> str:
    return strip_hidden_text(text).replace("\r\n", "\n").strip()
