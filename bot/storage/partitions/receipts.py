"""The partitions of receipts, by their time.

The default partition holds what no other one does, so a receipt is stored whether or not its week
has a partition. Partitions are made weeks ahead, while the default one is empty; if it is not, as
after an upgrade, it becomes the partition of the time up to some Monday, and gets an empty
successor. Nothing is copied.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Connection, text

from bot.errors import StoreError
from bot.frozen_dataclass import frozen_dataclass
from bot.storage.partitions.maintenance import (
    DAY,
    WEEK,
    Maintenance,
    PartitionChanges,
    execute,
    give_to_owner,
    monday_after,
    scalar,
)
from bot.storage.sql.retention import USAGE_SECONDS

_WEEKS_AHEAD = 4
"""So long receipts have a partition when nobody makes one."""
_WEEKS_TO_PROVE = 8
"""How far ahead the time ends of a large default partition that becomes another one."""
_SCANNED_BYTES = 64 * 1024 * 1024
"""So much is read in a moment, also under a lock that messages wait for."""

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
class _Partition:
    name: str
    end: float
    """In Unix seconds; the receipts are older."""
    key: str
    """The index of its primary key."""
    is_compacted: bool


async def keep_receipts(job: Maintenance, receipt_days: float) -> PartitionChanges:
    """Make partitions for the next weeks, drop those of old usage, compact those without content.

    Raises:
        StoreError: the database failed, or others kept it from being locked. What was done stays.
    """
    database, now = job.database, job.now
    if await database.read(_is_large):
        await _prove_times(job)
    changes = PartitionChanges(created=await job.run(lambda c: _make_weeks(c, now)))
    for one in await database.read(_partitions):
        if one.end <= now - USAGE_SECONDS:
            await job.execute(f"DROP TABLE {one.name}")
            changes = replace(changes, dropped=changes.dropped + 1)
        elif one.end <= now - receipt_days * DAY and not one.is_compacted:
            compacted = await job.run(lambda c, one=one: _compact(c, one))  # type: ignore[misc]
            changes = replace(changes, compacted=changes.compacted + compacted)
    return changes


async def _prove_times(job: Maintenance) -> None:
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
        await job.execute(f"{drop}, ADD CONSTRAINT {_CONSTRAINT} {condition}")
        check = f"ALTER TABLE {_DEFAULT} VALIDATE CONSTRAINT {_CONSTRAINT}"
        await job.database.maintain(lambda c: execute(c, check))
        await job.run(lambda c: _replace_default(c, job.now, start, end))
    except StoreError:
        await job.execute(drop)
        raise


def _make_weeks(connection: Connection, now: float) -> int:
    """Attach what the next weeks need; return how many partitions that were."""
    execute(connection, _LOCK)
    known = _partitions(connection)
    if known and known[-1].end >= now + _WEEKS_AHEAD * WEEK and not _has_rows(connection):
        return 0
    start, end = _range_of_default(connection, now, 1)
    if _has_rows(connection):
        _correct_times(connection, now)
    if start is None or _has_rows(connection):
        _replace_default(connection, now, start, end)
        start = end
    while start < now + _WEEKS_AHEAD * WEEK:
        # without a job for long, weeks that are over share a partition
        end = max(start + WEEK, monday_after(now - WEEK))
        _attach(connection, start, end)
        start = end
    return len(_partitions(connection)) - len(known)


def _replace_default(connection: Connection, now: float, start: float | None, end: float) -> None:
    """Attach the default partition as the one of its times, and an empty one in its place."""
    execute(connection, _LOCK_ALL)
    execute(connection, f"ALTER TABLE receipt DETACH PARTITION {_DEFAULT}")
    name = _name(end)
    execute(connection, f"ALTER TABLE {_DEFAULT} RENAME TO {name}")
    execute(connection, f"ALTER TABLE receipt ATTACH PARTITION {name} {_bound(start, end)}")
    execute(connection, f"ALTER TABLE {name} DROP CONSTRAINT IF EXISTS {_CONSTRAINT}")
    execute(connection, _CREATE.format(name=_DEFAULT))
    give_to_owner(connection, _DEFAULT, "receipt")
    execute(connection, f"ALTER TABLE receipt ATTACH PARTITION {_DEFAULT} DEFAULT")


def _attach(connection: Connection, start: float, end: float) -> None:
    name = _name(end)
    execute(connection, _CREATE.format(name=name))
    give_to_owner(connection, name, "receipt")
    execute(connection, f"ALTER TABLE receipt ATTACH PARTITION {name} {_bound(start, end)}")


def _compact(connection: Connection, one: _Partition) -> int:
    """Write a partition again, once no receipt in it has content; return 1, or 0 if one has."""
    has_content = f"SELECT EXISTS (SELECT FROM {one.name} WHERE length(content) > 0)"  # noqa: S608
    if scalar(connection, has_content):
        return 0
    execute(connection, f"CLUSTER {one.name} USING {one.key}")  # and PostgreSQL notes that it did
    return 1


def _correct_times(connection: Connection, now: float) -> None:
    """Leave only times in the default partition that another partition can have."""
    connection.execute(_CORRECT_TIMES, {"now": now, "future": now + DAY})
    if _partitions(connection):
        connection.execute(_DELETE_EXPIRED, {"before": now - USAGE_SECONDS})


def _range_of_default(connection: Connection, now: float, weeks: int) -> tuple[float | None, float]:
    """Return where the other partitions end (None: there are none), and a Monday weeks ahead."""
    known = _partitions(connection)
    start = known[-1].end if known else None
    end = monday_after(now + (weeks - 1) * WEEK + DAY)
    return start, end if start is None else max(end, start + WEEK)


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
    return _has_rows(connection) and scalar(connection, _SIZE_OF_DEFAULT) > _SCANNED_BYTES


def _has_rows(connection: Connection) -> bool:
    """Whether the default partition has any."""
    return bool(scalar(connection, _DEFAULT_HAS_ROWS))


def _name(end: float) -> str:
    return f"receipt_to_{datetime.fromtimestamp(end, UTC):%Y%m%d}"


def _bound(start: float | None, end: float) -> str:
    lower = "MINVALUE" if start is None else repr(start)
    return f"FOR VALUES FROM ({lower}) TO ({end!r})"
