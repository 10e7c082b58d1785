"""The partitions of `inbox` and `outbox`, by the ids of their rows.

A message's rows are found by their ids, so a week is a range of ids: once a week the sequence goes
on at the beginning of the next range, which got its partition before. Ranges are wider than any
week. Rows keep their ids and their order, and whoever looks for what is open searches as few
partitions as there are weeks to be kept.

A unique key that does not hold the id is known to each partition for its own rows only. What is
stored once (`STORE`, `QUEUE_ONCE`) therefore looks into the earlier weeks first, and no week begins
while somebody is storing or reading.

Tables of an earlier version are partitioned once no process of such a version runs. Nothing is
copied: the table becomes the first partition.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Table, UniqueConstraint, text

from bot.chat.console.operation import HEARTBEAT_SECONDS
from bot.errors import StoreError
from bot.frozen_dataclass import frozen_dataclass
from bot.storage.partitions.maintenance import (
    WEEK,
    Maintenance,
    PartitionChanges,
    execute,
    give_to_owner,
    monday_after,
    scalar,
)
from bot.storage.sql.retention import INBOX_SECONDS, OUTBOX_SECONDS, keep_message_ids
from bot.storage.sql.tables import inbox, is_unanswered, is_unsent, outbox
from bot.storage.sql.upgrading.revisions import refuse_older_than

_RANGE = 10_000_000_000
"""How many ids a week has: 16,000 rows a second."""
_FIRST_REVISION = "0029"
"""Of the first version of Troupe that works with these partitions."""
_MAX_LOCKED = "1s"
"""How long a statement may take that messages wait for; then the next hour is waited for."""
_ROWS_PER_PAGE = 500
_ROWS_FOR_TIME = 1000
_BOUNDS = re.compile(r"FROM \('?(MINVALUE|\d+)'?\) TO \('?(\d+)'?\)$")

_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = '{table}'::regclass"
_OLDER_VERSION_RUNS = text(
    "SELECT EXISTS (SELECT FROM node WHERE coalesce(revision, '') < :first "
    "AND seen_at > extract(epoch FROM clock_timestamp()) - :silent)"
)
_INDEXES = """
SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = '{table}'::regclass
"""
# The roles that could use the table can use it under its name.
_GRANT_AGAIN = """
DO $$
DECLARE
    owner name;
    one record;
BEGIN
    FOR one IN
        SELECT relowner, grantee, privilege_type, is_grantable
        FROM pg_class LEFT JOIN LATERAL aclexplode(relacl) ON true
        WHERE oid = '{table}_first'::regclass
    LOOP
        owner := pg_get_userbyid(one.relowner);
        CONTINUE WHEN one.grantee IS NULL OR one.grantee = one.relowner;
        EXECUTE format(
            'GRANT %s ON {table} TO %s %s',
            one.privilege_type,
            CASE one.grantee WHEN 0 THEN 'PUBLIC' ELSE one.grantee::regrole::text END,
            CASE WHEN one.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END
        );
    END LOOP;
    EXECUTE format('ALTER TABLE {table} OWNER TO %I', owner);
