"""`troupe preset validate`: check preset files before the service reads them."""

from pathlib import Path
from typing import Annotated

import typer

from bot.cli.text_io import print_line, read_bytes, read_text
from bot.cli.typer_apps import command_app
from bot.errors import PresetError, UserError
from bot.importers.character_files import merge_character_file
from bot.importers.file_kinds import MAX_BYTES_READ, FileKind, check_file_kind
from bot.prompting.presets.files import load_preset_lorebook, parse_preset
from bot.service.backends import preset_problems
from bot.settings import Settings, read_settings

app = command_app()


@app.command("validate")
def validate_presets(
    files: Annotated[list[Path], typer.Argument(help="Preset files, anywhere.")],
) -> None:
    """Check preset files by key and line.

    Every file is reported, good ones too. The parameters are checked against the providers that
    are set up here.
    """
    settings = read_settings()
    problems: list[str] = []
    for file in files:
        try:
            print_line(f"{file}: {validate_file(file, settings)}")
        except (PresetError, UserError) as error:
            problems.append(str(error))
    if problems:
        raise PresetError("\n".join(problems))


def validate_file(file: Path, settings: Settings) -> str:
    """Return what there is to say about a valid preset file.

    Raises:
        PresetError: it is invalid; one line for each problem.
        UserError: it cannot be read, or is another kind of file.
    """
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, {FileKind.PRESET})
    preset = load_preset_lorebook(parse_preset(read_text(file), str(file)), file)
    try:
        preset = merge_character_file(preset, file.parent).preset
    except PresetError as error:
        raise PresetError(f"{file}: {error}") from None
    if problems := preset_problems(preset, settings):
        raise PresetError("\n".join(f"{file}: {problem}" for problem in problems))
    return f"the preset {preset.name} is valid"
