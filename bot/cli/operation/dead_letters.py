"""`troupe dead-letters`: what was set aside in the inbox and the outbox."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from bot.chat.operation import DeadLetter
from bot.cli.operation.installation import (
    format_table,
    record_change,
    signal_all,
    use_installation,
)
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.dead_letters import DeadLetters
from bot.turn.arrivals import CONVERSATIONS

app = command_app("Show, retry or drop what was set aside.")
_Name = Annotated[str, typer.Argument(help="As `troupe dead-letters list` shows it: in-12, out-7.")]


@app.command("list")
def list_dead_letters() -> None:
    """List what was set aside, without what people wrote."""
    for line in format_dead_letters(use_installation(lambda database: _of(database).all())):
        print_line(line)


@app.command("show")
def show_dead_letter(name: _Name) -> None:
    """Print what one of them says."""
    text = use_installation(lambda database: _of(database).text(name))
    if text is None:
        raise _unknown(name)
    print_line(text)


@app.command("retry")
def retry_dead_letter(name: _Name) -> None:
    """Process a message once more, or send a part once more unless it has arrived after all.

    A part is sent as text: the file, the buttons and the face that it had are not kept.
    """

    async def retry(database: Database) -> str | None:
        key = await _of(database).retry(name)
        if key is not None:
            await record_change(database, "retry dead letter", name, key)
            await signal_all(CONVERSATIONS, [key])
        return key

    key = use_installation(retry)
    if key is None:
        raise _unknown(name)
    print_line(f"{name} is tried again in {key}")


@app.command("drop")
def drop_dead_letter(name: _Name) -> None:
    """Delete what one of them says, for good."""

    async def drop(database: Database) -> bool:
        is_dropped = await _of(database).drop(name)
        if is_dropped:
            await record_change(database, "drop dead letter", name)
            await database.truncate_log()
        return is_dropped

    if not use_installation(drop):
        raise _unknown(name)
    print_line(f"{name} is dropped")


def format_dead_letters(letters: Sequence[DeadLetter]) -> list[str]:
    """Write a line for each of them."""
    if not letters:
        return ["nothing was set aside"]
    rows = [(one.name, one.place, one.kind, _moment(one.at), one.reason) for one in letters]
    return format_table(("name", "where", "what", "when (UTC)", "why"), rows)


def _moment(at: float | None) -> str:
    return "-" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _of(database: Database) -> DeadLetters:
    return DeadLetters(database, SystemClock())


def _unknown(name: str) -> UserError:
    return UserError(f"there is no dead letter {name!r}; `troupe dead-letters list` shows them")
