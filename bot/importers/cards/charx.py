"""CHARX: a zip with `card.json` and the card's assets. Nothing of it is ever unpacked to a disk."""

import io
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Mapping

from bot.errors import PresetError

MAIN_ICON = "assets/icon/image/main.png"
_CARD = "card.json"
_MAX_ENTRIES = 100
_MAX_UNPACKED_BYTES = 50 * 2**20
_MAX_RATIO = 100
_MIN_SUSPICIOUS_BYTES = 2**20  # a small file of blanks may well shrink a thousandfold
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same card gives the same file


def read(data: bytes, source: str) -> tuple[bytes, dict[str, bytes]]:
    """Give card.json and the assets by path; raise PresetError for what looks like a bomb."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            _check(entries, source)
            files = {entry.filename: _unpacked(archive, entry, source) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise PresetError(f"{source}: the CHARX is damaged ({error}); download it again") from None
    except (NotImplementedError, RuntimeError) as error:  # its ways to refuse methods, passwords
        raise PresetError(
            f"{source}: the CHARX cannot be unpacked ({error}); zip it anew"
        ) from None
    if _CARD not in files:
        raise PresetError(f"{source}: there is no {_CARD} in the zip, so it is no CHARX card")
    return files.pop(_CARD), files


def write(card: bytes, assets: Mapping[str, bytes]) -> bytes:
    """Give the same bytes for the same card: no entry has a date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(_entry(_CARD), card, zipfile.ZIP_DEFLATED)
        for path, content in assets.items():  # images and sounds are compressed already
            archive.writestr(_entry(path), content, zipfile.ZIP_STORED)
    return buffer.getvalue()


def _check(entries: Iterable[zipfile.ZipInfo], source: str) -> None:
    sizes: dict[str, int] = {}
    for entry in entries:
        path = entry.filename
        if path.startswith("/") or "\\" in path or ":" in path or ".." in path.split("/"):
            raise PresetError(
                f"{source}: the path {path[:80]!r} leads out of the CHARX; distrust it"
            )
        if path in sizes:
            raise PresetError(f"{source}: {path[:80]!r} is in the CHARX twice; zip it anew")
        packed = max(entry.compress_size, 1)
        if entry.file_size > max(_MAX_RATIO * packed, _MIN_SUSPICIOUS_BYTES):
            raise PresetError(f"{source}: {path[:80]!r} in the CHARX is a zip bomb; distrust it")
        sizes[path] = entry.file_size
    if len(sizes) > _MAX_ENTRIES:
        raise PresetError(f"{source}: the CHARX holds over {_MAX_ENTRIES} files; leave some out")
    if sum(sizes.values()) > _MAX_UNPACKED_BYTES:
        limit = _MAX_UNPACKED_BYTES // 2**20
        raise PresetError(f"{source}: the CHARX is over {limit} MiB unpacked; leave assets out")


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, source: str) -> bytes:
    """Read what the entry announced and not a byte more: a header may lie."""
    with archive.open(entry) as stream:
        content = stream.read(entry.file_size + 1)
    if len(content) != entry.file_size:
        raise PresetError(f"{source}: {entry.filename[:80]!r} lies about its size; zip it anew")
    return content


def _entry(path: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(path, _EPOCH)
