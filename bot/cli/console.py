"""`troupe console`: create login links, end sessions, and manage API tokens."""

import difflib
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from bot.chat.access import ApiScope, ApiToken
from bot.cli.installation import change_installation, use_installation
from bot.cli.text_io import print_line
from bot.cli.typer_apps import create_command_app
from bot.console.login import API_TOKEN_PREFIX, ConsoleLinks, generate_token, hash_token
from bot.console.server import find_console_address
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.settings import read_settings
from bot.storage.database import Database
from bot.storage.tokens import ConsoleTokens

T = TypeVar("T")

app = create_command_app("Log in to the console in a browser.")
tokens_app = create_command_app("Add, list, and revoke API tokens.")
app.add_typer(tokens_app, name="token")


@app.command("url")
def print_login_url() -> None:
    """Print a one-time login link.

    It opens the running service's console, and expires after 10 minutes.
    """
    settings = read_settings()
    address = settings.console.url or find_console_address(settings.data_dir)
    if address is None:
        raise UserError(
            f"no console is running with data in {settings.data_dir}; start `troupe run`, or set"
            " TROUPE_CONSOLE__URL to the address of a console on another machine"
        )
    clock = SystemClock()
    print_line(
        _use_token_store(lambda tokens: ConsoleLinks(tokens, clock, str(address)).make_login_link())
    )


@app.command("revoke")
def revoke_sessions() -> None:
    """End all console sessions.

    Unused login links also stop working.
    """
    session_count = _write_tokens(lambda tokens: tokens.end_all_sessions(), "end sessions", "all")
    print_line(f"ended {session_count} session{'' if session_count == 1 else 's'}")


@tokens_app.command("add")
def add_token(
    name: Annotated[
        str, typer.Argument(help="A name that says what the token is for, such as backups.")
    ],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What the token may do: read, presets, operate, say. Separate several with commas,"
            " or repeat the option."
        ),
    ],
    channel: Annotated[
        list[str] | None,
        typer.Option(
            help="Limit the scope `say` to this channel, such as discord:1234; repeatable. By"
            " default, all channels that the bot knows are allowed."
        ),
    ] = None,
) -> None:
    """Create an API token and print it; only its hash is stored."""
    scopes = frozenset(_parse_scope(name) for names in scope for name in names.split(","))
    token = generate_token(API_TOKEN_PREFIX)
    for one in channel or ():
        if not re.fullmatch(r"[^\s:]+:[^\s#]+", one):
            raise UserError(f"--channel: {one!r} is not a channel; write it as telegram:-1001234")
    digest = hash_token(token)
    api_token = ApiToken(name, tuple(sorted(scopes)), SystemClock().now(), tuple(channel or ()))
    is_added = _write_tokens(
        lambda tokens: tokens.add_api_token(digest, api_token),
        "add token",
        name,
        new_value=", ".join([*sorted(scopes), *api_token.channels]),
    )
    if not is_added:
        raise UserError(
            f"the token {name!r} already exists; `troupe console token revoke {name}` deletes it"
        )
    print_line(token)


@tokens_app.command("list")
def list_tokens() -> None:
    """List the API tokens and their scopes."""
    for token in _use_token_store(lambda tokens: tokens.api_tokens()):
        print_line(f"{token.name}: {', '.join([*sorted(token.scopes), *token.channels])}")


@tokens_app.command("revoke")
def revoke_token(name: Annotated[str, typer.Argument(help="The token's name.")]) -> None:
    """Delete an API token."""
    if not _write_tokens(lambda tokens: tokens.revoke_api_token(name), "revoke token", name):
        raise UserError(f"there is no token {name!r}; `troupe console token list` lists them")
    print_line(f"revoked {name}")


def _parse_scope(name: str) -> ApiScope:
    try:
        return ApiScope(name.strip().lower())
    except ValueError:
        matches = difflib.get_close_matches(name, list(ApiScope), n=1)
        hint = f"did you mean {matches[0]}?" if matches else f"known: {', '.join(ApiScope)}"
        raise UserError(f"--scope: there is no scope {name.strip()!r}; {hint}") from None


def _make_token_store(database: Database) -> ConsoleTokens:
    return ConsoleTokens(database, SystemClock())


def _use_token_store(action: Callable[[ConsoleTokens], Awaitable[T]]) -> T:
    return use_installation(lambda database: action(_make_token_store(database)), must_exist=False)


def _write_tokens(
    change: Callable[[ConsoleTokens], Awaitable[T]], action: str, subject: str, new_value: str = ""
) -> T:
    return change_installation(
        lambda database: change(_make_token_store(database)),
        action,
        subject,
        new_value=new_value,
        must_exist=False,
    )
