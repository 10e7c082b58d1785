"""A database, SQLite or PostgreSQL, that runs units of work: reads and writes.

On SQLite a single writer runs all units that are queued in one transaction (group commit). A commit
costs an fsync, so twenty messages cost about as much as one.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Iterator
from importlib import import_module  # noqa: TID251 # modules with heavy imports that few runs need
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import structlog
from sqlalchemy import Connection, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bot.errors import SettingsError, StoreError
from bot.storage.engine.statements import DialectName, StartUnit
from bot.storage.sql.connections import ConnectionPool, SqliteThreadPool, UnitOfWork
from bot.storage.sql.tables import NEWEST_REVISION, create_tables

T = TypeVar("T")

_log = structlog.get_logger(__name__)
_CHECKPOINT_ATTEMPTS = 5
"""Each waits as long as SQLite waits for a lock."""


class Database:
    """Run units of queries with `run`; `read` and `write` take functions of SQLAlchemy's.

    All raise `StoreError` when the store fails. Whatever writes may be run twice, so it only uses
    SQL.
    """

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections

    @property
    def dialect(self) -> DialectName:
        return self._connections.dialect

    @property
    def is_sqlite(self) -> bool:
        return self.dialect == "sqlite"

    async def run(self, start: StartUnit[T]) -> T:
        """Run a unit of queries in a transaction and commit it."""
        return await _translated(self._connections.run(start))

    async def read(self, unit: UnitOfWork[T]) -> T:
        """Run a function that only reads."""
        return await _translated(self._connections.read(unit))

    async def write(self, unit: UnitOfWork[T]) -> T:
        """Run a function in a transaction and commit it."""
        return await _translated(self._connections.commit(unit))

    async def ping(self) -> None:
        """Ask the database whether it is there; raises `StoreError`."""
        await self.read(lambda connection: connection.execute(select(1)).scalar())

    async def truncate_log(self) -> None:
        """Remove deleted text from SQLite's write-ahead log, which keeps old pages.

        PostgreSQL does so by itself in time (autovacuum).
        """
        if not self.is_sqlite:
            return
        for _ in range(_CHECKPOINT_ATTEMPTS):
            if not await self.read(_checkpoint):
                return
        _log.warning("log_not_truncated", reason="a reader keeps the write-ahead log busy")

    async def migrate(self) -> None:
        """Upgrade the tables to the newest revision, unless they have it.

        On PostgreSQL, create the functions that do a step of a message in one round trip, too.
        """
        if await self.read(_current_revision) != NEWEST_REVISION and not (
            self.is_sqlite and await self.write(create_tables)
        ):
            await self.write(import_module("bot.storage.sql.migrations").upgrade)
        if not self.is_sqlite:
            await self.write(import_module("bot.storage.sql.postgres").install_functions)


@contextlib.asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """Open a database, upgrade its tables, and close it when the block ends.

    Raises:
        SettingsError: The URL is not a database URL, or a newer Troupe created the tables.
        StoreError: The database cannot be opened; the text names it and the remedy.
    """
    async with _connect(url) as database:
        with _remedy_added(url):
            await database.migrate()
        yield database


@contextlib.asynccontextmanager
async def open_as_it_is(url: str) -> AsyncIterator[Database]:
    """Open a database without upgrading its tables; raises as `open_database`."""
    async with _connect(url) as database:
        with _remedy_added(url):
            await database.read(_current_revision)
        yield database


async def read_revision(url: str) -> str | None:
    """Return the revision of the tables, None if there are none; raises as `open_database`."""
    if not database_exists(url):
        return None
    async with open_as_it_is(url) as database:
        return await database.read(_current_revision)


@contextlib.asynccontextmanager
async def _connect(url: str) -> AsyncIterator[Database]:
    try:
        parsed = parse_url(url)
    except (ArgumentError, ValueError):
        raise SettingsError(
            "TROUPE_DATABASE_URL is not a database URL; it looks like "
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
    try:
        yield Database(connections)
    finally:
        await connections.close()


def database_exists(url: str) -> bool:
    """Tell whether a database exists; `open_database` would create a new SQLite file."""
    file = sqlite_file(url)
    return file is None or file.is_file()


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite database, None for another one."""
    parsed = parse_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def parse_url(url: str) -> URL:
    """Parse a database URL; several hosts become one `host` of its query.

    SQLAlchemy reads no `//user@host1:5432,host2:5432/name`.
    """
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    if "," not in hosts:
        return make_url(url)
    joint = "&" if "?" in path else "?"
    return make_url(f"{scheme}://{credentials}{at}/{path}{joint}host={quote(hosts)}")


async def _translated(work: Awaitable[T]) -> T:
    try:
        return await work
    except (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError) as error:
        raise translate(error) from error


def translate(error: Exception) -> StoreError:
    """Make an error of one line from the driver's, without the statement and its values."""
    origin = getattr(error, "orig", None) or error
    return StoreError(f"the database failed: {str(origin).strip() or type(origin).__name__}")


@contextlib.contextmanager
def _remedy_added(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{error}; {_remedy(parse_url(url))}") from error


def _remedy(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"free disk space for {url.database}, or set TROUPE_DATA_DIR to another disk"
    return f"is it running, and is TROUPE_DATABASE_URL right? ({url.render_as_string()})"


def _checkpoint(connection: Connection) -> bool:
    """Write SQLite's log back and truncate it; return True if a reader prevented that."""
    busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
    return bool(busy)


def _current_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version")
    return found.scalar_one_or_none()
