"""Restore a backup, and prepare the restored database before a process works on it.

It is older than what people have seen: since the backup, messages were answered, and others were
forgotten. Neither may happen again, or come back.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from bot.chat.incoming import address_of
from bot.chat.operation import Restore
from bot.chat.outgoing import OutboxState
from bot.errors import StoreError
from bot.ports import Clock
from bot.storage import histories as changes
from bot.storage.database import Database
from bot.storage.forgetting import Tombstone
from bot.storage.statements import Unit, clock_at
from bot.storage.tables import (
    choice,
    conversation,
    cursor,
    forgotten_message,
    inbox,
    is_dead,
    is_unanswered,
    is_unsent,
    lane,
    message_note,
    outbox,
    restore,
    sent_message,
    turn,
)
from bot.value_class import value_class

_UNKNOWN = (
    update(outbox)
    .where(is_unsent)
    .values(state=OutboxState.UNKNOWN, owner=None, attempts=0, not_before=0.0)
)
_HAS_UNSENT = update(lane).where(lane.c.key.in_(select(outbox.c.lane).where(is_unsent)))
_RELEASE = update(conversation).values(owner=None, lease_until=0.0)
# Without its attempts a message has no parts that were opened, which would be deleted.
_FORGET_ATTEMPTS = update(inbox).where(is_unanswered).values(attempt=0, crashes=0, own_crashes=0)
_IS_DONE_SINCE = inbox.c.kind.in_(["pressed", "joined", "edited"])
_FINISH_OTHERS = (
    update(inbox).where(is_unanswered, _IS_DONE_SINCE).values(state="done", payload=None)
)
_END_SESSIONS = delete(cursor).where(cursor.c.name.like("% session"))
_OPEN = select(func.count()).select_from(inbox).where(is_unanswered)
_TURNS = select(turn.c.id).where(
    turn.c.conversation == bindparam("of"), turn.c.at <= bindparam("until")
)
_FORGET_SENT = delete(sent_message).where(sent_message.c.conversation == bindparam("of"))
_FORGET_RECEIVED = (
    update(inbox)
    .where(
        inbox.c.conversation == bindparam("of"),
        inbox.c.state != "done",
        inbox.c.received_at <= bindparam("until"),
    )
    .values(state="done", payload=None)
)
_FORGET_UNSENT = (
    update(outbox)
    .where(outbox.c.lane == bindparam("of_lane"), or_(is_unsent, is_dead))
    .where(func.coalesce(outbox.c.thread, "") == bindparam("of_thread"))
    .values(
        state=OutboxState.DEAD,
        error=None,
        text="",
        **dict.fromkeys(("file_name", "file_text", "face", "buttons", "owner")),
    )
)


@value_class
class RestoreReport:
    """What was found in the backup."""

    unknown: int
    """Messages that were not known to be sent: they are looked for on the platforms."""
    unanswered: int
    """Messages that were not answered: they become context."""
    tombstones: int


async def prepare_restored(
    database: Database, tombstones: Sequence[Tombstone], answered_until: float, now: float
) -> RestoreReport:
    """Prepare a database that was restored; may be repeated until a process works on it.

    Args:
        database: the restored one, on which no process works.
        tombstones: all that was forgotten, also before the backup.
        answered_until: until when processes answered on the database that was lost, in Unix
            seconds: what people wrote before has been answered, as far as anybody knows.
        now: in Unix seconds.
    """

    def unit(connection: Connection) -> RestoreReport:
        moment = clock_at(connection.dialect.name, now)
        started = func.coalesce(outbox.c.started_at, moment)
        connection.execute(_HAS_UNSENT.values(due_at=moment))
        unknown = connection.execute(_UNKNOWN.values(started_at=started)).rowcount
        connection.execute(_RELEASE)
        connection.execute(_FORGET_ATTEMPTS)
        connection.execute(_FINISH_OTHERS)
        connection.execute(_END_SESSIONS)
        connection.execute(delete(forgotten_message))
        connection.execute(delete(message_note))  # which quote what was forgotten since
        connection.execute(insert(restore).values(at=now, answered_until=answered_until))
        unanswered = connection.execute(_OPEN).scalar_one()
        return RestoreReport(unknown, unanswered, len(tombstones))

    report = await database.write(unit)
    for one in tombstones:
        await _forget_again(database, one, now)
    await database.truncate_log()
    return report


async def _forget_again(database: Database, tombstone: Tombstone, now: float) -> None:
    until, key = tombstone.at, tombstone.conversation
    if tombstone.person is not None:
        person = tombstone.person
        described = or_(
            choice.c.scope == person, choice.c.scope.startswith(f"{person}@", autoescape=True)
        )
        gone_here = _delete_descriptions(described, until)
        await database.write(lambda c: c.execute(gone_here).rowcount)
    if key is None:
        return
    found = await database.read(
        lambda c: c.execute(_TURNS, {"of": key, "until": until}).scalars().all()
    )
    is_whole = tombstone.is_of_whole_conversation
    gone = found if is_whole else set(found).intersection(tombstone.turns)

    def forget() -> Unit[None]:
        yield from changes.apply(key, changes.ChangedRows({}, {}, (), (), sorted(gone)), now)

    await database.run(forget)
    names = [""] if is_whole else tombstone.messages
    rows = [{"conversation": key, "message_id": name, "at": until} for name in names]

    def unit(connection: Connection) -> None:
        if rows:
            connection.execute(insert(forgotten_message), rows)
        if is_whole:
            address = address_of(key)
            of = {"of": key, "until": until}
            connection.execute(_FORGET_SENT, {"of": key})
            connection.execute(_FORGET_RECEIVED, of)
            connection.execute(
                _FORGET_UNSENT, {"of_lane": address.lane, "of_thread": address.thread or ""}
            )
            told_here = choice.c.conversation == key
            connection.execute(_delete_descriptions(told_here, until))

    await database.write(unit)


def _delete_descriptions(which: ColumnElement[bool], until: float) -> Delete:
    """Delete what people said of themselves up to a moment."""
    return delete(choice).where(
        choice.c.key.startswith("persona"), choice.c.chosen_at <= until, which
    )


_MATTERS_SECONDS = 30 * 86_400.0
"""No platform delivers what is older."""
_NEWEST = select(restore.c.at, restore.c.answered_until).order_by(restore.c.id.desc()).limit(1)
_FORGOTTEN = select(
    forgotten_message.c.conversation, forgotten_message.c.message_id, forgotten_message.c.at
)


class SqlRestores:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def newest(self) -> Restore | None:
        """Return the newest restore; None: there was none that still matters."""
        since = self._clock.now() - _MATTERS_SECONDS

        def unit(connection: Connection) -> Restore | None:
            row = connection.execute(_NEWEST).first()
            if row is None or row.at < since:
                return None
            forgotten = [tuple(one) for one in connection.execute(_FORGOTTEN)]
            return Restore(
                row.answered_until,
                frozenset((key, name) for key, name, _ in forgotten if name),
                {key: at for key, name, at in sorted(forgotten) if not name},
            )

        return await self._database.read(unit)


_CLOCKS_DIFFER_SECONDS = 2.0
"""Platforms write whole seconds, and their clocks are not ours."""
_LOGS = ("-wal", "-shm")


def last_written(database: Path) -> float | None:
    """Return until when a process worked on a database, in Unix seconds; None if there is none.

    What a platform has delivered was stored at once, so what was written later was not received.
    """
    files = [database, Path(f"{database}-wal")]
    times = [file.stat().st_mtime for file in files if file.is_file()]
    return max(times) + _CLOCKS_DIFFER_SECONDS if times else None


def copy_backup(backup: Path, database: Path) -> Path:
    """Copy a backup beside the database, for its owner only, and return the copy.

    Raises:
        StoreError: It cannot be read, is damaged, or is no database of Troupe.
    """
    part = Path(f"{database}.restoring")
    try:
        for file in (part, *(Path(f"{part}{end}") for end in _LOGS)):
            file.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        shutil.copyfile(backup, part)
        _check(part)
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"the backup {backup} cannot be restored: {reason}") from None
    return part


def replace_database(part: Path, database: Path, answered_until: float) -> Path:
    """Put the prepared copy in the place of the database; return what the old one is called now.

    The copy has the time until which a process worked on the lost database: where it is replaced
    in its turn, before the service was started, `last_written` returns that once more.

    Raises:
        StoreError: The files cannot be renamed.
    """
    old = _unused_name(database)
    worked_until = answered_until - _CLOCKS_DIFFER_SECONDS
    try:
        os.utime(part, (worked_until, worked_until))
        if database.is_file():
            database.replace(old)
        wal = Path(f"{database}-wal")
        if wal.is_file():
            wal.replace(f"{old}-wal")
        Path(f"{database}-shm").unlink(missing_ok=True)
        part.replace(database)
    except OSError as error:
        raise StoreError(f"{database} cannot be replaced: {error.strerror}") from None
    return old


def _unused_name(database: Path) -> Path:
    """Return a name for the old database: an earlier one may be the only whole one."""
    name = Path(f"{database}.replaced")
    numbers = count(2)
    while name.exists():
        name = Path(f"{database}.replaced-{next(numbers)}")
    return name


def _check(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as one:
        (found,) = one.execute("PRAGMA integrity_check").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {found}")
        if not one.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
            raise sqlite3.DatabaseError("it is no database of Troupe")
