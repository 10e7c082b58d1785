"""The `troupe` command line: a table of all commands, and how errors are printed."""

import gc
import sys
from collections.abc import Mapping
from importlib import import_module  # noqa: TID251 # imports a command when it is used
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typing_extensions import override

from bot import __version__
from bot.cli.text_io import print_progress
from bot.cli.typer_apps import create_command_app
from bot.errors import TroupeError
from bot.telemetry.json_lines import JsonLines

_HELP_TEXT = """Run characters and assistants in Discord servers, Telegram chats, and this terminal.

Settings are read from the environment (TROUPE_...), the file .env, and the file troupe.toml.
"""

_INSTALLATION_MODULE = "bot.cli.installation"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("bot.cli.run", "Start the service on Discord, Telegram, or in this terminal."),
    "chat": ("bot.cli.run", "Chat with your presets in this terminal."),
    "init": ("bot.cli.init", "Set up a model, Telegram, and Discord, and write .env."),
    "check": ("bot.cli.check", "Test every setting, preset, and connection."),
    "preset": ("bot.cli.preset_files", "List, show, check, import, and export presets."),
    "character": ("bot.cli.preset_files", "Import, list, and export character cards."),
    "model": ("bot.cli.model", "Download, list, and describe local models."),
    "render": ("bot.cli.render", "Show the exact prompt that a model would receive."),
    "replay": ("bot.cli.render", "Generate an earlier answer again, and compare the two."),
    "usage": (_INSTALLATION_MODULE, "Print the cost of answers as CSV."),
    "keys": (_INSTALLATION_MODULE, "Store providers' keys in the database, encrypted."),
    "console": ("bot.cli.console", "Log in to the console in a browser."),
    "nodes": (_INSTALLATION_MODULE, "Show the processes of the installation."),
    "jobs": (_INSTALLATION_MODULE, "Show which process has which role, and the background work."),
    "dead-letters": (
        _INSTALLATION_MODULE,
        "Show, retry, or drop messages that could not be handled.",
    ),
    "pause": (_INSTALLATION_MODULE, "Stop answering until `troupe resume`."),
    "resume": (_INSTALLATION_MODULE, "Start answering again after `troupe pause`."),
    "export": (_INSTALLATION_MODULE, "Export a person's messages and descriptions as JSON."),
    "forget": (_INSTALLATION_MODULE, "Delete the stored data of a person, a channel, or a server."),
    "policy": ("bot.cli.policy", "Describe what is stored about people, and test deleting it."),
    "db": ("bot.cli.db", "Upgrade, copy, back up, restore, or encrypt the database."),
}
"""The module of each command, and the first line of its help."""


def load_command(name: str) -> Any:
    """Import a command's module; return the command, or the app if it has subcommands."""
    command = get_command(import_module(COMMANDS[name][0]).app)
    return getattr(command, "commands", {}).get(name, command)


class _Commands(TyperGroup):
    """Lists commands from the table, and imports a command only to run it or to show its help."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))

    # `ctx` is `Any` because Typer does not export its copy of click.
    @override
    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False  # Typer would import pydantic to convert None
        return option

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, remaining_args = super().resolve_command(ctx, args)
        if args == ["preset", "list"]:
            callback = import_module("bot.cli.preset_list").list_presets_quickly
            return "preset list", TyperCommand(None, callback=callback, add_help_option=False), []
        if name is not None:
            gc.disable()  # imports create no garbage
            try:
                command = load_command(name)
            finally:
                gc.enable()
        return name, command, remaining_args


app = create_command_app(_HELP_TEXT)
app.info.cls = _Commands


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"troupe {__version__}")
        raise typer.Exit


@app.callback()
def _declare_shared_options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; print a `TroupeError` to stderr and exit with code 1."""
    sys.stderr = stderr = JsonLines(sys.stderr, _wants_json_output)
    try:
        app(prog_name="troupe")
    except Exception as error:
        stderr.level = "error"
        if not isinstance(error, TroupeError):
            raise
        for line in str(error).splitlines():
            print_progress(line)
        raise SystemExit(1) from None


def _wants_json_output() -> bool:
    return bool(import_module("bot.settings").wants_json_output())
