"""`troupe preset show|validate|import|export`: what needs the schema of presets."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from bot.chat.prompt import Message
from bot.cli.text_io import (
    open_presets_folder,
    print_exactly,
    print_line,
    print_notes,
    print_progress,
    read_bytes,
    read_text,
    write_text,
)
from bot.cli.typer_apps import command_app
from bot.errors import PresetError, TemplateError, UserError
from bot.importers.character_files import merge_character_file
from bot.importers.file_kinds import MAX_BYTES_READ, PRESET_IMPORTS, FileKind, check_file_kind
from bot.importers.modelfile import modelfile_from_preset
from bot.importers.preset_files import preset_from_text
from bot.prompting.compose.compose import template_of
from bot.prompting.presets.files import (
    export_preset,
    find_preset_file,
    load_preset_lorebook,
    parse_preset,
    preset_version,
    read_presets,
)
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.runtime.shipped_files import presets_folder
from bot.service.backends import missing_for, preset_problems
from bot.settings import Settings, read_settings
from bot.storage.database import database_exists, open_database
from bot.storage.presets import PresetVersions
from bot.templates.renderer import ModelTemplate, Renderer

_NO_VERSION = "no version yet: the service has not started with it"

app = command_app()


class PresetFormat(StrEnum):
    JSON = "json"
    MODELFILE = "modelfile"


_WRITERS = {PresetFormat.JSON: export_preset, PresetFormat.MODELFILE: modelfile_from_preset}


@app.command("show")
def show_preset(name: str) -> None:
    """Print a preset as strict JSON, and its version.

    The version is printed to stderr, so that the JSON can be piped.
    """
    settings = read_settings()
    preset = read_presets(presets_folder(settings.presets_dir)).find(name)
    print_exactly(export_preset(preset))
    print_progress(uvloop.run(describe_version(preset, settings)))


async def describe_version(preset: Preset, settings: Settings) -> str:
    """Return which version of a preset the service last started with.

    A missing database is not created.
    """
    if not database_exists(settings.sqlalchemy_url):
        return _NO_VERSION
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        newest = await PresetVersions(database, SystemClock()).newest(preset.name)
    if newest is None:
        return _NO_VERSION
    if newest.content == preset_version(preset).content:
        return f"version {newest.version}"
    return f"edited since version {newest.version}; the next start makes it a new one"


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
    """Return why a preset's template fails; templates in GGUF files are not tested."""
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
        raise UserError(f"{target} already exists; remove it first or choose another --name")
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
