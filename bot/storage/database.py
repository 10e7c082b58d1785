"""Open a database, SQLite or PostgreSQL, upgrade its tables, and run units of work.

While processes are upgraded one by one, two versions share the tables, so an upgrade only adds
tables and columns (CONTRIBUTING.md). An upgrade records the oldest supported revision; an older
version keeps running, and can restart, if it has at least that revision.
"""

import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module  # noqa: TID251 # modules with heavy imports that few runs need
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import structlog
from sqlalchemy import Connection, MetaData, String, Table, delete, insert, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.schema import Column

from bot.errors import SettingsError, StoreError, Undecodable, UnknownEncryptionKey
from bot.extras import import_extra
from bot.ports import Clock
from bot.runtime.addresses import require_escaped_password
from bot.storage.codec import PassThroughCodec, TextCodec, TextEncryption
from bot.storage.column_types import list_encryptable_columns
from bot.storage.sqlite import ConnectionPool, SqliteThreadPool, UnitOfWork
from bot.storage.statements import Rows, StartUnit, Statement, Unit, Values, to_store_error
from bot.storage.tables import metadata, min_code_revision
from bot.value_class import value_class

T = TypeVar("T")

_log = structlog.get_logger(__name__)
_DATABASE_ERRORS = (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError)
INSUFFICIENT_PRIVILEGE = "42501"
_READ_ONLY_TRANSACTION = "25006"
# They show at the start whether the encryption key of recent texts is missing.
_SELECT_NEWEST_TEXTS = [
    Statement(
        f"SELECT {', '.join(one.name for one in columns)} FROM {table.name}"
        f" ORDER BY {', '.join(f'{one.name} DESC' for one in table.primary_key)} LIMIT 1"
    )
    for table in metadata.sorted_tables
    if (columns := list_encryptable_columns(table))
]
_PING_QUERY, _TIME_QUERY = Statement("SELECT 1"), Statement("SELECT :now")
_CHECKPOINT_ATTEMPTS = 5
"""Attempts to truncate the log; each takes up to SQLite's timeout for locks."""


