"""`troupe console revoke`: end all sessions."""

from bot.chat.access import COMMAND_LINE, AuditEntry
from bot.cli.console.stored_tokens import change_tokens
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.runtime.clock import SystemClock
from bot.settings import read_settings

app = command_app()


@app.command()
def revoke() -> None:
    """End all sessions of the console.

    Links that were not used yet do not work any more, either.
    """
    entry = AuditEntry(SystemClock().now(), COMMAND_LINE, "end sessions", "all")
    ended = change_tokens(read_settings(), lambda tokens: tokens.end_all_sessions(), entry)
    print_line(f"ended {ended} session{'' if ended == 1 else 's'}")