END
$$
"""
_PARTITIONS = """
SELECT leaf.relname, pg_get_expr(leaf.relpartbound, leaf.oid)
FROM pg_inherits JOIN pg_class AS leaf ON leaf.oid = inhrelid
WHERE inhparent = '{table}'::regclass
"""
_SEQUENCE = "SELECT pg_get_serial_sequence('{table}', 'id')"
# Not of one row alone: the clock of a process may be wrong.
_OLDEST_TIME = """
SELECT min({time}) FROM (
    SELECT {time} FROM {name} WHERE {time} IS NOT NULL ORDER BY id LIMIT {rows}
) AS oldest
"""
_NEWEST_TIME = """
SELECT max({time}) FROM (SELECT {time} FROM {name} ORDER BY id DESC LIMIT {rows}) AS newest
"""
_HAS_OPEN = "SELECT EXISTS (SELECT FROM {name} AS {table} WHERE {is_open})"
# An edit that is still to come needs the id of its message.
_HAS_UNFINISHED_TURNS = """
SELECT EXISTS (
    SELECT FROM outbox AS later JOIN {name} AS row USING (turn)
    WHERE later.state NOT IN ('sent', 'dead')
) OR EXISTS (
    SELECT FROM inbox JOIN {name} AS row ON row.turn = inbox.platform
        || CASE WHEN inbox.bot_id = '' THEN '' ELSE '@' || inbox.bot_id END
        || ':' || inbox.external_key
    WHERE inbox.state = 'new'
)
"""
_PAGE = "SELECT id FROM {name} WHERE id > :last ORDER BY id LIMIT {rows}"


@frozen_dataclass
class QueueTable:
    """A table whose rows are soon of no use."""

    table: Table
    time: str
    """The column with the time of a row."""
    kept_seconds: float
    is_open: str
    """The condition of rows that somebody still works on; there is an index for it."""

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def unique_columns(self) -> str:
        """The key that each partition keeps unique, separated by commas."""
        [key] = [one for one in self.table.constraints if isinstance(one, UniqueConstraint)]
        return ", ".join(column.name for column in key.columns)

    def sql(self, statement: str) -> str:
        return statement.format(table=self.name)


QUEUE_TABLES = (
    QueueTable(inbox, "received_at", INBOX_SECONDS, str(is_unanswered)),
    QueueTable(outbox, "started_at", OUTBOX_SECONDS, str(is_unsent)),
)


@frozen_dataclass
class _IdRange:
    name: str
    start: int
    """Its smallest id; 0: all smaller ones."""
    end: int
    """The smallest id that it does not have."""


async def keep_queue_table(job: Maintenance, queue: QueueTable) -> PartitionChanges:
    """Partition a table, begin the week in it, drop the weeks that nobody needs.

    Raises:
        StoreError: the database failed, or others kept it from being locked. What was done stays.
    """
    read = job.database.read
    if not await read(lambda c: _is_partitioned(c, queue)):
        if await read(_older_version_runs):
            return PartitionChanges()
        await _partition_rows(job, queue)
        if not await read(lambda c: _is_partitioned(c, queue)):
            return PartitionChanges()
    created = await _begin_week(job, queue)
    dropped = 0
    for one in (await read(lambda c: _partitions(c, queue)))[:-1]:
        if await read(lambda c, one=one: _is_over(c, queue, one, job.now)):  # type: ignore[misc]
            if queue.table is outbox:
                await _keep_message_ids(job, one)
            dropped += await job.run(lambda c, one=one: _drop(c, queue, one, job.now))  # type: ignore[misc]
    return PartitionChanges(created=created, dropped=dropped)


def partition_new_tables(connection: Connection) -> None:
    """Partition the tables of a database that nobody has used yet."""
    for queue in QUEUE_TABLES:
        _partition(connection, queue, _RANGE)


def add_partition_for(connection: Connection, table: Table, highest: int) -> None:
    """See to it that a partition takes the ids up to one, as those of a copied database.

    What lies between the partitions that there are and the range of that id becomes one of them.
    """
    for queue in QUEUE_TABLES:
        if queue.table is table and _is_partitioned(connection, queue):
            [*_, newest] = _partitions(connection, queue)
            end = _end_of_range(highest)
            if newest.end < end:
                _attach(connection, queue, f"{queue.name}_to_{end}", newest.end, end)


async def _partition_rows(job: Maintenance, queue: QueueTable) -> None:
    """Have the server check the ids before anything is locked, then make the table a partition."""
    end = await job.database.read(lambda c: _next_range(c, queue))
    constraint = f"{queue.name}_ids"
    drop = f"ALTER TABLE {queue.name} DROP CONSTRAINT IF EXISTS {constraint}"
    add = f"{drop}, ADD CONSTRAINT {constraint} CHECK (id < {end}) NOT VALID"
    check = f"ALTER TABLE {queue.name} VALIDATE CONSTRAINT {constraint}"
    try:
        await job.run(lambda c: _unless_others_did(c, queue, lambda: execute(c, add)))
        if await job.database.read(lambda c: _is_partitioned(c, queue)):
            return
        await job.database.maintain(lambda c: execute(c, check))
        await job.run(lambda c: _unless_others_did(c, queue, lambda: _partition(c, queue, end)))
    except StoreError:
        await job.execute(drop)
        raise


def _unless_others_did(
    connection: Connection, queue: QueueTable, change: Callable[[], None]
) -> None:
    """Lock a table and change it, unless another job was faster or an older version has started."""
    execute(connection, f"LOCK TABLE {queue.name} IN ACCESS EXCLUSIVE MODE")
    if not (_is_partitioned(connection, queue) or _older_version_runs(connection)):
        change()


def _partition(connection: Connection, queue: QueueTable, end: int) -> None:
    """Put a partitioned table in the place of a table, which becomes its partition up to an id."""
    table, first = queue.name, f"{queue.name}_first"
    sequence = connection.exec_driver_sql(queue.sql(_SEQUENCE)).scalar_one()
    for index in connection.exec_driver_sql(queue.sql(_INDEXES)).scalars().all():
        execute(connection, f"ALTER INDEX {index} RENAME TO {index}_first")
    execute(connection, f"ALTER TABLE {table} RENAME TO {first}")
    execute(
        connection,
        f"CREATE TABLE {table} (LIKE {first} INCLUDING DEFAULTS INCLUDING STORAGE, "
        f"CONSTRAINT pk_{table} PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    )
    execute(connection, queue.sql(_GRANT_AGAIN))
    execute(connection, f"ALTER SEQUENCE {sequence} OWNED BY {table}.id")
    for index in queue.table.indexes:
        index.create(connection)
    bounds = f"FOR VALUES FROM (MINVALUE) TO ({end})"
    execute(connection, f"ALTER TABLE {table} ATTACH PARTITION {first} {bounds}")
    execute(connection, f"ALTER TABLE {first} DROP CONSTRAINT IF EXISTS {table}_ids")
    refuse_older_than(connection, _FIRST_REVISION)


async def _begin_week(job: Maintenance, queue: QueueTable) -> int:
    """Let rows go to a new partition if the newest one has some of last week; return how many."""
    monday = monday_after(job.now) - WEEK
    name = f"{queue.name}_from_{datetime.fromtimestamp(monday, UTC):%Y%m%d}"
    known = await job.database.read(lambda c: _partitions(c, queue))
    oldest = await job.database.read(lambda c: _time(c, queue, known[-1], _OLDEST_TIME))
    is_due = oldest is not None and oldest < monday and name not in [one.name for one in known]
    if is_due:
        await add_partition(job, queue, name)
    else:  # if the job died between the two steps
        await _go_on_in_newest(job, queue)
    return int(is_due)


async def add_partition(job: Maintenance, queue: QueueTable, name: str) -> None:
    """Let rows go to a new partition from now on.

    Raises:
        StoreError: the database failed, or others kept the table from being locked.
    """
    [*_, newest] = await job.database.read(lambda c: _partitions(c, queue))
    start, end = newest.end, newest.end + _RANGE
    await job.run(lambda c: _attach(c, queue, name, start, end))
    await _go_on_in_newest(job, queue)


async def _go_on_in_newest(job: Maintenance, queue: QueueTable) -> None:
    [*_, newest] = await job.database.read(lambda c: _partitions(c, queue))
    if await job.database.read(lambda c: _last_id(c, queue)) < newest.start:
        await job.run(lambda c: _go_on_at(c, queue, newest.start))


def _attach(connection: Connection, queue: QueueTable, name: str, start: int, end: int) -> None:
    execute(
        connection,
        f"CREATE TABLE {name} (LIKE {queue.name} INCLUDING DEFAULTS INCLUDING STORAGE, "
        f"UNIQUE ({queue.unique_columns}))",
    )
    give_to_owner(connection, name, queue.name)
    bounds = f"FOR VALUES FROM ({start}) TO ({end})"
    execute(connection, f"ALTER TABLE {queue.name} ATTACH PARTITION {name} {bounds}")


def _go_on_at(connection: Connection, queue: QueueTable, start: int) -> None:
    """Give ids of the newest partition from now on; whoever uses the table just now comes before.

    Also who only reads it: until the end of the transaction, its plans may lack the new partition,
    and a lane whose first row is there would be taken for empty.
    """
    execute(connection, f"LOCK TABLE ONLY {queue.name} IN ACCESS EXCLUSIVE MODE")
    if _last_id(connection, queue) < start:
        sequence = connection.exec_driver_sql(queue.sql(_SEQUENCE)).scalar_one()
        execute(connection, f"SELECT setval('{sequence}', {start}, false)")


def _is_over(connection: Connection, queue: QueueTable, one: _IdRange, now: float) -> bool:
    """Whether nobody needs the rows of a partition any more."""
    if _last_id(connection, queue) < one.end:
        return False  # its ids are still given: another process begins the next week just now
    newest = _time(connection, queue, one, _NEWEST_TIME)
    if newest is not None and newest >= now - queue.kept_seconds:
        return False
    names = {"name": one.name, "table": queue.name, "is_open": queue.is_open}
    needed = [_HAS_OPEN, *([_HAS_UNFINISHED_TURNS] if queue.table is outbox else [])]
    return not any(scalar(connection, query.format(**names)) for query in needed)


async def _keep_message_ids(job: Maintenance, one: _IdRange) -> None:
    """Note the platform's ids of the messages, by which their turns are found."""
    page, last = text(_PAGE.format(name=one.name, rows=_ROWS_PER_PAGE)), 0
    while True:
        asked = {"last": last}
        ids = await job.database.read(lambda c, asked=asked: c.execute(page, asked).scalars().all())  # type: ignore[misc]
        if not ids:
            return
        await job.database.write(lambda c, ids=ids: keep_message_ids(c, ids))  # type: ignore[misc]
        last = ids[-1]