class Database:
    """Runs units of work; `read` and `write` run functions that use SQLAlchemy.

    All methods raise `StoreError` if the database fails. A unit that writes may run twice, so it
    must do nothing but SQL.
    """

    def __init__(self, pool: ConnectionPool, codec: TextCodec | None = None) -> None:
        self._pool = pool
        self.dialect = pool.dialect
        self.is_sqlite = self.dialect == "sqlite"
        self.codec = codec or TextCodec()
        """Encodes the texts of this database."""

    async def run(self, start_unit: StartUnit[T]) -> T:
        """Run a unit of work in a transaction, and commit it."""
        return await _translate_errors(self._pool.run(start_unit))

    async def run_readonly(self, start_unit: StartUnit[T]) -> T:
        """Run a unit of work that only reads."""
        return await _translate_errors(self._pool.run_readonly(start_unit))

    async def read(self, unit: UnitOfWork[T]) -> T:
        """Run a SQLAlchemy function that only reads."""
        return await _translate_errors(self._pool.read(unit))

    async def write(self, unit: UnitOfWork[T]) -> T:
        """Run a SQLAlchemy function in a transaction, and commit it."""
        return await _translate_errors(self._pool.commit(unit))

    async def run_maintenance(self, unit: UnitOfWork[T]) -> T:
        """Run like `write`, but without a statement timeout, to change tables."""
        return await _translate_errors(self._pool.run_maintenance(unit))

    async def fetch(self, statement: Statement, **values: object) -> Rows:
        """Return the rows of a single read-only statement."""
        return await self.run_readonly(lambda: _run_statement(statement, values))

    async def execute(self, statement: Statement, **values: object) -> Rows:
        """Run a single statement in a transaction, commit it, and return its rows."""
        return await self.run(lambda: _run_statement(statement, values))

    async def ping(self) -> None:
        """Check that the database responds; raises `StoreError`."""
        await self.fetch(_PING_QUERY)

    async def now(self, clock: Clock) -> float:
        """Return the time used for leases, in Unix seconds; on PostgreSQL, the server's time."""
        [[now]] = await self.fetch(_TIME_QUERY, now=clock.now())
        return float(now)

    async def truncate_log(self) -> None:
        """Erase deleted text from SQLite's write-ahead log; PostgreSQL recycles its own log."""
        if not self.is_sqlite:
            return
        for _ in range(_CHECKPOINT_ATTEMPTS):
            if not await self.read(_fails_to_truncate_log):
                return
        _log.warning("log_not_truncated", reason="a reader keeps the write-ahead log busy")

    async def check_keys(self) -> None:
        """Check that the newest texts can be decrypted; raises `SettingsError` if not."""
        try:
            newest = [await self.fetch(one) for one in _SELECT_NEWEST_TEXTS]
        except UnknownEncryptionKey as error:
            raise SettingsError(f"{error}. Nothing was changed") from None
        if any(isinstance(text, Undecodable) for rows in newest for row in rows for text in row):
            _log.warning("not_decodable", what="newest text")

    async def migrate(self) -> None:
        """Upgrade old tables and PostgreSQL's functions; raises `SettingsError` if that fails."""
        revisions = await self.read(read_revisions)
        revisions.check_compatibility()
        if revisions.are_tables_newer:
            _log.info("tables_are_newer", revision=revisions.current, own=NEWEST_REVISION)
        try:
            are_tables_usable = revisions.are_tables_newer or revisions.current == NEWEST_REVISION
            if not (are_tables_usable or (self.is_sqlite and await self.write(create_tables))):
                await self.run_maintenance(_run_migrations)
            if not self.is_sqlite:
                await self.write(import_module("bot.storage.functions").install_postgres_functions)
        except StoreError as error:
            if error.sql_state != INSUFFICIENT_PRIVILEGE:
                raise
            raise SettingsError(
                "the tables must be upgraded, but the role in TROUPE_DATABASE_URL lacks the "
                "permission: run `troupe db upgrade` with the role that owns them"
            ) from error


@value_class
class Moment:
    """The start of a unit of work, by this process's clocks."""

    now: float
    """In Unix seconds; PostgreSQL uses its own clock instead."""
    monotonic: float


def read_clock(clock: Clock) -> Moment:
    return Moment(clock.now(), clock.monotonic())


def _run_statement(statement: Statement, values: Values) -> Unit[Rows]:
    return (yield statement.query_alone(values))


class Store:
    """Base class of stores, runs units of work decorated with `transaction` or `run_readonly`."""

    def __init__(self, database: Database) -> None:
        self._database = database


class ClockStore(Store):
    """Base class of stores that need the time."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database)
        self._clock = clock


AnyStore = TypeVar("AnyStore", bound=Store)
Arguments = ParamSpec("Arguments")


def transaction(
    unit: Callable[Concatenate[AnyStore, Arguments], Unit[T]],
) -> Callable[Concatenate[AnyStore, Arguments], Coroutine[Any, Any, T]]:
    """Turn a unit of work of a store into a method that runs the unit in a transaction."""

    @functools.wraps(unit)
    async def run(self: AnyStore, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        return await self._database.run(lambda: unit(self, *args, **kwargs))

    return run


def run_readonly(
    unit: Callable[Concatenate[AnyStore, Arguments], Unit[T]],
) -> Callable[Concatenate[AnyStore, Arguments], Coroutine[Any, Any, T]]:
    """Turn a read-only unit of work into a method that runs it without blocking writers."""

    @functools.wraps(unit)
    async def run(self: AnyStore, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        return await self._database.run_readonly(lambda: unit(self, *args, **kwargs))

    return run


@contextlib.asynccontextmanager
async def open_database(
    url: str, encryption: TextEncryption | None = None
) -> AsyncIterator[Database]:
    """Open a database, upgrade its tables, and close the database when the block ends.

    Raises `SettingsError` if the URL, the tables' version or the encryption keys are wrong, and
    `StoreError` if the database cannot be opened.
    """
    codec = TextCodec()
    if encryption is not None and (encryption.encrypts_new_texts or encryption.encryption_keys):
        codec = import_extra("bot.storage.fernets", "encryption").FernetCodec(encryption)

    async def migrate_and_check(database: Database) -> None:
        await database.migrate()
        await database.check_keys()

    async with _open_and_prepare(url, codec, migrate_and_check) as database:
        yield database


async def upgrade_tables(url: str) -> None:
    """Upgrade a database's tables. Needs no encryption keys; for errors, see `open_database`."""
    async with _open_and_prepare(url, PassThroughCodec(), Database.migrate):
        pass


