"""`troupe preset validate`: check preset files before the service reads them."""

from pathlib import Path
from typing import Annotated

import typer

from bot.cli.text_io import print_line, read_text
from bot.cli.typer_apps import command_app
from bot.errors import PresetError
from bot.prompting.presets.files import load_preset_lorebook, parse_preset
from bot.service.backends import unsupported_parameters
from bot.settings import read_settings

app = command_app()


@app.command("validate")
def validate_presets(
    files: Annotated[list[Path], typer.Argument(help="Preset files, anywhere.")],
) -> None:
    """Check preset files by key and line.

    The parameters are checked against the providers that are set up here.
    """
    settings = read_settings()
    for file in files:
        preset = load_preset_lorebook(parse_preset(read_text(file), str(file)), file)
        if problems := unsupported_parameters(preset, settings):
            raise PresetError("\n".join(f"{file}: {problem}" for problem in problems))
        unsupported = ", ".join(preset.unsupported_keys)
        note = f"; not supported yet: {unsupported}" if unsupported else ""
        print_line(f"{file}: the preset {preset.name} is valid{note}")
