"""`troupe preset` and `troupe character`: list, show, check, import, and export."""

import asyncio
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bot.backends.llama_cpp.settings import LlamaCppSettings
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
from bot.cli.typer_apps import create_command_app
from bot.errors import PresetError, TemplateError, UserError
from bot.importers.card import (
    MAX_FILE_BYTES,
    Card,
    CardContainer,
    card_file,
    encode_card,
    load_card,
    read_card,
)
from bot.importers.card_to_preset import card_notes, preset_from_card
from bot.importers.character_files import merge_character_file
from bot.importers.file_kinds import (
    CHARACTER_KINDS,
    MAX_BYTES_READ,
    PRESET_KINDS,
    FileKind,
    check_file_kind,
)
from bot.importers.modelfile import modelfile_from_preset
from bot.importers.preset_files import preset_from_text
from bot.media.fetching import FetchFailed, PublicFetcher
from bot.prompting.compose.compose import choose_template
from bot.prompting.presets.files import (
    export_preset,
    find_preset_file,
    load_preset_lorebook,
    parse_preset,
    read_presets,
    to_version,
    write_file_atomically,
)
from bot.prompting.presets.preset import Preset
from bot.runtime.addresses import is_http_address
from bot.runtime.clock import SystemClock
from bot.runtime.shipped_files import presets_folder
from bot.runtime.tasks import run_async
from bot.service.backends import describe_missing_setup, find_preset_problems
from bot.settings import Settings, read_settings
from bot.storage.database import database_exists, open_database
from bot.storage.presets import PresetVersions
from bot.templates.renderer import ModelTemplate, Renderer
from bot.texts.text import escape_to_one_line

_NO_VERSION_TEXT = "no version yet: the service has not started with this preset"

app = create_command_app()
preset_app = create_command_app("List, show, check, import, and export presets.")
app.add_typer(preset_app, name="preset")
character_app = create_command_app("Import, list, and export character cards.")
app.add_typer(character_app, name="character")


class PresetFormat(StrEnum):
    JSON = "json"
    MODELFILE = "modelfile"


_PRESET_WRITERS = {PresetFormat.JSON: export_preset, PresetFormat.MODELFILE: modelfile_from_preset}


@preset_app.command("list")
def list_presets() -> None:
    """List all presets with their purpose.

    Unreadable files are reported on stderr; `troupe preset validate` checks more.
    """
    folder_presets = read_presets(presets_folder(read_settings().presets_dir))
    for problem in folder_presets.problems.values():
        print_progress(problem)
    _print_list(folder_presets.presets.values())


def _print_list(presets: Iterable[Preset]) -> None:
    for one in presets:
        print_line(escape_to_one_line(f"{one.name}: {one.description}".removesuffix(": ")))


@preset_app.command("show")
def show_preset(name: str) -> None:
    """Print a preset as strict JSON, and its version.

    The version is printed to stderr, so that the JSON can be piped.
    """
    settings = read_settings()
    preset = read_presets(presets_folder(settings.presets_dir)).find(name)
    print_exactly(export_preset(preset))
    print_progress(run_async(describe_version(preset, settings)))


async def describe_version(preset: Preset, settings: Settings) -> str:
    """Return a line about the version that a preset had at the service's last start."""
    if not database_exists(settings.sqlalchemy_url):
        return _NO_VERSION_TEXT
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        newest_version = await PresetVersions(database, SystemClock()).newest(preset.name)
    if newest_version is None:
        return _NO_VERSION_TEXT
    if newest_version.content == to_version(preset).content:
        return f"version {newest_version.version}"
    return f"edited since version {newest_version.version}; the next start stores a new version"


@preset_app.command("validate")
def validate_presets(
    files: Annotated[list[Path], typer.Argument(help="The preset files to check, in any folder.")],
) -> None:
    """Check preset files, and report problems by key and line.

    Every file is reported, including valid ones. Parameters are checked against the providers
    configured here.
    """
    problems = run_async(_validate_all(files, read_settings()))
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
            template_errors = await find_template_problems(preset, renderer)
            problems += [f"{file}: {one}" for one in template_errors]
            if not template_errors:
                print_line(f"{file}: the preset {preset.name} is valid")
    return problems