def _drop(connection: Connection, queue: QueueTable, one: _IdRange, now: float) -> int:
    """Drop a partition, unless one of its rows was taken up again meanwhile; return how many."""
    execute(connection, f"SET LOCAL statement_timeout = '{_MAX_LOCKED}'")
    # What is looked for is in small indexes, also where the server has not counted the rows yet.
    execute(connection, "SET LOCAL enable_seqscan = off")
    execute(connection, f"LOCK TABLE ONLY {queue.name} IN ACCESS EXCLUSIVE MODE")
    if not _is_over(connection, queue, one, now):
        return 0
    execute(connection, f"DROP TABLE {one.name}")
    return 1


def _is_partitioned(connection: Connection, queue: QueueTable) -> bool:
    return bool(scalar(connection, queue.sql(_IS_PARTITIONED)))


def _older_version_runs(connection: Connection) -> bool:
    asked = {"first": _FIRST_REVISION, "silent": 4 * HEARTBEAT_SECONDS}
    return bool(connection.execute(_OLDER_VERSION_RUNS, asked).scalar_one())


def _partitions(connection: Connection, queue: QueueTable) -> Sequence[_IdRange]:
    """Return all partitions, the oldest first."""
    found = []
    for name, bounds in connection.exec_driver_sql(queue.sql(_PARTITIONS)):
        for start, end in _BOUNDS.findall(bounds):
            found.append(_IdRange(name, 0 if start == "MINVALUE" else int(start), int(end)))
    return sorted(found, key=lambda one: one.end)


def _time(connection: Connection, queue: QueueTable, one: _IdRange, query: str) -> float | None:
    asked = query.format(time=queue.time, name=one.name, rows=_ROWS_FOR_TIME)
    value: float | None = connection.exec_driver_sql(asked).scalar()
    return value


def _last_id(connection: Connection, queue: QueueTable) -> int:
    """Return the newest id that was given."""
    sequence = connection.exec_driver_sql(queue.sql(_SEQUENCE)).scalar_one()
    return int(scalar(connection, f"SELECT last_value FROM {sequence}"))  # noqa: S608


def _next_range(connection: Connection, queue: QueueTable) -> int:
    """Return where the range behind the newest id begins."""
    return _end_of_range(_last_id(connection, queue))


def _end_of_range(number: int) -> int:
    """Return the smallest id that is not of the same week."""
    return (number // _RANGE + 1) * _RANGE
