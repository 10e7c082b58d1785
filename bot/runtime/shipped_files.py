"""Find the folders that are shipped with Troupe but are not Python packages."""

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Literal


def find_shipped_folder(name: Literal["migrations", "presets"]) -> Path:
    """Return the path of a shipped folder: in `bot/_data` of a wheel, or at the checkout's root."""
    package_folder = Path(str(files("bot")))
    packaged_folder = package_folder / "_data" / name
    return packaged_folder if packaged_folder.is_dir() else package_folder.parent / name


def presets_folder(presets_dir: Path | None) -> Path:
    """Return the folder to read presets from: `presets_dir`, ./presets, or the shipped presets."""
    if presets_dir is not None:
        return presets_dir
    local_folder = Path("presets")
    return local_folder if local_folder.is_dir() else find_shipped_folder("presets")


def prepare_presets_folder(presets_dir: Path | None) -> tuple[Path, bool]:
    """Return the folder to write presets to, and whether it was just created; raises `OSError`.

    A new ./presets starts as a copy of the shipped presets; once it exists, those are not read.
    """
    folder = Path("presets") if presets_dir is None else presets_dir
    is_new = presets_dir is None and not folder.is_dir()
    if is_new:
        shutil.copytree(find_shipped_folder("presets"), folder)
    return folder, is_new