async def find_template_problems(preset: Preset, renderer: Renderer) -> Sequence[str]:
    """Return an error line if a preset's template fails, except for templates in GGUF files."""
    choice = choose_template(preset)
    if choice.source or choice.named or choice.strings:
        try:
            await renderer.render([Message("user", "Hello")], choice, ModelTemplate())
        except TemplateError as error:
            return [f"preset {preset.name!r}: the template cannot be rendered: {error}"]
    return []


def validate_file(file: Path, settings: Settings) -> Preset:
    """Return the preset in a file; raise `PresetError` with one line per problem."""
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, {FileKind.PRESET})
    preset = load_preset_lorebook(parse_preset(read_text(file), str(file)), file)
    try:
        preset = merge_character_file(preset, file.parent)[0]
    except PresetError as error:
        raise PresetError(f"{file}: {error}") from None
    if problems := find_preset_problems(preset, settings):
        raise PresetError("\n".join(f"{file}: {problem}" for problem in problems))
    return preset


@preset_app.command("import")
def import_preset(
    file: Annotated[
        Path,
        typer.Argument(
            help="A preset, a Modelfile, or a preset or template of SillyTavern, koboldcpp, or"
            " LMDeploy."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="The name of the new preset; by default, the name of the file."),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="The provider, such as local or ollama; by default, the file decides."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(help="The preset to add a template, samplers, a prompt, or a lorebook to."),
    ] = None,
) -> None:
    """Import a preset from another program's file.

    It is written to the presets folder as strict JSON. Existing presets are not overwritten.
    """
    settings = read_settings()
    folder = open_presets_folder(settings.presets_dir)
    if into is not None:
        _add_to_preset(file, read_presets(folder).find(into), folder)
        return
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, PRESET_KINDS)
    imported_preset = preset_from_text(read_text(file), file, name, provider=provider)
    preset = imported_preset.preset
    target_file = find_preset_file(folder, preset)
    if target_file.exists():
        raise UserError(f"{target_file} already exists; remove it first or choose another --name")
    write_text(target_file, export_preset(preset))
    print_line(f"the preset {preset.name} was written to {target_file}")
    print_notes([*imported_preset.notes, *describe_missing_setup(preset, settings)])


def _add_to_preset(file: Path, preset: Preset, folder: Path) -> None:
    check_file_kind(read_bytes(file, MAX_BYTES_READ), file, {*PRESET_KINDS, FileKind.LOREBOOK})
    target = find_preset_file(folder, preset)
    file_preset = parse_preset(read_text(target), str(target))  # omits a lorebook from another file
    imported_preset = preset_from_text(read_text(file), file, base=file_preset)
    write_text(target, export_preset(imported_preset.preset))
    print_line(f"{file} was added to the preset {preset.name} in {target}")
    print_notes(imported_preset.notes)


@preset_app.command("export")
def export_preset_file(
    name: str,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    file_format: Annotated[
        PresetFormat,
        typer.Option("--as", help="The format: RodelAgent's JSON or ollama's Modelfile."),
    ] = PresetFormat.JSON,
) -> None:
    """Write a preset as JSON or as a Modelfile."""
    preset = read_presets(presets_folder(read_settings().presets_dir)).find(name)
    write_text(file, _PRESET_WRITERS[file_format](preset))
    print_line(f"the preset {preset.name} was written to {file}")


