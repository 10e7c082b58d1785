"""`troupe db`: upgrade, copy, back up, restore, or encrypt the database."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import ArgumentError

from bot.chat.incoming import parse_address
from bot.cli.installation import log_change, print_row_count, require_database, use_installation
from bot.cli.text_io import print_line
from bot.cli.typer_apps import create_command_app
from bot.errors import SettingsError, UserError
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessSignals
from bot.runtime.tasks import run_async
from bot.settings import Settings, read_settings
from bot.storage.conversations import Conversations
from bot.storage.copying import back_up, copy_rows
from bot.storage.data_dir import DataDirUse, create_data_dir, lock_data_dir
from bot.storage.database import (
    NEWEST_REVISION,
    Database,
    find_sqlite_file,
    open_database,
    open_without_decrypting,
    parse_url,
    read_revision,
    upgrade_tables,
)
from bot.storage.forgetting import TOMBSTONE_FILE, Tombstone, read_tombstones
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.inbox import SqlInbox
from bot.storage.restoring import (
    copy_backup,
    find_last_write_time,
    prepare_restored_database,
    replace_database,
)
from bot.storage.rewriting import rewrite_texts
from bot.storage.web_channels import SqlWebChannels, WebMessageEraser

_TombstoneFiles = Annotated[
    list[Path] | None,
    typer.Option(help=f"A {TOMBSTONE_FILE} from another process's data directory; repeatable."),
]

app = create_command_app("Upgrade, copy, back up, restore, or encrypt the database.")


@app.command("upgrade")
def upgrade_database() -> None:
    """Upgrade the database to the newest revision; `troupe run` does this automatically."""
    print_line(f"the database is at revision {run_async(_upgrade_schema(read_settings()))}")


@app.command("current")
def show_revision() -> None:
    """Show the database's revision, and the revision that this version of Troupe needs."""
    revision = run_async(read_revision(read_settings().sqlalchemy_url)) or "no tables yet"
    if revision == NEWEST_REVISION:
        print_line(revision)
    elif revision[0].isdigit() and revision > NEWEST_REVISION:
        print_line(
            f"{revision}; a newer version of Troupe upgraded the database; this version knows only"
            f" {NEWEST_REVISION}"
        )
    else:
        print_line(f"{revision}; `troupe db upgrade` brings the database to {NEWEST_REVISION}")


@app.command("copy")
def copy_database(
    to: Annotated[
        str, typer.Option(help="The URL of the database to copy to, as in TROUPE_DATABASE_URL.")
    ],
) -> None:
    """Copy all rows into another database and compare them; an interrupted copy resumes.

    Stop the service first. Then set TROUPE_DATABASE_URL to the other database.
    """
    settings = read_settings()
    require_database(settings)
    _refuse_same_database(settings, to)
    with _lock_out_service(settings):
        row_count = run_async(_copy_all_rows(settings.sqlalchemy_url, to))
    print_line(
        f"{row_count} rows are the same in both databases; now set TROUPE_DATABASE_URL to the copy"
    )


@app.command("backup")
def back_up_database(
    file: Annotated[Path, typer.Argument(help="The new file for the backup.")],
) -> None:
    """Back up the SQLite database to a new file, even while the service runs."""
    settings = read_settings()
    require_database(settings)
    database_file = find_sqlite_file(settings.sqlalchemy_url)
    if database_file is None:
        raise SettingsError("TROUPE_DATABASE_URL is a PostgreSQL database; back it up with pg_dump")
    backup_size = back_up(database_file, file)
    print_line(f"the database was backed up to {file} ({backup_size / 1e6:.1f} MB)")


@app.command("encrypt")
def encrypt_database() -> None:
    """Encrypt all texts with the first key in TROUPE_ENCRYPTION_KEYS.

    This includes texts stored before TROUPE_ENCRYPT_TEXTS was set, or with another key. The service
    may keep running. An interrupted run resumes.
    """
    settings = read_settings()
    require_database(settings)
    if not settings.encrypt_texts:
        raise SettingsError("set TROUPE_ENCRYPT_TEXTS=true first, so that new texts are encrypted")
    print_line(f"newly encrypted rows: {_rewrite_texts('encrypt texts')}")


@app.command("decrypt")
def decrypt_database() -> None:
    """Decrypt all texts, after unsetting TROUPE_ENCRYPT_TEXTS.

    Stop the service first. An interrupted run resumes. Afterwards, no key is needed.
    """
    settings = read_settings()
    require_database(settings)
    if settings.encrypt_texts:
        raise SettingsError("unset TROUPE_ENCRYPT_TEXTS first, so that new texts are not encrypted")
    with _lock_out_service(settings):
        print_line(f"newly decrypted rows: {_rewrite_texts('decrypt texts')}")


