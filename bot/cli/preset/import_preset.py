"""`troupe preset import`: add a preset from a file of another program."""

from pathlib import Path
from typing import Annotated

import typer

from bot.cli.text_io import open_presets_folder, print_line, read_bytes, read_text, write_text
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.importers.file_kinds import MAX_BYTES_READ, PRESET_IMPORTS, check_file_kind
from bot.importers.preset_files import preset_from_text
from bot.prompting.presets.files import export_preset
from bot.settings import read_settings

app = command_app()


@app.command("import")
def import_preset(
    file: Annotated[
        Path, typer.Argument(help="A preset, a Modelfile, or a template of SillyTavern.")
    ],
    name: Annotated[
        str | None, typer.Option(help="The name of the new preset; default: the file's.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Who answers, such as local or ollama; default: what the file implies."),
    ] = None,
) -> None:
    """Add a preset from a file of another program.

    It is written to the presets folder as strict JSON. A preset that exists is not overwritten.
    """
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, PRESET_IMPORTS)
    imported = preset_from_text(read_text(file), file, name, provider=provider)
    preset = imported.preset
    target = open_presets_folder(read_settings().presets_dir) / f"{preset.id}.json"
    if target.exists():
        raise UserError(f"{target} exists already; remove it first or choose another --name")
    write_text(target, export_preset(preset))
    print_line(f"the preset {preset.name} was written to {target}")
    for note in imported.notes:
        print_line(f"note: {note}")
