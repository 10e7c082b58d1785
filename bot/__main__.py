"""The command line: thin; every command says what it does in words for people."""

import gc
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from bot.backends.model_files.store import find_model
from bot.cli.bench_slots import compare_places
from bot.cli.bench_templates import compare, table
from bot.cli.character import card_of, described, export_character, import_character
from bot.cli.check import check as check_everything
from bot.cli.model import model_app
from bot.cli.preset_version import version_of
from bot.cli.render import View, preset_prompt, read_messages, template_prompt
from bot.cli.replay import as_sent, find_receipt
from bot.cli.replay import replay as replay_receipt
from bot.errors import PresetError, TroupeError, UserError
from bot.importers.cards.card import CardContainer
from bot.importers.character_files import load_complete_presets
from bot.importers.modelfile.conversion import modelfile_from_preset
from bot.importers.preset_files import preset_from_text
from bot.platforms.registry import terminal_platforms
from bot.platforms.spec import PlatformSpec
from bot.prompting.presets.files import (
    export_preset,
    find_preset,
    load_presets,
    parse_preset,
    with_lorebook,
)
from bot.prompting.presets.preset import Preset
from bot.service.service import running
from bot.service.wiring import misunderstood, presets_folder
from bot.settings import Settings, read_settings, secrets_of
from bot.storage.data_dir import create_data_dir
from bot.storage.sql.database import open_database, read_revision
from bot.storage.sql.tables import NEWEST
from bot.telemetry.logs import configure_logs, open_log_stream

_NEW_OBJECTS_TO_LOOK_FOR_GARBAGE = 10_000  # Python's own 700 is for small programs

