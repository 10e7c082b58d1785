"""What the partitions of all tables have in common: weeks, and steps that wait for no lock long."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, text

from bot.errors import StoreError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock
from bot.storage.sql.database import Database

T = TypeVar("T")
DAY = 86_400
WEEK = 7 * DAY
_FIRST_MONDAY = 4 * DAY
"""1970-01-05, in Unix seconds."""
_LOCK_WAIT = "100ms"
_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
_LOCK_NOT_AVAILABLE = "55P03"

_MAY_CHANGE_TABLE = text(
    "SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE') "
    "FROM pg_class WHERE oid = CAST(:name AS regclass)"
)
_OTHER_OWNER = text(
    "SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class "
    "WHERE oid = CAST(:name AS regclass) AND pg_get_userbyid(relowner) <> current_user"
)
_SERVER_TIME = "SELECT extract(epoch FROM clock_timestamp())::float"


@frozen_dataclass
class PartitionChanges:
    """How many partitions were changed in which way."""

    created: int = 0
    dropped: int = 0
    compacted: int = 0
    """Written again without the room that the content of their receipts took."""

    def __add__(self, other: "PartitionChanges") -> "PartitionChanges":
        return PartitionChanges(
            self.created + other.created,
            self.dropped + other.dropped,
            self.compacted + other.compacted,
        )


@frozen_dataclass
class Maintenance:
    """Changes tables that messages use meanwhile.

    A step that needs a lock waits for it only a moment and is tried again: messages that are
    finished meanwhile wait behind it.
    """

    database: Database
    clock: Clock
    now: float
    """In Unix seconds, by the clock that is behind: a wrong one must not drop what is young."""

    async def run(self, unit: Callable[[Connection], T]) -> T:
        """Run a function in a transaction that waits for each lock for 0.1 s at most.

        It is tried five times, with a second between.

        Raises:
            StoreError: the database failed, or others kept the table from being locked.
        """

        def with_lock_timeout(connection: Connection) -> T:
            execute(connection, f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
            return unit(connection)

        attempt = 1
        while True:
            try:
                return await self.database.maintain(with_lock_timeout)
            except StoreError as error:
                if error.sql_state != _LOCK_NOT_AVAILABLE or attempt == _ATTEMPTS:
                    raise
            attempt += 1
            await self.clock.sleep(_PAUSE_SECONDS)

    async def execute(self, statement: str) -> None:
        """Run one statement as `run` does; raises `StoreError`."""
        await self.run(lambda c: execute(c, statement))


async def earlier_time(database: Database, clock: Clock) -> float:
    """Return the time by the clock that is behind: that of the process, or that of the server."""
    return min(clock.now(), await database.read(lambda c: scalar(c, _SERVER_TIME)))


def may_change(connection: Connection, table: str) -> bool:
    """Whether the role of the process owns a table."""
    return bool(connection.execute(_MAY_CHANGE_TABLE, {"name": table}).scalar_one())


def give_to_owner(connection: Connection, partition: str, table: str) -> None:
    """Let a new partition belong to the owner of its table, where another role works for it.

    Else the owner could neither drop the partition nor upgrade the table.
    """
    owner = connection.execute(_OTHER_OWNER, {"name": table}).scalar()
    if owner is not None:
        execute(connection, f"ALTER TABLE {partition} OWNER TO {owner}")


def monday_after(moment: float) -> float:
    """Return the first Monday, 00:00 UTC, after a moment, in Unix seconds."""
    weeks = (moment - _FIRST_MONDAY) // WEEK + 1
    return _FIRST_MONDAY + weeks * WEEK


def execute(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)


def scalar(connection: Connection, query: str) -> float:
    value: float = connection.exec_driver_sql(query).scalar_one()
    return value
