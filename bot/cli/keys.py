"""`troupe keys`: keep the keys of providers in the database, encrypted."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from bot.cli.installation import (
    change_installation,
    print_converted,
    record_change,
    use_installation,
)
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.settings import read_settings
from bot.storage.database import Database
from bot.storage.fernets import KeyCipher, new_encryption_key
from bot.storage.provider_keys import ProviderKeys
from bot.storage.rewriting import rewrite_texts

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
    cipher = _cipher()
    key = typer.prompt("Key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not key.strip():
        raise UserError("there is no key on standard input")
    token = cipher.encrypt(provider, key.strip())

    async def add(database: Database) -> bool:
        await ProviderKeys(database, SystemClock()).add(provider, token)
        return True

    change_installation(add, "add provider key", provider, must_exist=False)
    print_line(
        f"stored; set TROUPE_PROVIDERS__{provider.upper()}__STORED_KEYS=true and restart to use it"
    )


@app.command("list")
def list_keys() -> None:
    """List the stored keys: number, provider, day, and the last four characters."""
    cipher = _cipher()
    stored = use_installation(
        lambda database: ProviderKeys(database, SystemClock()).read(), must_exist=False
    )
    for one in stored:
        day = datetime.fromtimestamp(one.added_at, UTC).date()
        tail = cipher.decrypt(one.provider, one.token)[-4:]
        print_line(f"{one.number}  {one.provider}  {day}  …{tail}")


@app.command("rotate")
def rotate() -> None:
    """Encrypt all keys of providers and all texts again with the first of TROUPE_ENCRYPTION_KEYS.

    Put a new key in front of the old one in every process, rotate, then remove the old one. The
    service may run meanwhile. A run that was interrupted goes on.
    """
    cipher = _cipher()

    async def rotate_all(database: Database) -> tuple[int, int]:
        count = await ProviderKeys(database, SystemClock()).replace_tokens(cipher.rotate)
        await record_change(database, "rotate encryption key", "all")
        return count, await rewrite_texts(database, print_converted)

    keys, rows = use_installation(rotate_all, must_exist=False)
    print_line(f"encrypted with the newest encryption key: {keys} keys, {rows} rows with texts")


@app.command("remove")
def remove_key(
    number: Annotated[int, typer.Argument(help="The number that `troupe keys list` shows.")],
) -> None:
    """Remove a stored key."""
    is_removed = change_installation(
        lambda database: ProviderKeys(database, SystemClock()).remove(number),
        "remove provider key",
        str(number),
        must_exist=False,
    )
    if not is_removed:
        raise UserError(f"there is no key {number}; `troupe keys list` shows them")
    print_line("removed")


def _cipher() -> KeyCipher:
    return KeyCipher(read_settings().all_encryption_keys)
