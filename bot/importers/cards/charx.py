"""Read and write CHARX files: a zip with `card.json` and the card's assets, unpacked in memory."""

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping

from bot.errors import PresetError
from bot.importers.zip_entries import read_zip_entry
from bot.texts.text import translatable

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
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise PresetError(
            translatable(
                "{source}: the CHARX is damaged ({error}); download it again",
                source=source,
                error=str(error),
            )
        ) from None
    except (NotImplementedError, RuntimeError) as error:  # unknown compression, or a password
        raise PresetError(
            translatable(
                "{source}: the CHARX cannot be unpacked ({error}); zip it again",
                source=source,
                error=str(error),
            )
        ) from None
    if _CARD not in files:
        raise PresetError(
            translatable(
                "{source}: there is no {file} in the zip, so it is not a CHARX card",
                source=source,
                file=_CARD,
            )
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
            raise PresetError(
                translatable(
                    "{source}: the path {path} leads out of the CHARX; do not trust this file",
                    source=source,
                    path=repr(path[:80]),
                )
            )
        if path in sizes:
            raise PresetError(
                translatable(
                    "{source}: {path} is in the CHARX twice; zip it again",
                    source=source,
                    path=repr(path[:80]),
                )
            )
        packed = max(entry.compress_size, 1)
        if entry.file_size > max(_MAX_RATIO * packed, _MIN_SUSPICIOUS_BYTES):
            raise PresetError(
                translatable(
                    "{source}: {path} in the CHARX is a zip bomb; do not trust this file",
                    source=source,
                    path=repr(path[:80]),
                )
            )
        sizes[path] = entry.file_size
    if len(sizes) > _MAX_ENTRIES:
        raise PresetError(
            translatable(
                "{source}: the CHARX holds more than {limit} files; remove some",
                source=source,
                limit=_MAX_ENTRIES,
            )
        )
    if sum(sizes.values()) > _MAX_UNPACKED_BYTES:
        limit = _MAX_UNPACKED_BYTES // 2**20
        raise PresetError(
            translatable(
                "{source}: the CHARX is larger than {limit} MiB unpacked; remove assets",
                source=source,
                limit=limit,
            )
        )


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, source: str) -> bytes:
    """Read one entry, at most one byte more than its header claims."""
    content = read_zip_entry(archive, entry)
    if len(content) != entry.file_size:
        raise PresetError(
            translatable(
                "{source}: {path} has another size than the zip gives; zip it again",
                source=source,
                path=repr(entry.filename[:80]),
            )
        )
    return content


def _entry(path: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(path, _ENTRY_DATE)
