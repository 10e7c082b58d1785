"""`troupe preset export`: write a preset for another program."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.text_io import print_line, write_text
from bot.cli.typer_apps import command_app
from bot.importers.modelfile import modelfile_from_preset
from bot.prompting.presets.files import export_preset, read_presets
from bot.runtime.shipped_files import presets_folder
from bot.settings import read_settings


class PresetFormat(StrEnum):
    JSON = "json"
    MODELFILE = "modelfile"


_WRITERS = {PresetFormat.JSON: export_preset, PresetFormat.MODELFILE: modelfile_from_preset}

app = command_app()


@app.command("export")
def export_preset_file(
    name: str,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    form: Annotated[
        PresetFormat, typer.Option("--as", help="RodelAgent's JSON or ollama's Modelfile.")
    ] = PresetFormat.JSON,
) -> None:
    """Write a preset as JSON or as a Modelfile."""
    preset = read_presets(presets_folder(read_settings().presets_dir)).find(name)
    write_text(file, _WRITERS[form](preset))
    print_line(f"the preset {preset.name} was written to {file}")
