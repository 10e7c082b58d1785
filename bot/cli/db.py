"""`troupe db`: upgrade the database, show its revision, copy it, back it up."""

from pathlib import Path
from typing import Annotated

import typer
import uvloop
from sqlalchemy.exc import ArgumentError

from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import command_app
from bot.errors import SettingsError
from bot.settings import Settings, read_settings
from bot.storage.copying.copy_rows import copy_rows
from bot.storage.copying.sqlite_backup import back_up
from bot.storage.data_dir import create_data_dir, lock_data_dir
from bot.storage.sql.database import (
    database_exists,
    open_database,
    parse_url,
    read_revision,
    sqlite_file,
)
from bot.storage.sql.tables import NEWEST_REVISION

app = command_app("Upgrade, show, copy or back up the database.")


@app.command("upgrade")
def upgrade_database() -> None:
    """Upgrade the tables to the newest revision; `troupe run` does this by itself."""
    uvloop.run(_open_and_close(read_settings()))
    print_line(f"the database is at {NEWEST_REVISION}")


@app.command("current")
def show_revision() -> None:
    """Show the revision of the tables, and the one that this version of Troupe needs."""
    found = uvloop.run(read_revision(read_settings().sqlalchemy_url)) or "no tables yet"
    needed = f"{found}; this version of Troupe needs {NEWEST_REVISION} (`troupe db upgrade`)"
    print_line(found if found == NEWEST_REVISION else needed)


@app.command("copy")
def copy_database(
    to: Annotated[str, typer.Option(help="The address of the other database, as in settings.")],
) -> None:
    """Copy all rows into another database and compare them; a copy that broke off goes on.

    Stop the service first. Then set TROUPE_DATABASE_URL to the other database.
    """
    settings = read_settings()
    _require_database(settings)
    _require_other_database(settings, to)
    with lock_data_dir(settings.data_dir):
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
    _require_database(settings)
    database = sqlite_file(settings.sqlalchemy_url)
    if database is None:
        raise SettingsError("TROUPE_DATABASE_URL is a PostgreSQL database; back it up with pg_dump")
    size = back_up(database, file)
    print_line(f"{file} holds the database ({size / 1e6:.1f} MB)")


def _require_database(settings: Settings) -> None:
    if not database_exists(settings.sqlalchemy_url):
        raise SettingsError(f"there is no database in {settings.data_dir} yet")


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
    async with open_database(source_url) as source, open_database(target_url) as target:
        return await copy_rows(
            source, target, lambda table, rows: print_progress(f"{table}: {rows} rows")
        )


async def _open_and_close(settings: Settings) -> None:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url):
        pass
