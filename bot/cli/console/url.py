"""`troupe console url`: print a link that logs in."""

from bot.cli.console.stored_tokens import use_tokens
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.console.login import make_login_link
from bot.console.server import find_address
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.settings import read_settings

app = command_app()


@app.command()
def url() -> None:
    """Print a link that logs in once.

    It is one to the console of the running service, and works for 10 minutes.
    """
    settings = read_settings()
    address = settings.console.url or find_address(settings.data_dir)
    if address is None:
        raise UserError(
            f"no console runs on {settings.data_dir}; start one with `troupe run`, or set"
            " TROUPE_CONSOLE__URL to the address of one on another machine"
        )
    clock = SystemClock()
    print_line(use_tokens(settings, lambda tokens: make_login_link(tokens, clock, str(address))))
