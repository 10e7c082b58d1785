"""Restore a backup, and prepare the database before any process uses it.

Messages that were answered after the backup was created must not be answered again, and messages
that were forgotten must not come back.
"""

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from bot.chat.incoming import parse_address
from bot.chat.operation import DatabaseRestore
from bot.chat.session import HistoryChange
from bot.errors import StoreError
from bot.storage import histories, memories
from bot.storage.copying import copy_file
from bot.storage.data_kinds import PERSON_DELETIONS
from bot.storage.database import Database
from bot.storage.forgetting import FORGET_CHARACTERS, Tombstone
from bot.storage.memories import MEMORY_DELETIONS
from bot.storage.statements import SQL, Unit

_PREPARE_STATEMENTS = (
    *("make_lanes_due", "release_everything", "clear_attempts", "drop_presses"),
    *("drop_sessions_of_gateways", "drop_forgotten_messages", "drop_notes", "note_restore"),
)
_PERSON_DELETIONS = (*PERSON_DELETIONS, "forget_descriptions", *FORGET_CHARACTERS)
_CHANNEL_DELETIONS = (
    *("forget_sent_messages", "forget_messages_until", "forget_rows_of_channel"),
    *("forget_descriptions_of_channel", "mark_memories_of_conversation", *MEMORY_DELETIONS),
)


async def prepare_restored(
    database: Database, tombstones: Sequence[Tombstone], answered_until: float, now: float
) -> tuple[int, int]:
    """Prepare a restored database; may be repeated until a process uses it.

    `tombstones` record all deletions, including those before the backup. The database that was lost
    was in use until `answered_until`, in Unix seconds, so earlier messages are assumed to be
    answered.

    Return the number of messages that may have been sent, which are looked up on the platforms,
    and the number of unanswered messages, which will only be read as context.
    """

    def unit() -> Unit[tuple[int, int]]:
        values = {"now": now, "at": now, "answered_until": answered_until}
        for name in _PREPARE_STATEMENTS:
            yield SQL[name].query(values)
        unknown = yield SQL["mark_all_unknown"].query(values)
        [[unanswered]] = yield SQL["count_unanswered"].query()
        return len(unknown), unanswered

    counts = await database.run(unit)
    for one in tombstones:
        await database.run(lambda one=one: _forget_again(one, now))  # type: ignore[misc]
    await database.truncate_log()
    return counts


def _forget_again(tombstone: Tombstone, now: float) -> Unit[None]:
    until, key, person = tombstone.at, tombstone.conversation, tombstone.person
    if tombstone.consent_of is not None:
        of = {"scope": tombstone.consent_of, "key": "consent"}
        choice = {"value": tombstone.consent, "by": tombstone.consent_of, "at": until}
        if tombstone.consent:
            yield SQL["set_choice"].query({**of, **choice, "conversation": ""})
        else:
            yield SQL["reset_choice"].query(of)
        yield from memories.apply_consent(tombstone.consent_of)
    if tombstone.memories:
        yield from memories.delete_memories_and_prompts(tombstone.memories, now)
    if person is not None:
        of = {"person": person, "person_anywhere": f"{person}@"}
        for name in _PERSON_DELETIONS:
            yield SQL[name].query({**of, "until": until, "moment": now, "content": b""})
    if key is None:
        return
    found = [row[0] for row in (yield SQL["turns_until_moment"].query(of=key, until=until))]
    is_whole = not (tombstone.turns or tombstone.messages)
    turn_ids = found if is_whole else set(found).intersection(tombstone.turns)
    yield from histories.apply_change(key, HistoryChange(deleted_ids=sorted(turn_ids)), now)
    for name in [""] if is_whole else tombstone.messages:
        yield SQL["note_forgotten_message"].query(of=key, message=name, until=until)
    if is_whole:
        address = parse_address(key)
        channel = {"of_lane": address.lane, "of_thread": address.thread or ""}
        emptying_values = {"moment": now, "content": b""}
        for name in _CHANNEL_DELETIONS:
            yield SQL[name].query({"of": key, "until": until, **channel, **emptying_values})


_MAX_RESTORE_AGE_SECONDS = 30 * 86_400.0
"""The age after which a restore no longer matters: platforms do not deliver older messages."""


async def read_restore(database: Database, now: float) -> DatabaseRestore | None:
    """Return the most recent restore, or None if there was none in the last 30 days."""
    return await database.run_reading(lambda: _newest_restore(now))


def _newest_restore(now: float) -> Unit[DatabaseRestore | None]:
    rows = yield SQL["newest_restore"].query(since=now - _MAX_RESTORE_AGE_SECONDS)
    if not rows:
        return None
    forgotten = [tuple(row) for row in (yield SQL["forgotten_messages"].query())]
    return DatabaseRestore(
        rows[0][0],
        frozenset((key, name) for key, name, _ in forgotten if name),
        {key: at for key, name, at in sorted(forgotten) if not name},
    )


_CLOCK_TOLERANCE_SECONDS = 2.0
"""The tolerance for platforms' clocks, which count whole seconds."""


def last_write_time(database: Path) -> float | None:
    """Return when an SQLite database was last written, or None if there is no file."""
    files = [database, Path(f"{database}-wal")]
    times = [file.stat().st_mtime for file in files if file.is_file()]
    return max(times) + _CLOCK_TOLERANCE_SECONDS if times else None


def copy_backup(backup: Path, database: Path) -> Path:
    """Copy a backup to a file next to the database; return that file, or raise `StoreError`."""
    copy_path = Path(f"{database}.restoring")
    try:
        copy_file(backup, copy_path, is_in_use=False)
        with contextlib.closing(sqlite3.connect(copy_path)) as copy:
            is_ours = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
            if not copy.execute(is_ours).fetchone():
                raise sqlite3.DatabaseError("it is not a Troupe database")
    except (OSError, sqlite3.Error) as error:
        copy_path.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"the backup {backup} cannot be restored: {reason}") from None
    return copy_path


def replace_database(copy: Path, database: Path, answered_until: float) -> Path:
    """Replace the database with a prepared copy, and return the old database's new name.

    The copy gets the modification time of the lost database, so that `last_write_time` returns the
    same time if the restore is repeated before the service starts.

    Raises `StoreError` if the files cannot be renamed.
    """
    old = _unused_name(database)
    modified_at = answered_until - _CLOCK_TOLERANCE_SECONDS
    try:
        os.utime(copy, (modified_at, modified_at))
        if database.is_file():
            database.replace(old)
        wal = Path(f"{database}-wal")
        if wal.is_file():
            wal.replace(f"{old}-wal")
        Path(f"{database}-shm").unlink(missing_ok=True)
        copy.replace(database)
    except OSError as error:
        raise StoreError(f"{database} cannot be replaced: {error.strerror}") from None
    return old


def _unused_name(database: Path) -> Path:
    """Return an unused name for the old database, to keep all earlier copies."""
    name = Path(f"{database}.replaced")
    numbers = count(2)
    while name.exists():
        name = Path(f"{database}.replaced-{next(numbers)}")
    return name
