"""Back up the database file of SQLite while the service runs."""

import contextlib
import os
import sqlite3
from pathlib import Path

from bot.errors import StoreError


def back_up(database: Path, backup: Path) -> int:
    """Copy a database into a new file, for its owner only, and return the file's size in bytes.

    The copy holds all that was committed when it ended, is checked, and takes its name only then.

    Raises:
        StoreError: There is a file of that name, it cannot be written, or the copy is damaged.
    """
    if backup.exists():
        raise StoreError(f"{backup} exists; give the backup another name")
    part = backup.with_name(f"{backup.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _copy(database, part)
        part.rename(backup)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"the backup {backup} could not be made: {reason}") from None
    finally:
        part.unlink(missing_ok=True)
    return backup.stat().st_size


def _copy(database: Path, part: Path) -> None:
    address = database.resolve().as_uri()
    with (
        contextlib.closing(sqlite3.connect(f"{address}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(part)) as target,
    ):
        source.backup(target)  # in one step: a reader of the log keeps no writer waiting
        target.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
        (found,) = target.execute("PRAGMA integrity_check").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {found}")
