"""How a unit of work gets its connection: a thread of its own on SQLite, the loop on PostgreSQL.

SQLite has no network to wait for, so a unit runs in a thread from its first statement to its
commit. An asynchronous driver would change threads for every call of the cursor: some 75 times a
message, which cost more than all the SQL.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry
from typing_extensions import override

T = TypeVar("T")
UnitOfWork = Callable[[Connection], T]

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # an acknowledged message survives a power cut
    "PRAGMA busy_timeout=5000",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",  # what is forgotten is overwritten, not only let go
)
_SQLITE_READERS = 4


class ConnectionPool(Protocol):
    """Runs units of work; what the driver raises goes through as it is."""

    async def read(self, unit: UnitOfWork[T]) -> T: ...

    async def commit(self, unit: UnitOfWork[T]) -> T:
        """Run the unit in a transaction of its own and commit it."""
        ...

    async def close(self) -> None: ...


class SqliteThreadPool(ConnectionPool):
    """One thread that writes, some that read."""

    def __init__(self, url: URL) -> None:
        self._writer = _sqlite(url, 1)
        self._reader = _sqlite(url, _SQLITE_READERS)
        # With a plain BEGIN two read-then-write transactions lose an update or fail at once.
        event.listen(self._writer, "begin", _begin_immediate)
        self._writing = ThreadPoolExecutor(1, "database writer")
        self._reading = ThreadPoolExecutor(_SQLITE_READERS, "database reader")

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read, unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writing, self._commit, unit)

    @override
    async def close(self) -> None:
        for threads, engine in ((self._writing, self._writer), (self._reading, self._reader)):
            await asyncio.to_thread(threads.shutdown)
            engine.dispose()

    def _read(self, unit: UnitOfWork[T]) -> T:
        with self._reader.connect() as connection:
            return unit(connection)

    def _commit(self, unit: UnitOfWork[T]) -> T:
        with self._writer.begin() as connection:
            return unit(connection)


def _sqlite(url: URL, connections: int) -> Engine:
    engine = create_engine(url, pool_size=connections, max_overflow=0)
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
