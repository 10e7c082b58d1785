"""Write presets to their folder, each to the file that holds it already."""

import tempfile
from pathlib import Path

from bot.errors import PresetError, UserError
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from bot.prompting.text.preset_folder import is_lorebook, json_files, read_preset_text
from bot.runtime.shipped_files import writable_presets_folder


def open_presets_folder(chosen: Path | None) -> Path:
    """Return the folder that presets are written to; raises `UserError` if it cannot be made."""
    try:
        return writable_presets_folder(chosen)[0]
    except OSError as error:
        raise UserError(f"presets/ cannot be made here: {error.strerror or error}") from None


def find_preset_file(folder: Path, preset: Preset) -> Path:
    """Return the file that holds a preset of this name, else the one that it will be written to.

    Raises:
        PresetError: the folder, or a preset in it, cannot be read.
    """
    own = folder / f"{preset.id}.json"
    if not folder.is_dir() or not any(folder.glob("*.json")):
        return own
    return next((file for file in json_files(folder) if _holds(file, preset)), own)


def write_preset(folder: Path, preset: Preset) -> Path:
    """Write a preset as strict JSON, in place of its file if there is one; return the file.

    Whoever reads meanwhile finds the old content or the new one, never a part.

    Raises:
        PresetError: a preset in the folder cannot be read.
        UserError: the file cannot be written.
    """
    file = find_preset_file(folder, preset)
    write_whole_file(file, export_preset(preset).encode())
    return file


def delete_preset_file(folder: Path, preset: Preset) -> None:
    """Delete the file that holds a preset, if there is one.

    Raises:
        PresetError: a preset in the folder cannot be read.
        UserError: the file cannot be deleted.
    """
    file = find_preset_file(folder, preset)
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{file} cannot be deleted: {error.strerror}") from None


def write_whole_file(file: Path, content: bytes) -> None:
    """Write a file, and make its folder; raises `UserError` when it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as stream:
            written = Path(stream.name)
            stream.write(content)
        written.chmod(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        written.replace(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def _holds(file: Path, preset: Preset) -> bool:
    text = read_preset_text(file)
    if is_lorebook(text):
        return False
    try:
        return parse_preset(text, str(file)).id == preset.id
    except PresetError:
        return file.stem == preset.id  # it is replaced by what is valid
