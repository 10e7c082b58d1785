"""One database, SQLite or PostgreSQL, behind two verbs: read and write.

A unit of work is a plain function of a connection. On SQLite one writer runs the units that
arrive together in one transaction (group commit): a commit costs an fsync, so that twenty
messages cost about what one does.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bot.errors import SettingsError, StoreError, TroupeError
from bot.storage.connections import Connections, PostgresPool, SqliteThreads, Unit

T = TypeVar("T")

MIGRATIONS = Path(__file__).parents[2] / "migrations"
_MOST_UNITS_IN_A_COMMIT = 200


class Database:
    """Read with `read`, change with `write`; both raise `StoreError` when the store fails."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._queue: asyncio.Queue[tuple[Unit[Any], asyncio.Future[Any]]] = asyncio.Queue()

    @property
    def is_sqlite(self) -> bool:
        return isinstance(self._connections, SqliteThreads)

    async def read(self, unit: Unit[T]) -> T:
        try:
            return await self._connections.read(unit)
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
            return await self._connections.commit(unit)
        except (SQLAlchemyError, OSError) as error:
            raise translate(error) from error


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """Open a database, bring its tables up to date, and close it when the block ends."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingsError(
            "TROUPE_DATABASE_URL is no database address; it looks like "
            "postgresql+asyncpg://user@host/name"
        ) from None
    connections: Connections
    if parsed.get_backend_name() == "sqlite":
        connections = SqliteThreads(parsed.set(drivername="sqlite"))
    elif parsed.drivername == "postgresql+asyncpg":
        connections = PostgresPool(parsed)
    else:
        raise SettingsError(
            f"TROUPE_DATABASE_URL: {parsed.drivername!r} is not supported; "
            "use postgresql+asyncpg or sqlite"
        )
    database = Database(connections)
    queue = asyncio.create_task(database.write_queued(), name="database writer")
    try:
        await database.migrate()
        yield database
    finally:
        queue.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await queue
        await connections.close()


def translate(error: SQLAlchemyError | OSError) -> StoreError:
    """Say what the database said in one line, without the statement and its values."""
    origin = getattr(error, "orig", None) or error
    return StoreError(f"the database failed: {str(origin).strip() or type(origin).__name__}")


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _upgrade(connection: Connection) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
