"""One database, SQLite or PostgreSQL, behind two verbs: read and write.

A unit of work is a plain function of a connection. On SQLite one writer runs the units that
arrive together in one transaction (group commit): a commit costs an fsync, so that twenty
messages cost about what one does.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from importlib import import_module  # noqa: TID251 # for what few runs need
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bot.errors import SettingsError, StoreError
from bot.runtime.tasks import cancel_and_wait
from bot.storage.sql.connections import ConnectionPool, SqliteThreadPool, UnitOfWork
from bot.storage.sql.tables import NEWEST

T = TypeVar("T")
_Queued = tuple[UnitOfWork[Any], asyncio.Future[Any]]

_log = structlog.get_logger(__name__)
_MOST_UNITS_IN_A_COMMIT = 200
_TRIES_TO_WIPE = 5  # each waits as long as SQLite waits for a lock


class Database:
    """Read with `read`, change with `write`; both raise `StoreError` when the store fails."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._queue: asyncio.Queue[_Queued] = asyncio.Queue()
        self._closed = False

    @property
    def is_sqlite(self) -> bool:
        return isinstance(self._connections, SqliteThreadPool)

    async def read(self, unit: UnitOfWork[T]) -> T:
        try:
            return await self._connections.read(unit)
        except (SQLAlchemyError, OSError) as error:
            raise translate(error) from error

    async def write(self, unit: UnitOfWork[T]) -> T:
        """Run the unit in a transaction and commit; it may be run twice, so it only uses SQL."""
        if not self.is_sqlite:
            return await self._commit(unit)
        if self._closed:
            raise StoreError("the database is closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((unit, done))
        return await done

    async def wipe_traces(self) -> None:
        """Leave nothing of what was deleted in the files of SQLite, whose log keeps old pages.

        PostgreSQL does so by itself, by and by (autovacuum).
        """
        if not self.is_sqlite:
            return
        for _ in range(_TRIES_TO_WIPE):
            if not await self.read(_empty_log):
                return
        _log.warning("traces_left", reason="somebody reads the database all the time")

    async def migrate(self) -> None:
        """Bring the tables to the newest form; does nothing when they have it."""
        if await self.read(_revision) != NEWEST:
            await self._commit(import_module("bot.storage.sql.migrations").upgrade)

    async def write_queued(self) -> None:
        """Be the one writer of an SQLite file; runs until cancelled."""
        batch: list[_Queued] = []
        try:
            while True:
                batch = [await self._queue.get()]
                while not self._queue.empty() and len(batch) < _MOST_UNITS_IN_A_COMMIT:
                    batch.append(self._queue.get_nowait())
                await self._commit_together(batch)
        finally:
            self._closed = True
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            for _, done in batch:
                _fail(done, StoreError("the database was closed before it was written"))

    async def _commit_together(self, batch: list[_Queued]) -> None:
        results = await _ended(self._commit(lambda c: [unit(c) for unit, _ in batch]))
        error = results.exception()
        if error is None:
            for (_, done), result in zip(batch, results.result(), strict=True):
                if not done.done():
                    done.set_result(result)
        elif len(batch) == 1:
            _fail(batch[0][1], error)
        else:  # one unit failed and undid it all: give each its own transaction
            for one in batch:
                await self._commit_together([one])

    async def _commit(self, unit: UnitOfWork[T]) -> T:
        try:
            return await self._connections.commit(unit)
        except (SQLAlchemyError, OSError) as error:
            raise translate(error) from error


@contextlib.asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """Open a database, bring its tables up to date, and close it when the block ends.

    Raises:
        SettingsError: this is no address of a database, or a newer Troupe has made its tables.
        StoreError: it cannot be opened; the text says where it is and what to look at.
    """
    async with _connected(url) as database:
        with _remedy_told(url):
            await database.migrate()
        yield database


async def read_revision(url: str) -> str | None:
    """Return the revision of the tables, None if there are none; raises as `open_database`."""
    if not database_exists(url):
        return None
    async with _connected(url) as database:
        with _remedy_told(url):
            return await database.read(_revision)


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Database]:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingsError(
            "TROUPE_DATABASE_URL is no database address; it looks like "
            "postgresql+asyncpg://user@host/name"
        ) from None
    connections: ConnectionPool
    if parsed.get_backend_name() == "sqlite":
        connections = SqliteThreadPool(parsed.set(drivername="sqlite"))
    elif parsed.drivername == "postgresql+asyncpg":
        connections = import_module("bot.storage.sql.postgres").PostgresPool(parsed)
    else:
        raise SettingsError(
            f"TROUPE_DATABASE_URL: {parsed.drivername!r} is not supported; "
            "use postgresql+asyncpg or sqlite"
        )
    database = Database(connections)
    queue = asyncio.create_task(database.write_queued(), name="database writer")
    try:
        yield database
    finally:
        await cancel_and_wait([queue])
        await connections.close()


def database_exists(url: str) -> bool:
    """Whether there is something to open; else `open_database` would make a new file."""
    parsed = make_url(url)
    return parsed.get_backend_name() != "sqlite" or Path(parsed.database or "").is_file()


async def _ended(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Let something come to its end, good or bad: whoever asked for it is told, not the writer."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await cancel_and_wait([task])
        raise
    return task


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)


def translate(error: SQLAlchemyError | OSError) -> StoreError:
    """Say what the database said in one line, without the statement and its values."""
    origin = getattr(error, "orig", None) or error
    return StoreError(f"the database failed: {str(origin).strip() or type(origin).__name__}")


@contextlib.contextmanager
def _remedy_told(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{error}; {_remedy(make_url(url))}") from error


def _remedy(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"make room for {url.database}, or set TROUPE_DATA_DIR to another disk"
    return f"is it up, and is TROUPE_DATABASE_URL right? ({url.render_as_string()})"


def _empty_log(connection: Connection) -> bool:
    """Write SQLite's log back and cut it off; True when somebody was in the way."""
    busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
    return bool(busy)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    stands_at = connection.exec_driver_sql("SELECT version_num FROM alembic_version")
    return stands_at.scalar_one_or_none()
