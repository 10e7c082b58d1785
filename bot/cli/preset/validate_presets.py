"""`troupe preset validate`: check preset files before the service reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from bot.chat.prompt import Message
from bot.cli.text_io import print_line, read_bytes, read_text
from bot.cli.typer_apps import command_app
from bot.errors import PresetError, TemplateError, UserError
from bot.importers.character_files import merge_character_file
from bot.importers.file_kinds import MAX_BYTES_READ, FileKind, check_file_kind
from bot.prompting.compose.compose import template_of
from bot.prompting.presets.files import load_preset_lorebook, parse_preset
from bot.prompting.presets.preset import Preset
from bot.service.backends import preset_problems
from bot.settings import Settings, read_settings
from bot.templates.renderer import ModelTemplate, Renderer

app = command_app()


@app.command("validate")
def validate_presets(
    files: Annotated[list[Path], typer.Argument(help="Preset files, anywhere.")],
) -> None:
    """Check preset files by key and line.

    Every file is reported, good ones too. The parameters are checked against the providers that
    are set up here.
    """
    problems = uvloop.run(_validate_all(files, read_settings()))
    if problems:
        raise PresetError("\n".join(problems))


async def _validate_all(files: list[Path], settings: Settings) -> list[str]:
    problems: list[str] = []
    async with Renderer() as renderer:
        for file in files:
            try:
                preset = validate_file(file, settings)
            except (PresetError, UserError) as error:
                problems.append(str(error))
                continue
            failed = await template_problems(preset, renderer)
            problems += [f"{file}: {one}" for one in failed]
            if not failed:
                print_line(f"{file}: the preset {preset.name} is valid")
    return problems


async def template_problems(preset: Preset, renderer: Renderer) -> Sequence[str]:
    """Return why a preset's template fails; one in a GGUF is not tested."""
    choice = template_of(preset)
    if choice.source or choice.named or choice.strings:
        try:
            await renderer.render([Message("user", "Hello")], choice, ModelTemplate())
        except TemplateError as error:
            return [f"preset {preset.name!r}: its template: {error}"]
    return []


def validate_file(file: Path, settings: Settings) -> Preset:
    """Return the preset in a file.

    Raises:
        PresetError: it is invalid; one line for each problem.
        UserError: it cannot be read, or is another kind of file.
    """
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, {FileKind.PRESET})
    preset = load_preset_lorebook(parse_preset(read_text(file), str(file)), file)
    try:
        preset = merge_character_file(preset, file.parent)[0]
    except PresetError as error:
        raise PresetError(f"{file}: {error}") from None
    if problems := preset_problems(preset, settings):
        raise PresetError("\n".join(f"{file}: {problem}" for problem in problems))
    return preset
