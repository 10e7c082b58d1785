"""`troupe chat`: the service with the terminal as its only platform."""

from bot.cli.run import serve
from bot.cli.typer_apps import command_app
from bot.platforms.registry import terminal_platforms
from bot.settings import read_settings

app = command_app()


@app.command()
def chat() -> None:
    """Talk to your presets in this terminal.

    It opens no port and runs beside a service that uses the same data directory. The tokens of
    other platforms are ignored. Lines from a pipe are answered one after the other:
    echo hello | troupe chat
    """
    serve(read_settings(), terminal_platforms(), has_port=False)
