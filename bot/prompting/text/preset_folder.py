"""List and read the files in a presets folder, without parsing them."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from bot.errors import PresetError

FileStamps: TypeAlias = Mapping[Path, tuple[int, int]]
"""The modification time of each file, in nanoseconds, and its size."""

_WATCHED_SUFFIXES = frozenset({".json", ".jsonl", ".zip"})


def read_file_stamps(directory: Path) -> FileStamps:
    """Return the modification time and size of each preset, lorebook and character file."""
    stamps_by_file = {}
    for file in (*directory.glob("*"), *directory.glob("*/*")):
        if file.suffix.lower() in _WATCHED_SUFFIXES:
            with contextlib.suppress(OSError):  # deleted in the meantime
                file_status = file.stat()
                stamps_by_file[file] = (file_status.st_mtime_ns, file_status.st_size)
    return stamps_by_file


def list_json_files(directory: Path) -> list[Path]:
    """Return the `*.json` files in a presets folder; raise `PresetError` if there are none."""
    try:
        files = sorted(file for file in directory.iterdir() if file.suffix.lower() == ".json")
    except OSError as error:
        raise PresetError(
            f"the presets folder {directory} cannot be read ({error.strerror});"
            " set TROUPE_PRESETS_DIR to a folder with preset files"
        ) from error
    if not files:
        raise PresetError(f"no *.json in the presets folder {directory}; put a preset there")
    return files


def read_text_file(file: Path) -> str:
    """Read a file; raise `PresetError` if it is unreadable or not UTF-8."""
    try:
        if file.exists() and not (file.is_file() or file.is_dir()):  # such as a link to /dev/zero
            raise PresetError.translatable("{file} is a device; remove it", file=file)
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PresetError.translatable(
            "{file} cannot be read ({reason})", file=file, reason=error.strerror
        ) from error
    except UnicodeDecodeError as error:
        raise PresetError.translatable(
            "{file} is not UTF-8; save it as UTF-8", file=file
        ) from error


def resolve_path_inside(folder: Path, name: str) -> Path | None:
    """Return the path of a file that a preset refers to, or None if it is outside `folder`."""
    try:
        file = (folder / name).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    return file if folder.resolve() in file.parents else None


def is_lorebook(text: str) -> bool:
    """Return whether a text is a lorebook: presets have a provider, lorebooks have entries."""
    return '"entries"' in text and '"provider"' not in text
