"""Put a backup of SQLite in the place of the database."""

import contextlib
import os
import shutil
import sqlite3
from itertools import count
from pathlib import Path

from bot.errors import StoreError

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
