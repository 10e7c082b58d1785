"""Connection pools that run units of work; the one for SQLite runs them in threads.

SQLite has no network to wait for, so a unit runs in one thread from its first statement to its
commit. An asynchronous driver would switch threads for every call of the cursor: about 75 times a
message, which cost more than the SQL itself.
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
"""A function that runs statements on a connection, in one transaction if it writes."""

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # an acknowledged message survives a power cut
    "PRAGMA busy_timeout=5000",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",  # deleted text is overwritten, not only unlinked
)
_READER_THREADS = 4


class ConnectionPool(Protocol):
    """Runs units of work; errors of the driver are raised unchanged."""

    async def read(self, unit: UnitOfWork[T]) -> T: ...

    async def commit(self, unit: UnitOfWork[T]) -> T:
        """Run the unit in its own transaction and commit it."""
        ...

    async def close(self) -> None: ...


class SqliteThreadPool(ConnectionPool):
    """One thread that writes and a few that read."""

    def __init__(self, url: URL) -> None:
        self._write_engine = _create_sqlite_engine(url, 1)
        self._read_engine = _create_sqlite_engine(url, _READER_THREADS)
        # With a plain BEGIN, two transactions that read and then write lose an update or fail.
        event.listen(self._write_engine, "begin", _begin_immediate)
        self._write_threads = ThreadPoolExecutor(1, "database writer")
        self._read_threads = ThreadPoolExecutor(_READER_THREADS, "database reader")

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._read_threads, self._read, unit
        )

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._write_threads, self._commit, unit
        )

    @override
    async def close(self) -> None:
        for threads, engine in (
            (self._write_threads, self._write_engine),
            (self._read_threads, self._read_engine),
        ):
            await asyncio.to_thread(threads.shutdown)
            engine.dispose()

    def _read(self, unit: UnitOfWork[T]) -> T:
        with self._read_engine.connect() as connection:
            return unit(connection)

    def _commit(self, unit: UnitOfWork[T]) -> T:
        with self._write_engine.begin() as connection:
            return unit(connection)


def _create_sqlite_engine(url: URL, connections: int) -> Engine:
    engine = create_engine(url, pool_size=connections, max_overflow=0)
    event.listen(engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # BEGIN is emitted explicitly
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