@app.command("restore")
def restore_database(
    file: Annotated[Path, typer.Argument(help="A backup made by `troupe db backup`.")],
    forgotten: _TombstoneFiles = None,
) -> None:
    """Replace the SQLite database with a backup; stop the service first.

    Messages written before the restore are not answered again, messages that may have been sent are
    looked up on the platforms, and forgotten texts are deleted again. The old database is kept as
    troupe.db.replaced, with a number if that file exists.
    """
    settings = read_settings()
    database_file = find_sqlite_file(settings.sqlalchemy_url)
    if database_file is None:
        raise SettingsError(
            "TROUPE_DATABASE_URL is a PostgreSQL database; restore it with its own tools, then run"
            " `troupe db restored`"
        )
    tombstones = _read_all_tombstones(settings, forgotten)
    with _lock_out_service(settings):
        now = SystemClock().now()
        cutoff = min(find_last_write_time(database_file) or now, now)
        backup = copy_backup(file, database_file)
        counts = run_async(_prepare_restored(settings, f"sqlite:///{backup}", tombstones, cutoff))
        old_file = replace_database(backup, database_file, cutoff)
        _delete_saved_slots(settings)
    _print_restore_report(*counts, len(tombstones))
    print_line(f"restored {file}; the old database was kept as {old_file}. Now start the service")


@app.command("restored")
def finish_restore(
    answered_until: Annotated[
        str | None,
        typer.Option(
            help="When the lost database was last in use, such as 2026-11-22T14:05:00Z; by default"
            " now. Only messages written later are answered."
        ),
    ] = None,
    forgotten: _TombstoneFiles = None,
) -> None:
    """Prepare a database restored by other tools, before any process uses it.

    This does what `troupe db restore` does for SQLite.
    """
    settings = read_settings()
    require_database(settings)
    cutoff = _parse_time(answered_until) if answered_until else SystemClock().now()
    tombstones = _read_all_tombstones(settings, forgotten)
    with lock_data_dir(settings.data_dir):
        counts = run_async(_prepare_restored(settings, settings.sqlalchemy_url, tombstones, cutoff))
        _delete_saved_slots(settings)
    _print_restore_report(*counts, len(tombstones))


@contextmanager
def _lock_out_service(settings: Settings) -> Iterator[None]:
    """Lock the data directory against all other processes while the block runs."""
    folder = settings.data_dir
    with lock_data_dir(folder), lock_data_dir(folder, DataDirUse.TERMINAL):
        yield


def _refuse_same_database(settings: Settings, url: str) -> None:
    try:
        is_same_database = parse_url(url) == parse_url(settings.sqlalchemy_url)
    except (ArgumentError, ValueError):
        raise SettingsError(
            "--to is not a database URL; write it as postgresql+asyncpg://user@host/name"
        ) from None
    if is_same_database:
        raise SettingsError("--to is the database already in use; name a different one")


async def _copy_all_rows(source_url: str, target_url: str) -> int:
    async with (
        open_without_decrypting(source_url) as source,
        open_without_decrypting(target_url) as target,
    ):
        return await copy_rows(source, target, print_row_count)


def _rewrite_texts(action: str) -> int:
    """Encrypt or decrypt all texts according to the settings; return how many rows changed."""

    async def encrypt_or_decrypt(database: Database) -> int:
        await log_change(database, action, "all")  # first, because the rest may be interrupted
        return await rewrite_texts(database, print_row_count)

    return use_installation(encrypt_or_decrypt)


async def _upgrade_schema(settings: Settings) -> str | None:
    """Upgrade the database; return its revision, which may be that of a newer version of Troupe."""
    create_data_dir(settings.data_dir)
    await upgrade_tables(settings.sqlalchemy_url)
    return await read_revision(settings.sqlalchemy_url)


async def _prepare_restored(
    settings: Settings, url: str, tombstones: Sequence[Tombstone], cutoff: float
) -> tuple[int, int]:
    async with open_database(url, settings.text_encryption) as database:
        counts = await prepare_restored_database(database, tombstones, cutoff, SystemClock().now())
        await _delete_web_messages(database, tombstones)
        cutoff_text = datetime.fromtimestamp(cutoff, UTC).isoformat(timespec="seconds")
        await log_change(database, "restore database", f"answered until {cutoff_text}")
    return counts


async def _delete_web_messages(database: Database, tombstones: Sequence[Tombstone]) -> None:
    clock = SystemClock()
    web_eraser = WebMessageEraser(
        SqlWebChannels(database, InProcessSignals()),
        Conversations(database, clock),
        SqlHistoryIndex(database),
        SqlInbox(database, clock),
    )
    conversations = {one.conversation for one in tombstones if one.conversation is not None}
    for conversation in sorted(conversations, key=lambda each: parse_address(each).channel):
        await web_eraser.forget(conversation)


def _read_all_tombstones(settings: Settings, files: Sequence[Path] | None) -> list[Tombstone]:
    for file in files or ():
        if not file.is_file():
            raise UserError(f"there is no file {file}")
    return read_tombstones([settings.data_dir / TOMBSTONE_FILE, *(files or ())])


def _delete_saved_slots(settings: Settings) -> None:
    """Delete the local models' saved caches (slots), which may contain forgotten conversations."""
    shutil.rmtree(settings.data_dir / "slots", ignore_errors=True)


def _parse_time(text: str) -> float:
    try:
        parsed_time = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{text!r} is not a time; write it as 2026-11-22T14:05:00Z") from None
    return (parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)).timestamp()


def _print_restore_report(unsent_count: int, unanswered_count: int, deletion_count: int) -> None:
    print_line(f"messages that may already have been sent, to look up first: {unsent_count}")
    print_line(f"questions that stay unanswered and are kept as context: {unanswered_count}")
    print_line(f"deletion requests carried out again: {deletion_count}")
