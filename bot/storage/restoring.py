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
from bot.storage.data_kinds import PERSON_DELETION_SQL_NAMES
from bot.storage.database import Database
from bot.storage.forgetting import CHARACTER_DELETIONS, Tombstone
from bot.storage.memories import MEMORY_DELETE_SQL_NAMES
from bot.storage.statements import SQL, Unit

_PREPARATION_STATEMENTS = (
    *("make_lanes_due", "release_everything", "clear_attempts"),
    *("drop_unfinished_answers", "drop_presses"),  # in this order: only open events are found
    *("drop_sessions_of_gateways", "drop_forgotten_messages", "drop_notes", "note_restore"),
)
_PERSON_DELETIONS = (*PERSON_DELETION_SQL_NAMES, "forget_descriptions", *CHARACTER_DELETIONS)
_CHANNEL_DELETIONS = (
    *("forget_sent_messages", "forget_messages_until", "forget_rows_of_channel"),
    *("forget_descriptions_of_channel", "mark_memories_of_conversation", *MEMORY_DELETE_SQL_NAMES),
)


async def prepare_restored_database(
    database: Database, tombstones: Sequence[Tombstone], answered_until: float, now: float
) -> tuple[int, int]:
    """Prepare a restored database; may be repeated until a process uses it.

    `tombstones` record all deletions, including those before the backup. The database that was lost
    was in use until `answered_until`, in Unix seconds, so earlier messages are assumed to be
    answered.

    Return the number of messages that may have been sent, which are looked up on the platforms,
    and the number of unanswered messages, which will only be read as context.
    """

    def prepare_rows() -> Unit[tuple[int, int]]:
        values = {"now": now, "at": now, "answered_until": answered_until}
        for name in _PREPARATION_STATEMENTS:
            yield SQL[name].query(values)
        possibly_sent_rows = yield SQL["mark_all_unknown"].query(values)
        [[unanswered_count]] = yield SQL["count_unanswered"].query()
        return len(possibly_sent_rows), unanswered_count

    message_counts = await database.run(prepare_rows)
    for one in tombstones:
        await database.run(lambda one=one: _repeat_deletion(one, now))  # type: ignore[misc]
    await database.truncate_log()
    return message_counts


def _repeat_deletion(tombstone: Tombstone, now: float) -> Unit[None]:
    until, key, person = tombstone.at, tombstone.conversation, tombstone.person
    if tombstone.consent_of is not None:
        setting_key = {"scope": tombstone.consent_of, "key": "consent"}
        choice_values = {"value": tombstone.consent, "by": tombstone.consent_of, "at": until}
        if tombstone.consent:
            yield SQL["set_choice"].query({**setting_key, **choice_values, "conversation": ""})
        else:
            yield SQL["reset_choice"].query(setting_key)
        yield from memories.apply_consent_to_audiences(tombstone.consent_of)
    if tombstone.memories:
        yield from memories.delete_memories_and_prompts(tombstone.memories, now)
    if person is not None:
        person_values = {"person": person, "person_anywhere": f"{person}@"}
        for name in _PERSON_DELETIONS:
            yield SQL[name].query({**person_values, "until": until, "moment": now, "content": b""})
    if key is None:
        return
    earlier_ids = [row[0] for row in (yield SQL["turns_until_moment"].query(of=key, until=until))]
    forgets_everything = not (tombstone.turns or tombstone.messages)
    turn_ids = earlier_ids if forgets_everything else set(earlier_ids).intersection(tombstone.turns)
    yield from histories.apply_change(key, HistoryChange(deleted_ids=sorted(turn_ids)), now)
    for name in [""] if forgets_everything else tombstone.messages:
        yield SQL["note_forgotten_message"].query(of=key, message=name, until=until)
    if forgets_everything:
        address = parse_address(key)
        channel_values = {"of_lane": address.lane, "of_thread": address.thread or ""}
        deletion_values = {"moment": now, "content": b""}
        for name in _CHANNEL_DELETIONS:
            yield SQL[name].query({"of": key, "until": until, **channel_values, **deletion_values})


_MAX_RESTORE_AGE_SECONDS = 30 * 86_400.0
"""The age after which a restore no longer matters: platforms do not deliver older messages."""


async def read_last_restore(database: Database, now: float) -> DatabaseRestore | None:
    """Return the most recent restore, or None if there was none in the last 30 days."""
    return await database.run_readonly(lambda: _find_newest_restore(now))


def _find_newest_restore(now: float) -> Unit[DatabaseRestore | None]:
    rows = yield SQL["newest_restore"].query(since=now - _MAX_RESTORE_AGE_SECONDS)
    if not rows:
        return None
    forgotten_messages = [tuple(row) for row in (yield SQL["forgotten_messages"].query())]
    return DatabaseRestore(
        rows[0][0],
        frozenset((key, name) for key, name, _ in forgotten_messages if name),
        {key: at for key, name, at in sorted(forgotten_messages) if not name},
    )


_CLOCK_TOLERANCE_SECONDS = 2.0
"""The tolerance for platforms' clocks, which count whole seconds."""


def find_last_write_time(database: Path) -> float | None:
    """Return when a SQLite database was last written, or None if there is no file."""
    files = [database, Path(f"{database}-wal")]
    times = [file.stat().st_mtime for file in files if file.is_file()]
    return max(times) + _CLOCK_TOLERANCE_SECONDS if times else None


def copy_backup(backup: Path, database: Path) -> Path:
    """Copy a backup to a file next to the database; return that file, or raise `StoreError`."""
    copy_path = Path(f"{database}.restoring")
    try:
        copy_file(backup, copy_path, is_in_use=False)
        with contextlib.closing(sqlite3.connect(copy_path)) as connection:
            schema_query = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
            if not connection.execute(schema_query).fetchone():
                raise sqlite3.DatabaseError("it is not a Troupe database")
    except (OSError, sqlite3.Error) as error:
        copy_path.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"the backup {backup} cannot be restored: {reason}") from None
    return copy_path


def replace_database(copy_path: Path, database: Path, answered_until: float) -> Path:
    """Replace the database with a prepared copy, and return the old database's new name.

    The copy gets the modification time of the lost database, so that
    `find_last_write_time` returns the same time if the restore is repeated before the service
    starts.

    Raises `StoreError` if the files cannot be renamed.
    """
    old_path = _find_unused_path(database)
    modified_at = answered_until - _CLOCK_TOLERANCE_SECONDS
    try:
        os.utime(copy_path, (modified_at, modified_at))
        if database.is_file():
            database.replace(old_path)
        wal_path = Path(f"{database}-wal")
        if wal_path.is_file():
            wal_path.replace(f"{old_path}-wal")
        Path(f"{database}-shm").unlink(missing_ok=True)
        copy_path.replace(database)
    except OSError as error:
        raise StoreError(f"{database} cannot be replaced: {error.strerror}") from None
    return old_path


def _find_unused_path(database: Path) -> Path:
    """Return an unused name for the old database, to keep all earlier copies."""
    path = Path(f"{database}.replaced")
    numbers = count(2)
    while path.exists():
        path = Path(f"{database}.replaced-{next(numbers)}")
    return path
