"""`troupe db`: upgrade the database, show its revision, copy, back up, encrypt it."""

from pathlib import Path
from typing import Annotated

import typer
import uvloop
from sqlalchemy.exc import ArgumentError

from bot.cli.operation.installation import record_change, require_database
from bot.cli.operation.restoring import finish_restore, restore_database
from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import command_app
from bot.errors import SettingsError
from bot.settings import Settings, read_settings
from bot.storage.copying import back_up, copy_rows
from bot.storage.data_dir import DataDirUse, create_data_dir, lock_data_dir
from bot.storage.database import (
    NEWEST_REVISION,
    open_database,
    open_without_decrypting,
    parse_url,
    read_revision,
    sqlite_file,
    upgrade_tables,
)
from bot.storage.rewriting import rewrite_texts

app = command_app("Upgrade, copy, back up, restore or encrypt the database.")


@app.command("upgrade")
def upgrade_database() -> None:
    """Upgrade the tables to the newest revision; `troupe run` does this by itself."""
    print_line(f"the database is at {uvloop.run(_upgrade(read_settings()))}")


@app.command("current")
def show_revision() -> None:
    """Show the revision of the tables, and the one that this version of Troupe needs."""
    found = uvloop.run(read_revision(read_settings().sqlalchemy_url)) or "no tables yet"
    if found == NEWEST_REVISION:
        print_line(found)
    elif found[0].isdigit() and found > NEWEST_REVISION:
        print_line(
            f"{found}; this version of Troupe has {NEWEST_REVISION}: a newer one upgraded it"
        )
    else:
        needed = f"this version of Troupe needs {NEWEST_REVISION} (`troupe db upgrade`)"
        print_line(f"{found}; {needed}")


@app.command("copy")
def copy_database(
    to: Annotated[str, typer.Option(help="The address of the other database, as in settings.")],
) -> None:
    """Copy all rows into another database and compare them; a copy that broke off goes on.

    Stop the service first. Then set TROUPE_DATABASE_URL to the other database.
    """
    settings = read_settings()
    require_database(settings)
    _require_other_database(settings, to)
    with (
        lock_data_dir(settings.data_dir),
        lock_data_dir(settings.data_dir, DataDirUse.TERMINAL),
    ):
        copied = uvloop.run(_copy(settings.sqlalchemy_url, to))
    print_line(
        f"{copied} rows are in both databases and equal; set TROUPE_DATABASE_URL to the other"
    )


@app.command("backup")
def back_up_database(
    file: Annotated[Path, typer.Argument(help="The new file that the backup is written to.")],
) -> None:
    """Back up the SQLite database into a new file, also while the service runs."""
    settings = read_settings()
    require_database(settings)
    database = sqlite_file(settings.sqlalchemy_url)
    if database is None:
        raise SettingsError("TROUPE_DATABASE_URL is a PostgreSQL database; back it up with pg_dump")
    size = back_up(database, file)
    print_line(f"{file} holds the database ({size / 1e6:.1f} MB)")


@app.command("encrypt")
def encrypt_database() -> None:
    """Encrypt all texts with the first of TROUPE_ENCRYPTION_KEYS.

    That is what was stored before TROUPE_ENCRYPT_TEXTS was set, or with another key. The service
    may run meanwhile. A run that was interrupted goes on.
    """
    settings = read_settings()
    require_database(settings)
    if not settings.encrypt_texts:
        raise SettingsError("set TROUPE_ENCRYPT_TEXTS=true first, so that new texts are encrypted")
    print_line(f"rows that are encrypted now: {uvloop.run(_convert(settings))}")


@app.command("decrypt")
def decrypt_database() -> None:
    """Decrypt all texts, after TROUPE_ENCRYPT_TEXTS was unset.

    Stop the service first. A run that was interrupted goes on; after it, no key is needed any more.
    """
    settings = read_settings()
    require_database(settings)
    if settings.encrypt_texts:
        raise SettingsError("unset TROUPE_ENCRYPT_TEXTS first, so that new texts are not encrypted")
    with (
        lock_data_dir(settings.data_dir),
        lock_data_dir(settings.data_dir, DataDirUse.TERMINAL),
    ):
        print_line(f"rows that are decrypted now: {uvloop.run(_convert(settings))}")


app.command("restore")(restore_database)
app.command("restored")(finish_restore)


def _require_other_database(settings: Settings, url: str) -> None:
    try:
        is_same = parse_url(url) == parse_url(settings.sqlalchemy_url)
    except (ArgumentError, ValueError):
        raise SettingsError(
            "--to is not a database URL; it looks like postgresql+asyncpg://user@host/name"
        ) from None
    if is_same:
        raise SettingsError("--to is the database that is in use; name the one to copy to")


async def _copy(source_url: str, target_url: str) -> int:
    async with (
        open_without_decrypting(source_url) as source,
        open_without_decrypting(target_url) as target,
    ):
        return await copy_rows(source, target, _report)


def _report(table: str, rows: int) -> None:
    print_progress(f"{table}: {rows} rows")


async def _convert(settings: Settings) -> int:
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        action = "encrypt texts" if settings.encrypt_texts else "decrypt texts"
        await record_change(database, action, "all")  # first: it may be interrupted
        return await rewrite_texts(database, _report)


async def _upgrade(settings: Settings) -> str | None:
    """Return the revision of the tables then: of a newer version, if that has upgraded them."""
    create_data_dir(settings.data_dir)
    await upgrade_tables(settings.sqlalchemy_url)
    return await read_revision(settings.sqlalchemy_url)