app = typer.Typer(
    name="troupe",
    help="Characters and assistants that live in Discord servers and Telegram chats.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
preset_app = typer.Typer(no_args_is_help=True, help="The presets: who can answer.")
character_app = typer.Typer(no_args_is_help=True, help="Character cards (V1, V2, V3).")
db_app = typer.Typer(no_args_is_help=True, help="The database.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure what things cost on this machine.")
app.add_typer(preset_app, name="preset")
app.add_typer(character_app, name="character")
app.add_typer(model_app, name="model")
app.add_typer(db_app, name="db")
app.add_typer(bench_app, name="bench")


@app.command()
def run() -> None:
    """Start the service: Discord and Telegram where tokens are set, else this terminal."""
    settings = read_settings()
    _serve(settings, settings.configured_platforms or terminal_platforms())


@app.command()
def chat() -> None:
    """Talk to your presets in this terminal, whatever tokens are set."""
    _serve(read_settings(), terminal_platforms())


@app.command()
def check() -> None:
    """Read every setting, preset and connection; say what is wrong and how to mend it."""
    settings = read_settings()
    raise typer.Exit(0 if _run(check_everything(settings, _tell)) else 1)


@app.command()
def render(
    messages: Annotated[
        Path, typer.Option(help='a JSON list of {"role", "content"}, or - for the input')
    ],
    preset: Annotated[str | None, typer.Option(help="whose prompt; without: the default's")] = None,
    template: Annotated[
        str | None,
        typer.Option(help="instead of a preset: a template's name, or a Jinja file"),
    ] = None,
    view: Annotated[View, typer.Option("--as", help="how to show it")] = View.TEXT,
) -> None:
    """Show exactly what a model is sent for a conversation."""
    if preset and template:
        raise UserError("give either --preset or --template, not both")
    text = sys.stdin.read() if str(messages) == "-" else _read(messages)
    said = read_messages(text, "the input" if str(messages) == "-" else str(messages))
    if template:
        shown = _run(template_prompt(template, said, view))
    else:
        settings = read_settings()
        chosen = find_preset(
            load_complete_presets(presets_folder(settings)), preset or settings.default_preset
        )
        shown = _run(preset_prompt(chosen, said, view, settings))
    if view is View.TOKENS:
        typer.echo(shown, nl=False)  # it leaves the colours out where nobody sees them
    else:
        _tell(shown, end="\n" if sys.stdout.isatty() and not shown.endswith("\n") else "")


@app.command()
def replay(
    receipt: Annotated[int, typer.Argument(help="the number that /context tells in a chat")],
    show: Annotated[
        bool, typer.Option("--show", help="only show exactly what was sent, secrets removed")
    ] = False,
) -> None:
    """Ask a model again what it was asked for an answer, and show how its new answer differs."""
    settings = read_settings()
    found = _run(find_receipt(receipt, settings))
    if show:
        _tell(_run(as_sent(receipt, found, settings)), end="")
    else:
        typer.echo(_run(replay_receipt(found, settings)), nl=False)


@preset_app.command("list")
def list_presets() -> None:
    """Name every preset, with what it is for."""
    for preset in _presets().values():
        _tell(f"{preset.name}: {preset.description}" if preset.description else preset.name)


@preset_app.command("show")
def show_preset(name: str) -> None:
    """Print a preset as strict JSON, and beside it which version it is."""
    preset = find_preset(_presets(), name)
    _tell(export_preset(preset), end="")
    _progress(_run(version_of(preset, read_settings())))


@preset_app.command("validate")
def validate_presets(files: list[Path]) -> None:
    """Read preset files and say what is wrong in them, by file, key and line."""
    settings = read_settings()
    for file in files:
        preset = with_lorebook(parse_preset(_read(file), str(file)), file)
        if wrong := misunderstood(preset, settings):
            raise PresetError("\n".join(f"{file}: {problem}" for problem in wrong))
        idle = ", ".join(preset.without_effect)
        _tell(f"{file}: {preset.name} is fine" + (f"; nothing comes yet of {idle}" if idle else ""))


@preset_app.command("import")
def import_preset(
    file: Annotated[
        Path, typer.Argument(help="a preset, a Modelfile, or a template of SillyTavern's")
    ],
    name: Annotated[str | None, typer.Option(help="what to call it")] = None,
) -> None:
    """Take a file of another program into the presets folder, written as strict JSON."""
    imported = preset_from_text(_read(file), file, name)
    preset = imported.preset
    target = presets_folder(read_settings()) / f"{preset.id}.json"
    if target.exists():
        raise UserError(f"{target} exists already; take it away first or rename the preset")
    _write(target, export_preset(preset))
    _tell(f"{preset.name} is now in {target}")
    for remark in imported.notes:
        _tell(f"note: {remark}")


class Format(StrEnum):
    JSON = "json"
    MODELFILE = "modelfile"


@preset_app.command("export")
def export_to_file(
    name: str,
    file: Annotated[Path, typer.Argument(help="where to")],
    form: Annotated[
        Format, typer.Option("--as", help="RodelAgent's form or ollama's")
    ] = Format.JSON,
) -> None:
    """Write a preset to a file: strict JSON that RodelAgent reads too, or a Modelfile."""
    preset = find_preset(_presets(), name)
    write = {Format.JSON: export_preset, Format.MODELFILE: modelfile_from_preset}[form]
    _write(file, write(preset))
    _tell(f"{preset.name} is now in {file}")


@character_app.command("import")
def import_card(
    file: Annotated[Path, typer.Argument(help="a character card: PNG, JSON or CHARX")],
    name: Annotated[str | None, typer.Option(help="what to call its preset")] = None,
) -> None:
    """Take a character card in: it becomes a preset, and the card itself is kept."""
    settings = read_settings()
    folder = presets_folder(settings)
    like = find_preset(load_presets(folder), settings.default_preset)
    preset = import_character(file, folder, like, name)
    _tell(f"{preset.name} is now in {folder / f'{preset.id}.json'}")
    _tell(f"talk to it: troupe chat, then /preset use {preset.name}")


@character_app.command("export")
def export_card(
    name: str,
    file: Annotated[Path, typer.Argument(help="where to")],
    form: Annotated[
        CardContainer | None, typer.Option("--as", help="without: by the file's ending")
    ] = None,
) -> None:
    """Write a character as a card that other programs read, with all that its own card said."""
    preset = export_character(name, _presets(), presets_folder(read_settings()), file, form)
    _tell(f"{preset.name} is now in {file}")


@character_app.command("show")
def show_character(name: str) -> None:
    """Tell what a character brings along: greetings, lorebook, notes."""
    preset = find_preset(_presets(), name)
    _tell(described(preset, card_of(preset, presets_folder(read_settings()))))


@db_app.command("upgrade")
def upgrade_database() -> None:
    """Bring the tables to the newest form; `run` does this by itself."""
    _run(_open_and_close(read_settings()))
    _tell(f"the database is at {NEWEST}")


@db_app.command("current")
def current_tables() -> None:
    """Name the form that the tables have now, and the one that this version of Troupe wants."""
    found = _run(read_revision(read_settings().sqlalchemy_url)) or "no tables yet"
    wanted = f"{found}; this version of Troupe wants {NEWEST} (`troupe db upgrade`)"
    _tell(found if found == NEWEST else wanted)


@bench_app.command("templates")
def bench_templates() -> None:
    """Render the same conversations as we do and as transformers does, and compare the times."""
    _tell(table(compare()), end="")


@bench_app.command("places")
def bench_places(
    seed: Annotated[int, typer.Option(help="who speaks when; the same for both sides")] = 1,
) -> None:
    """Let 8 conversations share 4 places of a local model, and llama.cpp's server beside it."""
    settings = read_settings()
    local = settings.providers["local"]
    model = find_model("default", local, settings.data_dir)
    _progress("168 answers are written; that takes some minutes ...")
    _tell(_run(compare_places(model, local, seed)))


def main() -> None:
    """Run the command line; what goes wrong on purpose ends in one line and exit code 1."""
    try:
        app()
    except TroupeError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"troupe: {line}\n")
        raise SystemExit(1) from None


def _serve(settings: Settings, platforms: Sequence[PlatformSpec]) -> None:
    terminal = any(spec.uses_terminal for spec in platforms)
    configure_logs(
        form=settings.log_format,
        level=settings.log_level,
        secrets=secrets_of(settings),
        stream=open_log_stream(
            create_data_dir(settings.data_dir) / "troupe.log" if terminal else None
        ),
    )

    async def serve() -> None:
        async with running(settings, _progress, platforms) as service:
            # What is here now stays: to look through it for garbage, again and again, was an
            # eighth of a message's cost, and nothing went on for a quarter of a second. What comes
            # is mostly messages under way: looked at less often, most are gone by themselves.
            gc.freeze()
            gc.set_threshold(_NEW_OBJECTS_TO_LOOK_FOR_GARBAGE)
            await service.serve()

    _run(serve())


async def _open_and_close(settings: Settings) -> None:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url):
        pass


def _run(work: Any) -> Any:
    return uvloop.run(work)


def _presets() -> dict[str, Preset]:
    return load_presets(presets_folder(read_settings()))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} cannot be read: it is not UTF-8; save it as UTF-8") from None


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def _tell(text: str, *, end: str = "\n") -> None:
    sys.stdout.write(text + end)


def _progress(text: str) -> None:
    sys.stderr.write(f"troupe: {text}\n")


if __name__ == "__main__":
    main()
