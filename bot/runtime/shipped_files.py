"""Find the folders that come with Troupe but are no Python packages: migrations and presets."""

from importlib.resources import files
from pathlib import Path
from typing import Literal


def shipped_folder(name: Literal["migrations", "presets"]) -> Path:
    """Return a folder that came with Troupe.

    In a wheel it is inside the package, at `bot/_data` (pyproject.toml puts it there); in a
    checkout it is at the top.
    """
    package = Path(str(files("bot")))
    packaged = package / "_data" / name
    return packaged if packaged.is_dir() else package.parent / name


def presets_folder(chosen: Path | None) -> Path:
    """Return the folder that was chosen, or else ./presets, or else the presets of the package."""
    if chosen is not None:
        return chosen
    own = Path("presets")
    return own if own.is_dir() else shipped_folder("presets")
