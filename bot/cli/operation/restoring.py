"""`troupe db restore` and `troupe db restored`: after a restore, nothing is sent twice."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from bot.chat.incoming import address_of
from bot.cli.operation.installation import record_change, require_database
from bot.cli.text_io import print_line
from bot.errors import SettingsError, UserError
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessSignals
from bot.settings import Settings, read_settings
from bot.storage.conversations import Conversations
from bot.storage.data_dir import DataDirUse, lock_data_dir
from bot.storage.database import Database, open_database, sqlite_file
from bot.storage.forgetting import FILE_NAME, Tombstone, read_tombstones
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.inbox import SqlInbox
from bot.storage.restoring import (
    RestoreReport,
    copy_backup,
    last_written,
    prepare_restored,
    replace_database,
)
from bot.storage.web_channels import ForgottenWebMessages, SqlWebChannels

_SLOTS = "slots"
Forgotten = Annotated[
    list[Path] | None,
    typer.Option(
        help=f"A {FILE_NAME} of another process's data directory; may be given several times."
    ),
]


def restore_database(
    file: Annotated[Path, typer.Argument(help="What `troupe db backup` has written.")],
    forgotten: Forgotten = None,
) -> None:
    """Put a backup in the place of the SQLite database; stop the service first.

    What people wrote until then is not answered again, messages that may have been sent are looked
    for on the platforms, and what was forgotten is forgotten again. The old database is kept as
    troupe.db.replaced, or under a further number.
    """
    settings = read_settings()
    database = sqlite_file(settings.sqlalchemy_url)
    if database is None:
        raise SettingsError(
            "TROUPE_DATABASE_URL is a PostgreSQL database; restore it with its own tools, then run"
            " `troupe db restored`"
        )
    tombstones = _read_all(settings, forgotten)
    with (
        lock_data_dir(settings.data_dir),
        lock_data_dir(settings.data_dir, DataDirUse.TERMINAL),
    ):
        now = SystemClock().now()
        until = min(last_written(database) or now, now)
        part = copy_backup(file, database)
        report = uvloop.run(_prepare(settings, f"sqlite:///{part}", tombstones, until))
        old = replace_database(part, database, until)
        _delete_slots(settings)
    _print(report)
    print_line(f"{file} is restored; the old database is {old}. Start the service")


def finish_restore(
    answered_until: Annotated[
        str | None,
        typer.Option(
            help="When the last process on the lost database ended, such as 2026-11-22T14:05:00Z;"
            " by default now. What was written later is answered."
        ),
    ] = None,
    forgotten: Forgotten = None,
) -> None:
    """Prepare a database that other tools have restored, before any process works on it.

    It does what `troupe db restore` does for SQLite.
    """
    settings = read_settings()
    require_database(settings)
    until = _parse_moment(answered_until) if answered_until else SystemClock().now()
    tombstones = _read_all(settings, forgotten)
    with lock_data_dir(settings.data_dir):
        report = uvloop.run(_prepare(settings, settings.sqlalchemy_url, tombstones, until))
        _delete_slots(settings)
    _print(report)


async def _prepare(
    settings: Settings, url: str, tombstones: Sequence[Tombstone], until: float
) -> RestoreReport:
    async with open_database(url, settings.text_encryption) as database:
        report = await prepare_restored(database, tombstones, until, SystemClock().now())
        await _forget_in_web_channels(database, tombstones)
        answered = datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")
        await record_change(database, "restore database", f"answered until {answered}")
    return report


async def _forget_in_web_channels(database: Database, tombstones: Sequence[Tombstone]) -> None:
    clock = SystemClock()
    web = ForgottenWebMessages(
        SqlWebChannels(database, InProcessSignals()),
        Conversations(database, clock),
        SqlHistoryIndex(database),
        SqlInbox(database, clock),
    )
    named = {one.conversation for one in tombstones if one.conversation is not None}
    for key in sorted(named, key=lambda each: address_of(each).channel):
        await web.forget(key)


def _read_all(settings: Settings, others: Sequence[Path] | None) -> list[Tombstone]:
    for file in others or ():
        if not file.is_file():
            raise UserError(f"there is no file {file}")
    return read_tombstones([settings.data_dir / FILE_NAME, *(others or ())])


def _delete_slots(settings: Settings) -> None:
    """Delete what models keep of conversations: it may be of what was forgotten."""
    shutil.rmtree(settings.data_dir / _SLOTS, ignore_errors=True)


def _parse_moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{text!r} is not a moment; write it as 2026-11-22T14:05:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _print(report: RestoreReport) -> None:
    print_line(f"{report.unknown} messages may have been sent: they are looked for first")
    print_line(f"{report.unanswered} messages were unanswered in the backup: they become context")
    print_line(f"{report.tombstones} times something was forgotten: it is forgotten again")
