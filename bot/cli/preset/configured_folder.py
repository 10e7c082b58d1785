"""Find the presets folder without importing all settings; the result is the same."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from dotenv import dotenv_values

from bot.errors import SettingsError
from bot.runtime.shipped_files import presets_folder

_VARIABLE = "TROUPE_PRESETS_DIR"


def configured_presets_folder() -> Path:
    """Return the folder that the environment, .env or troupe.toml names, or the default one.

    Raises:
        SettingsError: troupe.toml cannot be read.
    """
    chosen = _variable(os.environ) or _variable(dotenv_values(".env")) or _toml_value()
    return presets_folder(Path(chosen) if chosen else None)


def _variable(variables: Mapping[str, str | None]) -> str | None:
    """Look up the variable in any case; an empty value is not set."""
    return next((text for name, text in variables.items() if name.upper() == _VARIABLE), None)


def _toml_value() -> str | None:
    file = Path("troupe.toml")
    if not file.is_file():
        return None
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8")).get("presets_dir")
    except (OSError, ValueError) as error:
        raise SettingsError(f"troupe.toml cannot be read: {error}") from None
    return found if isinstance(found, str) else None
