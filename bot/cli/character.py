"""`troupe character`: import a character card as a preset, show it, and export it again."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.cli.text_io import open_presets_folder, print_line, print_notes, read_bytes
from bot.cli.typer_apps import command_app
from bot.errors import PresetError, UserError
from bot.importers.card import (
    MAX_FILE_BYTES,
    Card,
    CardContainer,
    card_file,
    load_card,
    read_card,
    write_card,
)
from bot.importers.card_to_preset import card_notes, preset_from_card
from bot.importers.file_kinds import CHARACTER_IMPORTS, check_file_kind
from bot.media.fetching import FetchFailed, PublicFetcher
from bot.prompting.presets.files import (
    export_preset,
    find_preset_file,
    read_presets,
    write_whole_file,
)
from bot.prompting.presets.preset import Preset
from bot.runtime.addresses import is_http_address
from bot.runtime.shipped_files import presets_folder
from bot.runtime.terminal import escape_to_one_line
from bot.service.backends import missing_for
from bot.settings import Settings, read_settings

app = command_app("Import, list and export character cards.")


@app.command("import")
def import_card(
    file: Annotated[
        str, typer.Argument(help="A character card: PNG, JSON or CHARX; a file or an address.")
    ],
    name: Annotated[
        str | None, typer.Option(help="The name of its preset; default: the card's.")
    ] = None,
) -> None:
    """Make a preset of a character card (V1, V2 or V3), and keep the card for export.

    It answers through the provider and the model of the default preset, or through the local model
    where there is no default preset yet.
    """
    settings = read_settings()
    data = _read_card_file(file, settings)
    check_file_kind(data, Path(file), CHARACTER_IMPORTS)
    card = read_card(data, file)  # raises before a folder is made
    folder = open_presets_folder(settings.presets_dir)
    default = _find_default(folder, settings.default_preset)
    model = {"provider": default.provider, "model": default.model} if default else {}
    provider = settings.providers.get(default.provider if default else "local")
    is_local = isinstance(provider, LlamaCppSettings)
    preset = preset_from_card(card, file, name=name, is_local=is_local, **model)
    target = find_preset_file(folder, preset)
    if target.exists():
        raise UserError(f"{target} already exists; remove it first or choose another --name")
    write_whole_file(card_file(folder, preset), data)
    write_whole_file(target, export_preset(preset).encode())
    print_line(f"the preset {preset.name} was written to {target}")
    print_notes(card_notes(card, preset))
    if default is None:
        print_line(f"make it the default: TROUPE_DEFAULT_PRESET={preset.name!r} in .env")
        print_line("then talk to it: troupe chat")
    else:
        print_line(f"talk to it: troupe chat, then /preset use {preset.name}")
    print_line("a service that runs uses it within a few seconds")
    print_notes(missing_for(preset, settings))


@app.command("list")
def list_characters() -> None:
    """List the characters among the presets, and what each of them has."""
    folder = presets_folder(read_settings().presets_dir)
    presets = [preset for preset in read_presets(folder).presets.values() if _is_character(preset)]
    if not presets:
        print_line(f"no character in {folder}; add one with `troupe character import FILE`")
    for preset in presets:
        print_line(escape_to_one_line(_summarize_character(preset)))


@app.command("export")
def export_card(
    name: str,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    form: Annotated[
        CardContainer | None,
        typer.Option("--as", help="The kind of card; default: by the file name."),
    ] = None,
) -> None:
    """Write a preset as a card, with every field that its own card had."""
    folder = presets_folder(read_settings().presets_dir)
    preset = read_presets(folder).find(name)
    if form is None:
        ending = file.suffix.lower().removeprefix(".")
        if ending not in {one.value for one in CardContainer}:
            raise UserError(f"{file} does not end in a kind of card; use --as json, png or charx")
        form = CardContainer(ending)
    try:
        file.write_bytes(write_card(load_card(preset, folder), form))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    print_line(f"the card of {preset.name} was written to {file}")


@app.command("show")
def show_character(name: str) -> None:
    """Show what a character has: greetings, lorebook, notes."""
    folder = presets_folder(read_settings().presets_dir)
    preset = read_presets(folder).find(name)
    print_line(_describe_character(preset, load_card(preset, folder)))


def _find_default(folder: Path, name: str) -> Preset | None:
    """Return the default preset of a folder; None if there is none, or no preset can be read."""
    try:
        return read_presets(folder).find(name)
    except PresetError:
        return None


def _is_character(preset: Preset) -> bool:
    """Return whether a preset has what assistants lack: a persona, a name, a greeting."""
    return any((preset.persona, preset.character, preset.role_name, preset.greeting))


def _summarize_character(preset: Preset) -> str:
    """Return one line: the preset's name, the character's, greetings and lorebook."""
    book = preset.parsed_lorebook
    facts = [
        f"plays as {preset.character_name}" if preset.character_name != preset.name else "",
        _count(len(preset.greetings), "greeting"),
        _count(len(book.entries) if book else 0, "lorebook entry", "lorebook entries"),
        preset.description,
    ]
    return f"{preset.name}: {'; '.join(filter(None, facts))}".removesuffix(": ")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}" if number else ""


def _read_card_file(file: str, settings: Settings) -> bytes:
    """Read a card from a file, or from a URL if that is allowed.

    Raises:
        UserError: it cannot be had.
    """
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
    """Describe a character in lines of text."""
    book = preset.parsed_lorebook
    facts = {
        "name": card.name,
        "plays as": preset.character_name,
        "card": f"{card.spec.value.upper()} {card.character_version}".rstrip(),
        "by": card.creator,
        "tags": ", ".join(card.tags),
        "greetings": str(len(preset.greetings)),
        "greetings in a group": str(len(preset.group_greetings)),
        "example turns": str(len(preset.messages)),
        "lorebook": f"{len(book.entries)} entries" if book else "",
        "notes": card.creator_notes.strip(),
    }
    return "\n".join(f"{key}: {value}" for key, value in facts.items() if value and value != "0")
