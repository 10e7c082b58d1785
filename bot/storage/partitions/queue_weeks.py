"""Begin and end the weeks of `inbox` and `outbox`: an old partition is dropped as a whole."""

from datetime import UTC, datetime

from sqlalchemy import Connection, Table, text

from bot.storage.partitions.first_partition import older_version_runs, partition_rows
from bot.storage.partitions.maintenance import (
    WEEK,
    Maintenance,
    PartitionChanges,
    execute,
    monday_after,
    scalar,
)
from bot.storage.partitions.queue_tables import (
    QUEUE_TABLES,
    RANGE,
    IdRange,
    QueueTable,
    attach,
    end_of_range,
    is_partitioned,
    last_id,
    read_partitions,
    sequence_of,
)
from bot.storage.sql.retention import keep_message_ids
from bot.storage.sql.tables import outbox

_MAX_LOCKED = "1s"
"""How long a statement may take that messages wait for; then the next hour is waited for."""
_ROWS_PER_PAGE = 500
_ROWS_FOR_TIME = 1000

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


async def keep_queue_table(job: Maintenance, queue: QueueTable) -> PartitionChanges:
    """Partition a table, begin the week in it, drop the weeks that nobody needs.

    Raises:
        StoreError: the database failed, or others kept it from being locked. What was done stays.
    """
    read = job.database.read
    if not await read(lambda c: is_partitioned(c, queue)):
        if await read(older_version_runs):
            return PartitionChanges()
        await partition_rows(job, queue)
        if not await read(lambda c: is_partitioned(c, queue)):
            return PartitionChanges()
    created = await _begin_week(job, queue)
    dropped = 0
    for one in (await read(lambda c: read_partitions(c, queue)))[:-1]:
        if await read(lambda c, one=one: _is_over(c, queue, one, job.now)):  # type: ignore[misc]
            if queue.table is outbox:
                await _keep_message_ids(job, one)
            dropped += await job.run(lambda c, one=one: _drop(c, queue, one, job.now))  # type: ignore[misc]
    return PartitionChanges(created=created, dropped=dropped)


def add_partition_for(connection: Connection, table: Table, highest: int) -> None:
    """See to it that a partition takes the ids up to one, as those of a copied database.

    What lies between the partitions that there are and the range of that id becomes one of them.
    """
    for queue in QUEUE_TABLES:
        if queue.table is table and is_partitioned(connection, queue):
            [*_, newest] = read_partitions(connection, queue)
            end = end_of_range(highest)
            if newest.end < end:
                attach(connection, queue, f"{queue.name}_to_{end}", newest.end, end)


async def _begin_week(job: Maintenance, queue: QueueTable) -> int:
    """Let rows go to a new partition if the newest one has some of last week; return how many."""
    monday = monday_after(job.now) - WEEK
    name = f"{queue.name}_from_{datetime.fromtimestamp(monday, UTC):%Y%m%d}"
    known = await job.database.read(lambda c: read_partitions(c, queue))
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
    [*_, newest] = await job.database.read(lambda c: read_partitions(c, queue))
    start, end = newest.end, newest.end + RANGE
    await job.run(lambda c: attach(c, queue, name, start, end))
    await _go_on_in_newest(job, queue)


async def _go_on_in_newest(job: Maintenance, queue: QueueTable) -> None:
    [*_, newest] = await job.database.read(lambda c: read_partitions(c, queue))
    if await job.database.read(lambda c: last_id(c, queue)) < newest.start:
        await job.run(lambda c: _go_on_at(c, queue, newest.start))


def _go_on_at(connection: Connection, queue: QueueTable, start: int) -> None:
    """Give ids of the newest partition from now on; whoever uses the table just now comes before.

    Also who only reads it: until the end of the transaction, its plans may lack the new partition,
    and a lane whose first row is there would be taken for empty.
    """
    execute(connection, f"LOCK TABLE ONLY {queue.name} IN ACCESS EXCLUSIVE MODE")
    if last_id(connection, queue) < start:
        execute(connection, f"SELECT setval('{sequence_of(connection, queue)}', {start}, false)")


def _is_over(connection: Connection, queue: QueueTable, one: IdRange, now: float) -> bool:
    """Whether nobody needs the rows of a partition any more."""
    if last_id(connection, queue) < one.end:
        return False  # its ids are still given: another process begins the next week just now
    newest = _time(connection, queue, one, _NEWEST_TIME)
    if newest is not None and newest >= now - queue.kept_seconds:
        return False
    names = {"name": one.name, "table": queue.name, "is_open": queue.is_open}
    needed = [_HAS_OPEN, *([_HAS_UNFINISHED_TURNS] if queue.table is outbox else [])]
    return not any(scalar(connection, query.format(**names)) for query in needed)


async def _keep_message_ids(job: Maintenance, one: IdRange) -> None:
    """Note the platform's ids of the messages, by which their turns are found."""
    page, last = text(_PAGE.format(name=one.name, rows=_ROWS_PER_PAGE)), 0
    while True:
        asked = {"last": last}
        ids = await job.database.read(lambda c, asked=asked: c.execute(page, asked).scalars().all())  # type: ignore[misc]
        if not ids:
            return
        await job.database.write(lambda c, ids=ids: keep_message_ids(c, ids))  # type: ignore[misc]
        last = ids[-1]


def _drop(connection: Connection, queue: QueueTable, one: IdRange, now: float) -> int:
    """Drop a partition, unless one of its rows was taken up again meanwhile; return how many."""
    execute(connection, f"SET LOCAL statement_timeout = '{_MAX_LOCKED}'")
    # What is looked for is in small indexes, also where the server has not counted the rows yet.
    execute(connection, "SET LOCAL enable_seqscan = off")
    execute(connection, f"LOCK TABLE ONLY {queue.name} IN ACCESS EXCLUSIVE MODE")
    if not _is_over(connection, queue, one, now):
        return 0
    execute(connection, f"DROP TABLE {one.name}")
    return 1


def _time(connection: Connection, queue: QueueTable, one: IdRange, query: str) -> float | None:
    asked = query.format(time=queue.time, name=one.name, rows=_ROWS_FOR_TIME)
    value: float | None = connection.exec_driver_sql(asked).scalar()
    return value
