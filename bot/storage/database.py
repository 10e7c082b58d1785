"""One database, SQLite or PostgreSQL, behind two verbs: read and write.

A unit of work is a plain function of a connection. On SQLite one writer runs the units that
arrive together in one transaction (group commit): a commit costs an fsync, so that twenty
messages cost about what one does.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from bot.errors import SettingsError, StoreError, TroupeError

T = TypeVar("T")
Unit = Callable[[Connection], T]

MIGRATIONS = Path(__file__).parents[2] / "migrations"
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # an acknowledged message survives a power cut
    "PRAGMA busy_timeout=5000",
    "PRAGMA foreign_keys=ON",
)
_MOST_UNITS_IN_A_COMMIT = 200


class Database:
    """Read with `read`, change with `write`; both raise `StoreError` when the store fails."""

    def __init__(self, writer: AsyncEngine, reader: AsyncEngine) -> None:
        self._writer = writer
        self._reader = reader
        self._queue: asyncio.Queue[tuple[Unit[Any], asyncio.Future[Any]]] = asyncio.Queue()

    @property
    def is_sqlite(self) -> bool:
        return self._writer.dialect.name == "sqlite"

    async def read(self, unit: Unit[T]) -> T:
        try:
            async with self._reader.connect() as connection:
                return await connection.run_sync(unit)
        except (SQLAlchemyError, OSError) as error:
            raise translate(error) from error

    async def write(self, unit: Unit[T]) -> T:
        """Run the unit in a transaction and commit; it may be run twice, so it only uses SQL."""
        if not self.is_sqlite:
            return await self._commit(unit)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((unit, done))
        return await done

    async def migrate(self) -> None:
        """Bring the tables to the newest form; does nothing when they have it."""
        await self._commit(_upgrade)

    async def write_queued(self) -> None:
        """Be the one writer of an SQLite file; runs until cancelled."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty() and len(batch) < _MOST_UNITS_IN_A_COMMIT:
                batch.append(self._queue.get_nowait())
            try:
                results = await self._commit(lambda c: [unit(c) for unit, _ in batch])  # noqa: B023
            except TroupeError as error:
                await self._commit_apart(batch, error)
            else:
                for (_, done), result in zip(batch, results, strict=True):
                    if not done.done():
                        done.set_result(result)

    async def _commit_apart(
        self, batch: list[tuple[Unit[Any], asyncio.Future[Any]]], error: TroupeError
    ) -> None:
        """One unit of a batch failed and undid it all: give each its own transaction."""
        for unit, done in batch:
            try:
                result = error if len(batch) == 1 else await self._commit(unit)
            except TroupeError as own:
                result = own
            if done.done():
                continue
            if isinstance(result, TroupeError):
                done.set_exception(result)
            else:
                done.set_result(result)

    async def _commit(self, unit: Unit[T]) -> T:
        try:
            async with self._writer.begin() as connection:
                return await connection.run_sync(unit)
        except (SQLAlchemyError, OSError) as error:
            raise translate(error) from error


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """Open a database, bring its tables up to date, and close it when the block ends.

    Raises:
        SettingsError: this is no address of a database.
        StoreError: it cannot be opened; the text says where it is and what to look at.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingsError(
            "TROUPE_DATABASE_URL is no database address; it looks like "
            "postgresql+asyncpg://user@host/name"
        ) from None
    if parsed.drivername == "sqlite+aiosqlite":
        writer = create_async_engine(url, pool_size=1, max_overflow=0)
        reader = create_async_engine(url, pool_size=4, max_overflow=0)
        event.listen(writer.sync_engine, "connect", _prepare_sqlite)
        event.listen(reader.sync_engine, "connect", _prepare_sqlite)
        # With a plain BEGIN two read-then-write transactions lose an update or fail at once.
        event.listen(writer.sync_engine, "begin", _begin_immediate)
    elif parsed.drivername == "postgresql+asyncpg":
        writer = reader = create_async_engine(url, pool_size=16, max_overflow=16)
    else:
        raise SettingsError(
            f"TROUPE_DATABASE_URL: {parsed.drivername!r} is not supported; "
            "use postgresql+asyncpg or sqlite+aiosqlite"
        )
    database = Database(writer, reader)
    queue = asyncio.create_task(database.write_queued(), name="database writer")
    try:
        try:
            await database.migrate()
        except StoreError as error:
            raise StoreError(f"{error}; {_remedy(parsed)}") from error
        yield database
    finally:
        queue.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await queue
        await writer.dispose()
        await reader.dispose()


def translate(error: SQLAlchemyError | OSError) -> StoreError:
    """Say what the database said in one line, without the statement and its values."""
    origin = getattr(error, "orig", None) or error
    return StoreError(f"the database failed: {str(origin).strip() or type(origin).__name__}")


def _remedy(url: URL) -> str:
    if url.drivername == "sqlite+aiosqlite":
        return f"make room for {url.database}, or set TROUPE_DATA_DIR to another disk"
    return f"is it up, and is TROUPE_DATABASE_URL right? ({url.render_as_string()})"


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _upgrade(connection: Connection) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _prepare_sqlite(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
