"""Copy a database into another one (after an error, run it again), or back up a SQLite file."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from bot.chat.operation import HEARTBEAT_SECONDS
from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.database import INSUFFICIENT_PRIVILEGE, Database
from bot.storage.statements import SQL, Unit
from bot.storage.tables import metadata, min_code_revision

COPIED_TABLES = [one for one in metadata.sorted_tables if one is not min_code_revision]
"""All tables except the one that records the oldest supported revision."""

_ROWS_PER_PAGE = 500
_MAX_REPORT_AGE_SECONDS = 3 * HEARTBEAT_SECONDS
"""A process counts as running for this long after its last report."""


Row = Mapping[str, Any]
ReportRowCount = Callable[[str, int], None]
"""A function that is called with each table's name and number of rows."""


async def copy_rows(source: Database, target: Database, report: ReportRowCount) -> int:
    """Copy and compare all rows, and return their number; may be repeated after a `StoreError`."""
    if await source.run_readonly(lambda: _is_database_in_use(source.is_sqlite)):
        raise StoreError(
            "a Troupe process is using this database, or was killed less than "
            f"{_MAX_REPORT_AGE_SECONDS:.0f} seconds ago; stop all processes, then copy the database"
        )
    for table in COPIED_TABLES:
        await _check_rows_match(target, source, table)
    row_count = 0
    for table in COPIED_TABLES:
        row_count += await _copy_table(source, target, table)
        await _check_rows_match(source, target, table)
        table_row_count = await source.read(lambda c, table=table: _count_rows(c, table))  # type: ignore[misc]
        report(table.name, table_row_count)
    return row_count


async def _copy_table(source: Database, target: Database, table: Table) -> int:
    dialect = sqlite if target.is_sqlite else postgresql
    insert_statement = dialect.insert(table).on_conflict_do_nothing()
    copied_count, last_key = 0, None
    while rows := await read_page(source, table, last_key):
        await target.write(lambda c, rows=rows: c.execute(insert_statement, rows))  # type: ignore[misc]
        copied_count, last_key = copied_count + len(rows), get_primary_key(table, rows[-1])
    if not target.is_sqlite and table.autoincrement_column is not None:
        await _run_if_owner(target, lambda c: _continue_id_sequence(c, table))
    return copied_count


async def _run_if_owner(target: Database, unit: Callable[[Connection], None]) -> None:
    """Run a function for which the role must own the tables; raises `StoreError` if it does not."""
    try:
        await target.write(unit)
    except StoreError as error:
        if error.sql_state != INSUFFICIENT_PRIVILEGE:
            raise
        raise StoreError(
            "the role in --to does not own the tables: use the role that owns them"
        ) from error


async def _check_rows_match(source: Database, target: Database, table: Table) -> None:
    """Raise `StoreError` if a row of the source is missing or different in the target."""
    last_key = None
    while rows := await read_page(source, table, last_key):
        keys = [get_primary_key(table, row) for row in rows]
        target_rows = await target.read(lambda c, keys=keys: _read_rows(c, table, keys))  # type: ignore[misc]
        for row, key in zip(rows, keys, strict=True):
            if target_rows.get(key) != row:
                raise StoreError(
                    f"the two databases differ in table {table.name}, row {key}: "
                    "copy into a database that nothing else has used"
                )
        last_key = keys[-1]


async def read_page(
    database: Database, table: Table, last_key: Sequence[Any] | None
) -> Sequence[dict[str, Any]]:
    """Return the next rows by primary key, after the key `last_key`."""
    page_query = select(table).order_by(*table.primary_key).limit(_ROWS_PER_PAGE)
    if last_key is not None:
        page_query = page_query.where(tuple_(*table.primary_key) > tuple_(*last_key))

    def read_rows(connection: Connection) -> list[dict[str, Any]]:
        # Without SQLAlchemy's statement cache, which would keep the keys in memory.
        rows = connection.execution_options(compiled_cache=None).execute(page_query)
        return [dict(row) for row in rows.mappings()]

    return await database.read(read_rows)


def _read_rows(
    connection: Connection, table: Table, keys: Sequence[tuple[Any, ...]]
) -> dict[tuple[Any, ...], Row]:
    query = select(table).where(tuple_(*table.primary_key).in_(keys))
    return {get_primary_key(table, row): dict(row) for row in connection.execute(query).mappings()}


def get_primary_key(table: Table, row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[column.name] for column in table.primary_key)


def _count_rows(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def _is_database_in_use(is_sqlite: bool) -> Unit[bool]:
    values = {"now": SystemClock().now()}
    if (yield SQL["held_conversation"].query(values)):
        return True
    # For SQLite, the lock on the data directory detects running processes.
    return not is_sqlite and bool((yield SQL["seen_node"].query(values)))


def _continue_id_sequence(connection: Connection, table: Table) -> None:
    """Make PostgreSQL's sequence continue after the largest copied id."""
    highest_id = connection.execute(select(func.max(table.c.id))).scalar_one()
    if highest_id is not None:
        sequence_name = func.pg_get_serial_sequence(table.name, "id")
        connection.execute(select(func.setval(sequence_name, highest_id)))


def back_up(database: Path, backup: Path) -> int:
    """Copy a SQLite database to a new owner-only file, check it, and return its size in bytes.

    Raises `StoreError` if the backup exists, cannot be written, or is damaged.
    """
    if backup.exists():
        raise StoreError(f"{backup} already exists; choose another name for the backup")
    partial_copy = backup.with_name(f"{backup.name}.part")
    try:
        copy_file(database, partial_copy, is_in_use=True)
        partial_copy.rename(backup)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"the backup {backup} could not be created: {reason}") from None
    finally:
        partial_copy.unlink(missing_ok=True)
    return backup.stat().st_size


def copy_file(database: Path, copy_path: Path, *, is_in_use: bool) -> None:
    """Copy a SQLite database to an owner-only file, and check the copy.

    If no process writes to the database (`is_in_use` is false), its folder can be read-only.
    Raises `OSError` or `sqlite3.Error` if a file cannot be read or written, or is damaged.
    """
    for suffix in ("", "-wal", "-shm"):  # from an interrupted copy
        Path(f"{copy_path}{suffix}").unlink(missing_ok=True)
    os.close(os.open(copy_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    database_uri = database.resolve(strict=True).as_uri()
    uri_option = "mode=ro" if is_in_use else "immutable=1"
    with (
        contextlib.closing(sqlite3.connect(f"{database_uri}?{uri_option}", uri=True)) as source,
        contextlib.closing(sqlite3.connect(copy_path)) as target,
    ):
        source.backup(target)  # in one step, because readers do not block writers
        target.execute("PRAGMA journal_mode=DELETE")  # a single file, without a log
        (check_result,) = target.execute("PRAGMA integrity_check").fetchone()
        if check_result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {check_result}")
