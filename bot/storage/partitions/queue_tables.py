"""The tables `inbox` and `outbox`, and the ranges of ids that are their partitions.

A message's rows are found by their ids, so a week is a range of ids: once a week the sequence goes
on at the beginning of the next range, which got its partition before (queue_weeks.py). Ranges are
wider than any week. Rows keep their ids and their order, and whoever looks for what is open
searches as few partitions as there are weeks to be kept.

A unique key that does not hold the id is known to each partition for its own rows only. What is
stored once (`STORE`, `QUEUE_ONCE`) therefore looks into the earlier weeks first, and no week begins
while somebody is storing or reading.
"""

import re
from collections.abc import Sequence

from sqlalchemy import Connection, Table, UniqueConstraint

from bot.frozen_dataclass import frozen_dataclass
from bot.storage.partitions.maintenance import execute, give_to_owner, scalar
from bot.storage.sql.retention import INBOX_SECONDS, OUTBOX_SECONDS
from bot.storage.sql.tables import inbox, is_unanswered, is_unsent, outbox

RANGE = 10_000_000_000
"""How many ids a week has: 16,000 rows a second."""
_BOUNDS = re.compile(r"FROM \('?(MINVALUE|\d+)'?\) TO \('?(\d+)'?\)$")

_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = '{table}'::regclass"
_PARTITIONS = """
SELECT leaf.relname, pg_get_expr(leaf.relpartbound, leaf.oid)
FROM pg_inherits JOIN pg_class AS leaf ON leaf.oid = inhrelid
WHERE inhparent = '{table}'::regclass
"""
_SEQUENCE = "SELECT pg_get_serial_sequence('{table}', 'id')"


@frozen_dataclass
class QueueTable:
    """One of the tables, and until when its rows are needed."""

    table: Table
    time: str
    """The column with the time of a row."""
    kept_seconds: float
    """How old the newest row of a week is when the week may be dropped."""
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
        """Put the name of the table into a statement."""
        return statement.format(table=self.name)


QUEUE_TABLES = (
    QueueTable(inbox, "received_at", INBOX_SECONDS, str(is_unanswered)),
    QueueTable(outbox, "started_at", OUTBOX_SECONDS, str(is_unsent)),
)


@frozen_dataclass
class IdRange:
    """A partition."""

    name: str
    start: int
    """Its smallest id; 0: all smaller ones."""
    end: int
    """The smallest id that it does not have."""


def is_partitioned(connection: Connection, queue: QueueTable) -> bool:
    """Whether the table has partitions; one of an earlier version has none at first."""
    return bool(scalar(connection, queue.sql(_IS_PARTITIONED)))


def read_partitions(connection: Connection, queue: QueueTable) -> Sequence[IdRange]:
    """Return all partitions, the oldest first."""
    found = []
    for name, bounds in connection.exec_driver_sql(queue.sql(_PARTITIONS)):
        for start, end in _BOUNDS.findall(bounds):
            found.append(IdRange(name, 0 if start == "MINVALUE" else int(start), int(end)))
    return sorted(found, key=lambda one: one.end)


def sequence_of(connection: Connection, queue: QueueTable) -> str:
    """Return the name of the sequence that gives the ids."""
    name: str = connection.exec_driver_sql(queue.sql(_SEQUENCE)).scalar_one()
    return name


def last_id(connection: Connection, queue: QueueTable) -> int:
    """Return the newest id that was given."""
    return int(scalar(connection, f"SELECT last_value FROM {sequence_of(connection, queue)}"))  # noqa: S608


def end_of_range(number: int) -> int:
    """Return the smallest id that is not of the same week."""
    return (number // RANGE + 1) * RANGE


def attach(connection: Connection, queue: QueueTable, name: str, start: int, end: int) -> None:
    """Make a partition of this name, for the ids from `start` to before `end`."""
    execute(
        connection,
        f"CREATE TABLE {name} (LIKE {queue.name} INCLUDING DEFAULTS INCLUDING STORAGE, "
        f"UNIQUE ({queue.unique_columns}))",
    )
    give_to_owner(connection, name, queue.name)
    bounds = f"FOR VALUES FROM ({start}) TO ({end})"
    execute(connection, f"ALTER TABLE {queue.name} ATTACH PARTITION {name} {bounds}")
