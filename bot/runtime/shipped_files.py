"""Find shipped folders that are not Python packages: migrations and presets."""

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Literal


def shipped_folder(name: Literal["migrations", "presets"]) -> Path:
    """Return a shipped folder, from `bot/_data` in a wheel (pyproject.toml) or the checkout."""
    package = Path(str(files("bot")))
    packaged = package / "_data" / name
    return packaged if packaged.is_dir() else package.parent / name


def presets_folder(chosen: Path | None) -> Path:
    """Return the chosen folder, or else ./presets, or else the shipped presets."""
    if chosen is not None:
        return chosen
    own = Path("presets")
    return own if own.is_dir() else shipped_folder("presets")


def writable_presets_folder(chosen: Path | None) -> tuple[Path, bool]:
    """Return the folder for new presets, and whether it is new; raises `OSError`.

    A new ./presets gets a copy of the shipped presets, because it replaces them.
    """
    folder = Path("presets") if chosen is None else chosen
    is_new = chosen is None and not folder.is_dir()
    if is_new:
        shutil.copytree(shipped_folder("presets"), folder)
    return folder, is_new
