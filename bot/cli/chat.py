"""`troupe chat`: the service with the terminal as its only platform."""

from typing import Annotated

import typer

from bot.cli.run import serve
from bot.cli.typer_apps import command_app
from bot.platforms.registry import terminal_platforms
from bot.service.options import RunOptions
from bot.settings import read_settings

app = command_app()


@app.command()
def chat(
    preset: Annotated[
        str | None,
        typer.Option(help="Who answers, in a conversation of its own; the usual one is unchanged."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that answers this time: MODEL or PROVIDER/MODEL."),
    ] = None,
) -> None:
    """Talk to your presets in this terminal.

    It opens no port and runs beside a service that uses the same data directory. The tokens of
    other platforms are ignored. Lines from a pipe begin a new conversation and are answered one
    after the other; the exit code is 1 if one was not: echo hello | troupe chat
    """
    options = RunOptions(has_port=False, preset=preset, model=model)
    serve(read_settings(), terminal_platforms(), options)
