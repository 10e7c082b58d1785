"""The partitions of PostgreSQL's table of receipts, one a week: an old one is dropped as a whole.

The default partition holds what no other one does, so a receipt is stored whether or not its week
has a partition. Partitions are made weeks ahead, while the default one is empty; if it is not, as
after an upgrade, it becomes the partition of the time up to some Monday, and gets an empty
successor. Nothing is copied.

A step that needs a lock waits for it only a moment and is tried again: messages that are finished
meanwhile wait behind it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Connection, text

from bot.errors import StoreError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock
from bot.storage.sql.database import Database, sql_state
from bot.storage.sql.retention import USAGE_SECONDS

T = TypeVar("T")
_DAY = 86_400
_WEEK = 7 * _DAY
_FIRST_MONDAY = 4 * _DAY
"""1970-01-05, in Unix seconds."""
_WEEKS_AHEAD = 4
"""So long receipts have a partition when nobody makes one."""
_WEEKS_TO_PROVE = 8
"""How far ahead the time ends of a large default partition that becomes another one."""
_SCANNED_BYTES = 64 * 1024 * 1024
"""So much is read in a moment, also under a lock that messages wait for."""
_LOCK_WAIT = "100ms"
_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
_LOCK_NOT_AVAILABLE = "55P03"

_DEFAULT = "receipt_default"
_CONSTRAINT = "receipt_default_time"
_UPPER_BOUND = re.compile(r" TO \('?([0-9.e+]+)'?\)$")

# Makers of partitions take turns; messages and readers do not wait for this lock.
_LOCK = "LOCK TABLE ONLY receipt IN SHARE UPDATE EXCLUSIVE MODE"
_LOCK_ALL = "LOCK TABLE ONLY receipt IN ACCESS EXCLUSIVE MODE"
_PARTITIONS = """
SELECT leaf.relname, pg_get_expr(leaf.relpartbound, leaf.oid) AS bound,
    key.relname AS key, index.indisclustered
FROM pg_inherits JOIN pg_class AS leaf ON leaf.oid = inhrelid
    JOIN pg_index AS index ON index.indrelid = leaf.oid AND index.indisprimary
    JOIN pg_class AS key ON key.oid = index.indexrelid
