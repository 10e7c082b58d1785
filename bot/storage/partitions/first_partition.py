"""Partition `inbox` and `outbox` without a copy: a table becomes its own first partition.

Tables of an earlier version are partitioned once no process of such a version runs.
"""

from collections.abc import Callable

from sqlalchemy import Connection, text

from bot.chat.console.operation import HEARTBEAT_SECONDS
from bot.errors import StoreError
from bot.storage.partitions.maintenance import Maintenance, execute
from bot.storage.partitions.queue_tables import (
    QUEUE_TABLES,
    RANGE,
    QueueTable,
    end_of_range,
    is_partitioned,
    last_id,
    sequence_of,
)
from bot.storage.sql.upgrading.revisions import refuse_older_than

_FIRST_REVISION = "0029"
"""Of the first version of Troupe that works with these partitions."""

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


def older_version_runs(connection: Connection) -> bool:
    """Whether a process that knows no partitions of these tables reported itself lately."""
    asked = {"first": _FIRST_REVISION, "silent": 4 * HEARTBEAT_SECONDS}
    return bool(connection.execute(_OLDER_VERSION_RUNS, asked).scalar_one())


def partition_new_tables(connection: Connection) -> None:
    """Partition the tables of a database that nobody has used yet."""
    for queue in QUEUE_TABLES:
        _partition(connection, queue, RANGE)


async def partition_rows(job: Maintenance, queue: QueueTable) -> None:
    """Have the server check the ids before anything is locked, then make the table a partition.

    Where a process of an older version has started meanwhile, the table stays as it is; the check
    of the ids then stays as well, until the next attempt.

    Raises:
        StoreError: the database failed, or others kept the table from being locked.
    """
    end = end_of_range(await job.database.read(lambda c: last_id(c, queue)))
    constraint = f"{queue.name}_ids"
    drop = f"ALTER TABLE {queue.name} DROP CONSTRAINT IF EXISTS {constraint}"
    add = f"{drop}, ADD CONSTRAINT {constraint} CHECK (id < {end}) NOT VALID"
    check = f"ALTER TABLE {queue.name} VALIDATE CONSTRAINT {constraint}"
    try:
        await job.run(lambda c: _unless_others_did(c, queue, lambda: execute(c, add)))
        if await job.database.read(lambda c: is_partitioned(c, queue)):
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
    if not (is_partitioned(connection, queue) or older_version_runs(connection)):
        change()


def _partition(connection: Connection, queue: QueueTable, end: int) -> None:
    """Put a partitioned table in the place of a table, which becomes its partition up to an id."""
    table, first = queue.name, f"{queue.name}_first"
    sequence = sequence_of(connection, queue)
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
