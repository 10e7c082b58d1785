"""The list of all commands; an expected error ends one in a line on stderr."""

import sys
from importlib import import_module  # noqa: TID251 # the settings cost more than most commands
from typing import Annotated

import typer

from bot import __version__
from bot.cli.text_io import print_progress
from bot.cli.typer_apps import LazyCommand, lazy_app
from bot.errors import TroupeError
from bot.telemetry.json_lines import JsonLines

_HELP = """Run characters and assistants in Discord servers, Telegram chats and this terminal.

Settings are read from the environment (TROUPE_...), the file .env and the file troupe.toml.
"""

_INSTALLATION = "bot.cli.installation"

app = lazy_app(
    _HELP,
    {
        "run": LazyCommand("bot.cli.run", "Start the service on Discord, Telegram or here."),
        "chat": LazyCommand("bot.cli.run", "Talk to your presets in this terminal."),
        "init": LazyCommand(
            "bot.cli.init", "Set up a model, Telegram and Discord, and write .env."
        ),
        "check": LazyCommand("bot.cli.check", "Test every setting, preset and connection."),
        "preset": LazyCommand(
            "bot.cli.preset_files", "List, show, check, import and export presets."
        ),
        "character": LazyCommand(
            "bot.cli.preset_files", "Import, list and export character cards."
        ),
        "model": LazyCommand("bot.cli.model", "Fetch and describe models for this machine."),
        "render": LazyCommand("bot.cli.render", "Show exactly what a model would be sent."),
        "replay": LazyCommand("bot.cli.render", "Ask a model again for an earlier answer."),
        "usage": LazyCommand(_INSTALLATION, "Print what answers cost, as CSV."),
        "keys": LazyCommand(
            _INSTALLATION, "Keep the keys of providers in the database, encrypted."
        ),
        "console": LazyCommand("bot.cli.console", "Log in to the console in a browser."),
        "nodes": LazyCommand(_INSTALLATION, "Show the processes of the installation."),
        "jobs": LazyCommand(_INSTALLATION, "Show what is done and what waits."),
        "dead-letters": LazyCommand(_INSTALLATION, "Show, retry or drop what was set aside."),
        "pause": LazyCommand(_INSTALLATION, "Answer nobody until `troupe resume`."),
        "resume": LazyCommand(_INSTALLATION, "Answer again after `troupe pause`."),
        "export": LazyCommand(
            _INSTALLATION, "Write what a person said, and said of themselves, as JSON."
        ),
        "forget": LazyCommand(
            _INSTALLATION, "Delete what is stored of a person, a channel or a server."
        ),
        "db": LazyCommand("bot.cli.db", "Upgrade, copy, back up, restore or encrypt the database."),
    },
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"troupe {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a TroupeError ends in one line on stderr and exit code 1."""
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