WHERE inhparent = 'receipt'::regclass
"""
_MAY_CHANGE_TABLES = """
SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE')
FROM pg_class WHERE oid = 'receipt'::regclass
"""
_SERVER_TIME = "SELECT extract(epoch FROM clock_timestamp())::float"
_DEFAULT_HAS_ROWS = f"SELECT EXISTS (SELECT FROM {_DEFAULT})"  # noqa: S608
_SIZE_OF_DEFAULT = f"SELECT pg_relation_size('{_DEFAULT}')"
# No receipt is of the future: the clock of a process was wrong.
_CORRECT_TIMES = text("UPDATE receipt SET at = :now WHERE at >= :future")
# Of weeks that were dropped; such rows come with a copy of another database.
_DELETE_EXPIRED = text(f"DELETE FROM {_DEFAULT} WHERE at < :before")  # noqa: S608
# Most receipts fit into a page, beside others; they are compressed already.
_CREATE = (
    "CREATE TABLE {name} (LIKE receipt INCLUDING STORAGE, PRIMARY KEY (id)) "
    "WITH (toast_tuple_target = 8160)"
)


@frozen_dataclass
class PartitionChanges:
    """How many partitions were changed in which way."""

    created: int = 0
    dropped: int = 0
    compacted: int = 0
    """Written again without the room that the content of their receipts took."""


@frozen_dataclass
class _Partition:
    name: str
    end: float
    """In Unix seconds; the receipts are older."""
    key: str
    """The index of its primary key."""
    is_compacted: bool


async def keep_partitions(
    database: Database, clock: Clock, receipt_days: float
) -> PartitionChanges | None:
    """Make partitions for the next weeks, drop those of old usage, compact those without content.

    Returns:
        What was done; None: the role does not own the table, or it is SQLite.

    Raises:
        StoreError: the database failed, or others kept it from being locked. What was done stays.
    """
    if database.is_sqlite or not await database.read(_may_change_tables):
        return None
    # A clock that is wrong must not drop what is young.
    now = min(clock.now(), await database.read(lambda c: _scalar(c, _SERVER_TIME)))
    job = _Maintenance(database, clock, now)
    if await database.read(_is_large):
        await _prove_times(job)
    changes = PartitionChanges(created=await job.run(lambda c: _make_weeks(c, now)))
    for one in await database.read(_partitions):
        if one.end <= now - USAGE_SECONDS:
            await job.run(lambda c, one=one: _execute(c, f"DROP TABLE {one.name}"))  # type: ignore[misc]
            changes = replace(changes, dropped=changes.dropped + 1)
        elif one.end <= now - receipt_days * _DAY and not one.is_compacted:
            compacted = await job.run(lambda c, one=one: _compact(c, one))  # type: ignore[misc]
            changes = replace(changes, compacted=changes.compacted + compacted)
    return changes


@frozen_dataclass
class _Maintenance:
    database: Database
    clock: Clock
    now: float

    async def run(self, unit: Callable[[Connection], T]) -> T:
        """Run a function in a transaction that waits for locks a moment only; else once more."""

        def impatient(connection: Connection) -> T:
            _execute(connection, f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
            return unit(connection)

        attempt = 1
        while True:
            try:
                return await self.database.maintain(impatient)
            except StoreError as error:
                if sql_state(error) != _LOCK_NOT_AVAILABLE or attempt == _ATTEMPTS:
                    raise
            attempt += 1
            await self.clock.sleep(_PAUSE_SECONDS)


async def _prove_times(job: _Maintenance) -> None:
    """Have the server check the times in a large default partition, before anything is locked.

    Until the partition has been attached with these times, it takes no receipt of later ones:
    they are eight weeks away, and the constraint is dropped if something fails.
    """
    start, end = await job.database.read(lambda c: _range_of_default(c, job.now, _WEEKS_TO_PROVE))
    await job.database.maintain(lambda c: _correct_times(c, job.now))
    lower = "" if start is None else f"at >= {start!r} AND "
    condition = f"CHECK ({lower}at < {end!r}) NOT VALID"
    drop = f"ALTER TABLE {_DEFAULT} DROP CONSTRAINT IF EXISTS {_CONSTRAINT}"
    try:
        await job.run(lambda c: _execute(c, f"{drop}, ADD CONSTRAINT {_CONSTRAINT} {condition}"))
        check = f"ALTER TABLE {_DEFAULT} VALIDATE CONSTRAINT {_CONSTRAINT}"
        await job.database.maintain(lambda c: _execute(c, check))
        await job.run(lambda c: _replace_default(c, job.now, start, end))
    except StoreError:
        await job.run(lambda c: _execute(c, drop))
        raise


def _make_weeks(connection: Connection, now: float) -> int:
    """Attach what the next weeks need; return how many partitions that were."""
    _execute(connection, _LOCK)
    known = _partitions(connection)
    if known and known[-1].end >= now + _WEEKS_AHEAD * _WEEK and not _has_rows(connection):
        return 0
    start, end = _range_of_default(connection, now, 1)
    if _has_rows(connection):
        _correct_times(connection, now)
    if start is None or _has_rows(connection):
        _replace_default(connection, now, start, end)
        start = end
    while start < now + _WEEKS_AHEAD * _WEEK:
        # without a job for long, weeks that are over share a partition
        end = max(start + _WEEK, _monday_after(now - _WEEK))
        _attach(connection, start, end)
        start = end
    return len(_partitions(connection)) - len(known)


def _replace_default(connection: Connection, now: float, start: float | None, end: float) -> None:
    """Attach the default partition as the one of its times, and an empty one in its place."""
    _execute(connection, _LOCK_ALL)
    _execute(connection, f"ALTER TABLE receipt DETACH PARTITION {_DEFAULT}")
    name = _name(end)
    _execute(connection, f"ALTER TABLE {_DEFAULT} RENAME TO {name}")
    _execute(connection, f"ALTER TABLE receipt ATTACH PARTITION {name} {_bound(start, end)}")
    _execute(connection, f"ALTER TABLE {name} DROP CONSTRAINT IF EXISTS {_CONSTRAINT}")
    _execute(connection, _CREATE.format(name=_DEFAULT))
    _execute(connection, f"ALTER TABLE receipt ATTACH PARTITION {_DEFAULT} DEFAULT")


def _attach(connection: Connection, start: float, end: float) -> None:
    name = _name(end)
    _execute(connection, _CREATE.format(name=name))
    _execute(connection, f"ALTER TABLE receipt ATTACH PARTITION {name} {_bound(start, end)}")


def _compact(connection: Connection, one: _Partition) -> int:
    """Write a partition again, once no receipt in it has content; return 1, or 0 if one has."""
    has_content = f"SELECT EXISTS (SELECT FROM {one.name} WHERE length(content) > 0)"  # noqa: S608
    if _scalar(connection, has_content):
        return 0
    _execute(connection, f"CLUSTER {one.name} USING {one.key}")  # and PostgreSQL notes that it did
    return 1


def _correct_times(connection: Connection, now: float) -> None:
    """Leave only times in the default partition that another partition can have."""
    connection.execute(_CORRECT_TIMES, {"now": now, "future": now + _DAY})
    if _partitions(connection):
        connection.execute(_DELETE_EXPIRED, {"before": now - USAGE_SECONDS})


def _range_of_default(connection: Connection, now: float, weeks: int) -> tuple[float | None, float]:
    """Return where the other partitions end (None: there are none), and a Monday weeks ahead."""
    known = _partitions(connection)
    start = known[-1].end if known else None
    end = _monday_after(now + (weeks - 1) * _WEEK + _DAY)
    return start, end if start is None else max(end, start + _WEEK)


def _partitions(connection: Connection) -> Sequence[_Partition]:
    """Return all partitions but the default one, the oldest first."""
    found = []
    for name, bound, key, is_clustered in connection.execute(text(_PARTITIONS)):
        end = _UPPER_BOUND.search(bound)
        if end is not None:
            found.append(_Partition(name, float(end[1]), key, is_clustered))
    return sorted(found, key=lambda one: one.end)


def _is_large(connection: Connection) -> bool:
    """Whether to read the default partition for a new one would take long."""
    return _has_rows(connection) and _scalar(connection, _SIZE_OF_DEFAULT) > _SCANNED_BYTES


def _has_rows(connection: Connection) -> bool:
    """Whether the default partition has any."""
    return bool(_scalar(connection, _DEFAULT_HAS_ROWS))


def _may_change_tables(connection: Connection) -> bool:
    return bool(_scalar(connection, _MAY_CHANGE_TABLES))


def _monday_after(moment: float) -> float:
    """Return the first Monday, 00:00 UTC, after a moment, in Unix seconds."""
    weeks = (moment - _FIRST_MONDAY) // _WEEK + 1
    return _FIRST_MONDAY + weeks * _WEEK


def _name(end: float) -> str:
    return f"receipt_to_{datetime.fromtimestamp(end, UTC):%Y%m%d}"


def _bound(start: float | None, end: float) -> str:
    lower = "MINVALUE" if start is None else repr(start)
    return f"FOR VALUES FROM ({lower}) TO ({end!r})"


def _execute(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)


def _scalar(connection: Connection, query: str) -> float:
    value: float = connection.exec_driver_sql(query).scalar_one()
    return value
