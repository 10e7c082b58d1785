"""`troupe preset list`: names and descriptions, read without the schema of a preset.

The schema and the settings would take three times as long to import as everything else here;
`troupe preset validate` and `troupe check` say what is wrong in a preset.
"""

from collections.abc import Iterator
from pathlib import Path

from bot.cli.preset.configured_folder import configured_presets_folder
from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import QuickCommand, command_app
from bot.errors import PresetError
from bot.prompting.text.jsonc import JsonSyntaxError, read_json
from bot.prompting.text.preset_folder import is_lorebook, json_files, read_preset_text
from bot.runtime.terminal import escape_to_one_line

app = command_app()


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
        except PresetError as error:
            print_progress(str(error))
            continue
        if is_lorebook(text):
            continue
        try:
            value = read_json(text).value
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