@contextlib.asynccontextmanager
async def open_without_decrypting(url: str) -> AsyncIterator[Database]:
    """Open a database without decrypting texts; raise `SettingsError` if its schema is newer."""
    async with _open_and_prepare(url, PassThroughCodec(), Database.migrate) as database:
        if (await database.read(read_revisions)).are_tables_newer:
            raise SettingsError(
                "a newer version of Troupe upgraded the database, and this version would not "
                "copy its new tables and columns: use the newer version"
            )
        yield database


def open_without_migrating(url: str) -> contextlib.AbstractAsyncContextManager[Database]:
    """Open a database without upgrading its tables; raises the same errors as `open_database`."""
    return _open_and_prepare(url, TextCodec(), lambda database: database.read(read_revisions))


async def read_revision(url: str) -> str | None:
    """Return the tables' revision, None if there are no tables; for errors, see `open_database`."""
    if not database_exists(url):
        return None
    async with open_without_migrating(url) as database:
        return (await database.read(read_revisions)).current


@contextlib.asynccontextmanager
async def _open_and_prepare(
    url: str, codec: TextCodec, prepare: Callable[[Database], Awaitable[object]]
) -> AsyncIterator[Database]:
    """Open a database and run `prepare` on it; error messages say what the operator can do."""
    try:
        parsed_url = parse_url(url)
    except (ArgumentError, ValueError):
        raise SettingsError(
            "TROUPE_DATABASE_URL is not a database URL; write it as "
            "postgresql+asyncpg://user@host/name"
        ) from None
    pool: ConnectionPool
    if parsed_url.get_backend_name() == "sqlite":
        pool = SqliteThreadPool(parsed_url.set(drivername="sqlite"), codec)
    elif parsed_url.drivername == "postgresql+asyncpg":
        pool = import_extra("bot.storage.postgres", "PostgreSQL").PostgresPool(parsed_url, codec)
    else:
        raise SettingsError(
            f"TROUPE_DATABASE_URL: {parsed_url.drivername!r} is not supported; "
            "use postgresql+asyncpg or sqlite"
        )
    database = Database(pool, codec)
    try:
        try:
            await prepare(database)
        except StoreError as error:
            raise StoreError(f"{error}; {_suggest_remedy(parsed_url, error.sql_state)}") from error
        yield database
    finally:
        await pool.close()


def database_exists(url: str) -> bool:
    """Return False for a missing SQLite file, which `open_database` would create."""
    file = find_sqlite_file(url)
    return file is None or file.is_file()


def find_sqlite_file(url: str) -> Path | None:
    """Return a SQLite database's file, or None for other databases."""
    parsed_url = parse_url(url)
    return Path(parsed_url.database or "") if parsed_url.get_backend_name() == "sqlite" else None


def parse_url(url: str) -> URL:
    """Parse a database URL, even with several hosts; raises `SettingsError` for a bad password."""
    if not url.startswith("sqlite"):
        try:
            require_escaped_password(url)
        except ValueError as error:
            raise SettingsError(f"TROUPE_DATABASE_URL: {error}") from None
    scheme, _, after_scheme = url.partition("://")
    authority, _, path = after_scheme.partition("/")
    credentials, at_sign, hosts = authority.rpartition("@")
    if "," not in hosts:
        return make_url(url)
    separator = "&" if "?" in path else "?"
    return make_url(f"{scheme}://{credentials}{at_sign}/{path}{separator}host={quote(hosts)}")


