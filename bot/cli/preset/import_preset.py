"""`troupe preset import`: add a preset from a file of another program."""

from pathlib import Path
from typing import Annotated

import typer

from bot.cli.text_io import (
    open_presets_folder,
    print_line,
    print_notes,
    read_bytes,
    read_text,
    write_text,
)
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.importers.file_kinds import MAX_BYTES_READ, PRESET_IMPORTS, FileKind, check_file_kind
from bot.importers.preset_files import preset_from_text
from bot.prompting.presets.files import export_preset, find_preset_file, parse_preset, read_presets
from bot.prompting.presets.preset import Preset
from bot.service.backends import missing_for
from bot.settings import read_settings

app = command_app()


@app.command("import")
def import_preset(
    file: Annotated[
        Path,
        typer.Argument(
            help="A preset, a Modelfile, or a preset or template of SillyTavern, koboldcpp or"
            " LMDeploy."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The name of the new preset; default: the file's.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Who answers, such as local or ollama; default: what the file implies."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(help="Add a template, samplers, a prompt or a lorebook to this preset."),
    ] = None,
) -> None:
    """Add a preset from a file of another program.

    It is written to the presets folder as strict JSON. A preset that exists is not overwritten.
    """
    settings = read_settings()
    folder = open_presets_folder(settings.presets_dir)
    if into is not None:
        _add_to_preset(file, read_presets(folder).find(into), folder)
        return
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, PRESET_IMPORTS)
    imported = preset_from_text(read_text(file), file, name, provider=provider)
    preset = imported.preset
    target = find_preset_file(folder, preset)
    if target.exists():
        raise UserError(f"{target} exists already; remove it first or choose another --name")
    write_text(target, export_preset(preset))
    print_line(f"the preset {preset.name} was written to {target}")
    print_notes([*imported.notes, *missing_for(preset, settings)])


def _add_to_preset(file: Path, preset: Preset, folder: Path) -> None:
    """Add the content of a file to a preset; both must have been read without a mistake."""
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, {*PRESET_IMPORTS, FileKind.LOREBOOK})
    target = find_preset_file(folder, preset)
    own = parse_preset(read_text(target), str(target))  # without the lorebook of another file
    imported = preset_from_text(read_text(file), file, into=own)
    write_text(target, export_preset(imported.preset))
    print_line(f"{file} was added to the preset {preset.name} in {target}")
    print_notes(imported.notes)
