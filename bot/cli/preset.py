"""`troupe preset`: list presets without the settings and the schema, and import the rest late.

Importing those takes three times as long as everything else that `list` does. `troupe preset
validate` and `troupe check` say what is wrong in a preset.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from dotenv import dotenv_values

from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import LazyCommand, QuickCommand, lazy_app
from bot.errors import PresetError, SettingsError
from bot.prompting.text.jsonc import JsonSyntaxError, read_json
from bot.prompting.text.preset_folder import is_lorebook, json_files, read_preset_text
from bot.runtime.shipped_files import presets_folder
from bot.texts.text import escape_to_one_line

_VARIABLE = "TROUPE_PRESETS_DIR"
_FILES = "bot.cli.preset_files"

app = lazy_app(
    "List, show, check, import and export presets.",
    {
        "show": LazyCommand(_FILES, "Print a preset as strict JSON, and its version."),
        "validate": LazyCommand(_FILES, "Check preset files by key and line."),
        "import": LazyCommand(_FILES, "Add a preset from a file of another program."),
        "export": LazyCommand(_FILES, "Write a preset as JSON or as a Modelfile."),
    },
)


@app.command("list", cls=QuickCommand)
def list_presets() -> None:
    """List every preset and what it is for.

    Files with a mistake are named on stderr; `troupe preset validate FILE` and `troupe check` look
    for more of them.
    """
    for name, description in list(_names_and_descriptions(configured_presets_folder())):
        shown = f"{name}: {description}" if description else name
        print_line(escape_to_one_line(shown))


def _names_and_descriptions(folder: Path) -> Iterator[tuple[str, str]]:
    for file in json_files(folder):
        try:
            text = read_preset_text(file)
            if is_lorebook(text):
                continue
            value = read_json(text).value
        except PresetError as error:
            print_progress(str(error))
            continue
        except JsonSyntaxError as error:
            print_progress(f"{file}, line {error.line}: {error}")
            continue
        match value:
            case {"name": str(name), "description": str(description)}:
                yield name, description
            case {"name": str(name)}:
                yield name, ""
            case dict():
                print_progress(f"{file}: the key 'name' is missing, or not a text")
            case _:
                print_progress(f"{file}: a preset is one JSON object: {{...}}")


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
