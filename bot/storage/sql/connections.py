"""How work gets its connection: a writer thread on SQLite, the event loop on PostgreSQL.

SQLite has no network to wait for, so work runs in a thread from its first statement to its commit.
An asynchronous driver would change threads for every call of the cursor: some 75 times a message,
which cost more than all the SQL.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool
from typing_extensions import override

from bot.runtime.wake_ups import wake_ups
from bot.storage.data_dir import close_to_others
from bot.storage.encryption.codec import TextCodec
from bot.storage.encryption.column_types import attach_codec
from bot.storage.engine.sqlite_writer import SqliteWriter
from bot.storage.engine.statements import DialectName, StartUnit

T = TypeVar("T")
UnitOfWork = Callable[[Connection], T]

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # an acknowledged message survives a power cut
    "PRAGMA busy_timeout=5000",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",  # deleted content is overwritten, not only unlinked
)
_SQLITE_READERS = 4


class ConnectionPool(Protocol):
    """Runs units of work; what the driver raises goes through as it is."""

    dialect: DialectName

    async def run(self, start: StartUnit[T]) -> T:
        """Run a unit of queries on the driver itself, and commit it."""
        ...

    async def read(self, unit: UnitOfWork[T]) -> T:
        """Run a function that only reads."""
        ...

    async def commit(self, unit: UnitOfWork[T]) -> T:
        """Run a function in a transaction of its own and commit it."""
        ...

    async def maintain(self, unit: UnitOfWork[T]) -> T:
        """As `commit`, however long a statement takes."""
        return await self.commit(unit)

    async def close(self) -> None: ...


class SqliteThreadPool(ConnectionPool):
    """One thread that writes, some that read."""

    dialect: DialectName = "sqlite"

    def __init__(self, url: URL, codec: TextCodec | None = None) -> None:
        self._codec = codec or TextCodec()
        self._file = url.database or ":memory:"
        if self._file != ":memory:":
            _close_to_others(Path(self._file))
        self._reader = create_engine(url, pool_size=_SQLITE_READERS, max_overflow=0)
        attach_codec(self._reader, self._codec)
        event.listen(self._reader, "connect", _prepare)
        self._reading = ThreadPoolExecutor(_SQLITE_READERS, "sqlite reader")
        self._writer = SqliteWriter(self._open, self._codec)
        self._engines: dict[int, Engine] = {}

    @override
    def run(self, start: StartUnit[T]) -> Coroutine[Any, Any, T]:
        return self._writer.run(start)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        found = await asyncio.get_running_loop().run_in_executor(self._reading, self._read, unit)
        await wake_ups().turn()
        return found

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await self._writer.commit(lambda connection: self._with_core(connection, unit))

    @override
    async def close(self) -> None:
        await self._writer.close()
        await asyncio.to_thread(self._reading.shutdown)
        self._reader.dispose()

    def _read(self, unit: UnitOfWork[T]) -> T:
        with self._reader.connect() as connection:
            return unit(connection)

    def _open(self) -> sqlite3.Connection:
        # The thread that opens it is the only one that uses it, but for the last close.
        connection = sqlite3.connect(self._file, check_same_thread=False)
        _prepare(connection)
        return connection

    def _with_core(self, connection: sqlite3.Connection, unit: UnitOfWork[T]) -> T:
        """Run a function of SQLAlchemy's inside the transaction that is open on the driver."""
        engine = self._engines.get(id(connection))
        if engine is None:
            engine = self._engines[id(connection)] = _borrowing(connection)
            attach_codec(engine, self._codec)
        with engine.connect() as borrowed:
            return unit(borrowed)


def _close_to_others(file: Path) -> None:
    """Create the database for its owner only; the log beside it takes over its mode."""
    with contextlib.suppress(OSError):  # opening it says what is wrong
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        for one in (file, *file.parent.glob(f"{file.name}-*")):
            close_to_others(one, 0o600)


def _borrowing(connection: sqlite3.Connection) -> Engine:
    """An engine over one connection that leaves beginning and ending to the writer."""
    engine = create_engine(
        "sqlite://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
    )
    for name in ("do_begin", "do_commit", "do_rollback"):
        setattr(engine.dialect, name, _leave)
    return engine


def _leave(_connection: object) -> None:
    """Do nothing: the writer's thread begins and ends the transaction."""


def _to_text(stored: bytes) -> str:
    """Decode a text: one that is not UTF-8 fails no statement, which may read other rows too."""
    return stored.decode(errors="replace")


def _prepare(connection: Any, _entry: ConnectionPoolEntry | None = None) -> None:
    connection.isolation_level = None  # BEGIN is ours to say
    connection.text_factory = _to_text
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()
