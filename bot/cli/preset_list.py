"""A fast `troupe preset list`; importing settings and schema would take ten times as long."""

import os
import tomllib
from importlib import import_module  # noqa: TID251 # only if a preset is invalid
from pathlib import Path

from dotenv import dotenv_values

from bot.cli.text_io import print_line
from bot.errors import PresetError
from bot.prompting.text.jsonc import JsonSyntaxError, read_json
from bot.prompting.text.preset_folder import is_lorebook, list_json_files, read_text_file
from bot.runtime.shipped_files import presets_folder
from bot.texts.text import escape_to_one_line

_FOLDER_VARIABLE = "TROUPE_PRESETS_DIR"


def list_presets_quickly() -> None:
    """List all presets; if one is unreadable, run the full command, which reports why."""
    try:
        preset_texts = map(read_text_file, list_json_files(_find_presets_folder()))
        lines = [_format_preset_line(text) for text in preset_texts if not is_lorebook(text)]
    except (PresetError, JsonSyntaxError, OSError, ValueError):
        import_module("bot.cli.preset_files").list_presets()
        return
    for line in lines:
        print_line(line)


def _format_preset_line(text: str) -> str:
    match read_json(text).value:
        case {"name": str(name), "description": str(description)}:
            return escape_to_one_line(f"{name}: {description}")
        case {"name": str(name), "provider": _}:
            return escape_to_one_line(name)
        case _:
            raise ValueError("not a preset")


def _find_presets_folder() -> Path:
    """Return the folder set in the environment, .env, or troupe.toml, or the default folder."""
    toml_file = Path("troupe.toml")
    file_settings = tomllib.loads(toml_file.read_text("utf-8")) if toml_file.is_file() else {}
    folder = str(file_settings.get("presets_dir") or "")
    for variables in (dotenv_values(".env"), os.environ):  # noqa: TID251 # as the settings do
        for name, value in variables.items():
            if name.upper() == _FOLDER_VARIABLE:
                folder = value or folder
    return presets_folder(Path(folder) if folder else None)