async def _translate_errors(work: Awaitable[T]) -> T:
    try:
        return await work
    except _DATABASE_ERRORS as error:
        raise translate_error(error) from None


def translate_error(error: Exception) -> StoreError:
    """Convert a driver's error; raise the result `from None` to hide SQL values in tracebacks."""
    driver_error = getattr(error, "orig", None) or error
    if getattr(driver_error, "sqlstate", None) == _READ_ONLY_TRANSACTION:
        return StoreError(
            "the database is read-only; it may be a standby or still in recovery: "
            "use the primary's address, or end the recovery (`SELECT pg_promote()`)"
        )
    return to_store_error(driver_error)


def _suggest_remedy(url: URL, sql_state: str | None) -> str:
    if url.get_backend_name() == "sqlite":
        return f"free disk space for {url.database}, or set TROUPE_DATA_DIR to another disk"
    address = f"the address in TROUPE_DATABASE_URL or --to ({url.render_as_string()})"
    match sql_state:
        case "3D000":  # no such database
            return f"create it with `createdb {url.database}` as its owner, or correct {address}"
        case "28000" | "28P01":  # no such role, or another password
            return f"correct the user or the password in {address}"
        case _:
            return f"is the database server running, and is {address} right?"


def _fails_to_truncate_log(connection: Connection) -> bool:
    """Write back and truncate SQLite's log; return whether a reader prevented this."""
    is_busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
    return bool(is_busy)


NEWEST_REVISION = "0100"
"""The revision in migrations/ that creates exactly the tables of `bot.storage.tables`."""

MIN_CODE_REVISION = "0100"
"""The oldest revision of code that can use these tables; raise it in incompatible migrations."""

_alembic_version = Table(
    "alembic_version", MetaData(), Column("version_num", String(32), primary_key=True)
)


@dataclass(frozen=True)
class TableRevisions:
    """The tables' current revision, and the minimum revision that can use them; None if unknown."""

    current: str | None
    minimum: str | None

    @property
    def are_tables_newer(self) -> bool:
        """Whether a newer version of Troupe upgraded the tables."""
        return self.current is not None and self.current > NEWEST_REVISION

    def check_compatibility(self) -> None:
        """Raise `SettingsError` if this version of Troupe cannot use the tables."""
        if self.are_tables_newer and (self.minimum is None or self.minimum > NEWEST_REVISION):
            raise SettingsError(
                f"a newer version of Troupe upgraded the database to revision {self.current}, "
                f"which needs {self.minimum or self.current} or newer; this version "
                f"has {NEWEST_REVISION}: start the newer version"
            )


def read_revisions(connection: Connection) -> TableRevisions:
    inspector = inspect(connection)
    if not inspector.has_table(_alembic_version.name):
        return TableRevisions(None, None)
    revision = connection.execute(select(_alembic_version.c.version_num)).scalar_one_or_none()
    minimum = None
    if inspector.has_table(min_code_revision.name):
        minimum = connection.execute(select(min_code_revision.c.oldest)).scalar_one_or_none()
    return TableRevisions(revision, minimum)


def _run_migrations(connection: Connection) -> None:
    import_module("bot.storage.migrations").upgrade(connection)
    _write_min_code_revision(connection)


def _write_min_code_revision(connection: Connection) -> None:
    """Record the oldest revision that can use the tables, at the end of an upgrade."""
    connection.execute(delete(min_code_revision))
    connection.execute(insert(min_code_revision).values(oldest=MIN_CODE_REVISION))


def create_tables(connection: Connection) -> bool:
    """Create the tables in a new SQLite file without Alembic; return False if it has tables."""
    if inspect(connection).get_table_names():
        return False
    metadata.create_all(connection, checkfirst=False)
    _alembic_version.create(connection, checkfirst=False)
    connection.execute(insert(_alembic_version).values(version_num=NEWEST_REVISION))
    _write_min_code_revision(connection)
    return True
