"""`troupe console token`: add, list and revoke tokens for the API."""

import difflib
from typing import Annotated

import typer

from bot.chat.access import COMMAND_LINE, ApiToken, AuditEntry, Scope
from bot.cli.console.stored_tokens import change_tokens, use_tokens
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.console.login import new_api_token, token_digest
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.settings import read_settings

app = command_app("Add, list and revoke tokens for the API.")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What the token is for, such as backups.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it may do: read, presets, operate; several of them with commas, or by"
            " several options."
        ),
    ],
) -> None:
    """Make a token for the API and print it; it is stored as a hash only."""
    scopes = frozenset(_parse_scope(name) for given in scope for name in given.split(","))
    token = new_api_token()
    now = SystemClock().now()
    new = ApiToken(name, tuple(sorted(scopes)), now)
    digest = token_digest(token)
    entry = AuditEntry(now, COMMAND_LINE, "add token", name, after=", ".join(sorted(scopes)))
    if not change_tokens(read_settings(), lambda all_: all_.add_api_token(digest, new), entry):
        raise UserError(
            f"there is a token {name!r} already; `troupe console token revoke {name}` deletes it"
        )
    print_line(token)


def _parse_scope(name: str) -> Scope:
    try:
        return Scope(name.strip().lower())
    except ValueError:
        near = difflib.get_close_matches(name, list(Scope), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(Scope)}"
        raise UserError(f"--scope: there is no scope {name.strip()!r}; {hint}") from None


@app.command("list")
def list_tokens() -> None:
    """List the tokens for the API, and what each may do."""
    for token in use_tokens(read_settings(), lambda tokens: tokens.api_tokens()):
        print_line(f"{token.name}: {', '.join(sorted(token.scopes))}")


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="The token's name.")]) -> None:
    """Delete a token for the API."""
    entry = AuditEntry(SystemClock().now(), COMMAND_LINE, "revoke token", name)
    if not change_tokens(read_settings(), lambda tokens: tokens.revoke_api_token(name), entry):
        raise UserError(f"there is no token {name!r}; `troupe console token list` names them")
    print_line(f"revoked {name}")