@character_app.command("import")
def import_card(
    file: Annotated[
        str, typer.Argument(help="A character card (PNG, JSON, or CHARX), as a file or a URL.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help="The name of the new preset; by default, the character's name on the card."
        ),
    ] = None,
) -> None:
    """Create a preset from a character card (V1, V2, or V3); the card is kept for export.

    It uses the provider and model of the default preset or, without one, the local model.
    """
    settings = read_settings()
    data = _read_card_file(file, settings)
    check_file_kind(data, Path(file), CHARACTER_KINDS)
    card = read_card(data, file)  # an error here comes before the folder is created
    folder = open_presets_folder(settings.presets_dir)
    default = _find_default_preset(folder, settings.default_preset)
    model = {"provider": default.provider, "model": default.model} if default else {}
    provider = settings.providers.get(default.provider if default else "local")
    is_local = isinstance(provider, LlamaCppSettings)
    preset = preset_from_card(card, file, name=name, local_model=is_local, **model)
    target = find_preset_file(folder, preset)
    if target.exists():
        raise UserError(f"{target} already exists; remove it first or choose another --name")
    write_file_atomically(card_file(folder, preset), data)
    write_file_atomically(target, export_preset(preset).encode())
    print_line(f"the preset {preset.name} was written to {target}")
    print_notes(card_notes(card, preset))
    if default is None:
        print_line(f"make it the default: TROUPE_DEFAULT_PRESET={preset.name!r} in .env")
        print_line("then talk to it: troupe chat")
    else:
        print_line(f"talk to it: troupe chat, then /preset use {preset.name}")
    print_line("a running service will use it within a few seconds")
    print_notes(describe_missing_setup(preset, settings))


@character_app.command("list")
def list_characters() -> None:
    """List the characters among the presets."""
    folder = presets_folder(read_settings().presets_dir)
    presets = [preset for preset in read_presets(folder).presets.values() if preset.is_character]
    if not presets:
        print_line(f"no characters in {folder}; add one with `troupe character import FILE`")
    _print_list(presets)


@character_app.command("export")
def export_card(
    name: str,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    container: Annotated[
        CardContainer | None,
        typer.Option("--as", help="The kind of card; by default, the file name decides."),
    ] = None,
) -> None:
    """Write a preset as a card, including all fields of its original card."""
    folder = presets_folder(read_settings().presets_dir)
    preset = read_presets(folder).find(name)
    if container is None:
        suffix = file.suffix.lower().removeprefix(".")
        if suffix not in {one.value for one in CardContainer}:
            raise UserError(f"{file} does not end in a card format; use --as json, png, or charx")
        container = CardContainer(suffix)
    try:
        file.write_bytes(encode_card(load_card(preset, folder), container))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    print_line(f"the card of {preset.name} was written to {file}")


@character_app.command("show")
def show_character(name: str) -> None:
    """Show a character's greetings, lorebook, and notes."""
    folder = presets_folder(read_settings().presets_dir)
    preset = read_presets(folder).find(name)
    print_line(_describe_character(preset, load_card(preset, folder)))


def _find_default_preset(folder: Path, name: str) -> Preset | None:
    try:
        return read_presets(folder).find(name)
    except PresetError:
        return None


def _read_card_file(file: str, settings: Settings) -> bytes:
    """Read a card from a file, or from a URL if settings allow that."""
    if not is_http_address(file):
        return read_bytes(Path(file), MAX_FILE_BYTES + 1)
    if not settings.fetch_links:
        raise UserError(
            f"{file} is a URL, and fetching from URLs is off; download it, or set "
            "TROUPE_FETCH_LINKS=true"
        )
    try:
        return asyncio.run(PublicFetcher().fetch(file, MAX_FILE_BYTES + 1))
    except FetchFailed as error:
        raise UserError(f"{file} cannot be fetched: {error}") from None


def _describe_character(preset: Preset, card: Card) -> str:
    lorebook = preset.parsed_lorebook
    details = {
        "name": card.name,
        "plays as": preset.character_name,
        "card": f"{card.spec.value.upper()} {card.fields.text('character_version')}".rstrip(),
        "by": card.fields.text("creator"),
        "tags": ", ".join(card.fields.texts("tags")),
        "greetings": str(len(preset.greetings)),
        "greetings in a group": str(len(preset.group_greetings)),
        "example turns": str(len(preset.messages)),
        "lorebook": f"{len(lorebook.entries)} entries" if lorebook else "",
        "notes": card.fields.text("creator_notes").strip(),
    }
    return "\n".join(f"{key}: {value}" for key, value in details.items() if value and value != "0")
