"""Add, list, rotate and remove the keys of providers that are kept in the database."""

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, TypeVar

import typer
import uvloop

from bot.cli.operation.installation import record_change
from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.settings import Settings, read_settings
from bot.storage.data_dir import create_data_dir
from bot.storage.database import Database, open_database
from bot.storage.fernets import KeyCipher, new_encryption_key
from bot.storage.provider_keys import SqlProviderKeys, replace_provider_keys
from bot.storage.rewriting import rewrite_texts

T = TypeVar("T")

app = command_app("Keep the keys of providers in the database, encrypted.")


@app.command("new")
def print_new_key() -> None:
    """Print a new encryption key, for TROUPE_ENCRYPTION_KEYS; keep it outside of the database."""
    print_line(new_encryption_key())


@app.command("add")
def add_key(
    provider: Annotated[str, typer.Argument(help="The id of the provider, such as openai.")],
) -> None:
    """Ask for a key, or read it from standard input, and store it encrypted."""
    settings = read_settings()
    cipher = KeyCipher(settings.all_encryption_keys)
    key = typer.prompt("Key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not key.strip():
        raise UserError("there is no key on standard input")
    token = cipher.encrypt(provider, key.strip())

    async def add(database: Database) -> None:
        await SqlProviderKeys(database, SystemClock()).add(provider, token)
        await record_change(database, "add provider key", provider)

    _run(settings, add)
    print_line(
        f"stored; set TROUPE_PROVIDERS__{provider.upper()}__STORED_KEYS=true and start anew to use"
        " it"
    )


@app.command("list")
def list_keys() -> None:
    """List the stored keys: number, provider, day, and the last four characters."""
    settings = read_settings()
    cipher = KeyCipher(settings.all_encryption_keys)
    read = _run(settings, lambda database: SqlProviderKeys(database, SystemClock()).read())
    for one in read:
        day = datetime.fromtimestamp(one.added_at, UTC).date()
        tail = cipher.decrypt(one.provider, one.token)[-4:]
        print_line(f"{one.number}  {one.provider}  {day}  …{tail}")


@app.command("rotate")
def rotate() -> None:
    """Encrypt all keys of providers and all texts again with the first of TROUPE_ENCRYPTION_KEYS.

    Put a new key in front of the old one in every process, rotate, then remove the old one. The
    service may run meanwhile. A run that was interrupted goes on.
    """
    settings = read_settings()
    cipher = KeyCipher(settings.all_encryption_keys)

    async def rotate_all(database: Database) -> tuple[int, int]:
        count = await database.write(partial(replace_provider_keys, renew=cipher.rotate))
        await record_change(database, "rotate encryption key", "all")
        return count, await rewrite_texts(database, _report)

    keys, rows = _run(settings, rotate_all)
    print_line(f"encrypted with the newest encryption key: {keys} keys, {rows} rows with texts")


@app.command("remove")
def remove_key(
    number: Annotated[int, typer.Argument(help="The number that `troupe keys list` shows.")],
) -> None:
    """Remove a stored key."""

    async def remove(database: Database) -> bool:
        is_removed = await SqlProviderKeys(database, SystemClock()).remove(number)
        if is_removed:
            await record_change(database, "remove provider key", str(number))
        return is_removed

    if not _run(read_settings(), remove):
        raise UserError(f"there is no key {number}; `troupe keys list` shows them")
    print_line("removed")


def _report(table: str, rows: int) -> None:
    print_progress(f"{table}: {rows} rows")


def _run(settings: Settings, action: Callable[[Database], Awaitable[T]]) -> T:
    async def use() -> T:
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            return await action(database)

    create_data_dir(settings.data_dir)
    return uvloop.run(use())
