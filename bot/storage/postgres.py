"""PostgreSQL connections: units of work on asyncpg, migrations and copies on SQLAlchemy.

Imported only if needed, because SQLAlchemy's async engines import its whole ORM.
"""

import contextlib
import functools
import getpass
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
from sqlalchemy import URL, Connection, NullPool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from typing_extensions import override

from bot.errors import SettingsError, StoreError
from bot.storage.codec import TextCodec
from bot.storage.column_types import attach_codec
from bot.storage.sqlite import ConnectionPool, UnitOfWork
from bot.storage.statements import (
    DialectName,
    Query,
    Rows,
    StartUnit,
    Unit,
    decode_rows,
    to_store_error,
)
from bot.telemetry.secret_masker import register_secrets

T = TypeVar("T")
MAX_CONNECTIONS = 8
CONNECT_TIMEOUT_SECONDS = 5.0
COMMAND_TIMEOUT_SECONDS = 20.0
_CANCEL_TIMEOUT_SECONDS = 2.0
"""The maximum time for the server to cancel a statement."""
_CLOSE_TIMEOUT_SECONDS = 2.0
"""The maximum time for the server to close a connection."""
_SQL_TIMEOUTS = {
    "statement_timeout": "20s",
    "lock_timeout": "5s",
    # a suspended process must not lock a row forever
    "idle_in_transaction_session_timeout": "10s",
}
_SET_TIMEOUTS = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _SQL_TIMEOUTS.items())

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""asyncpg's errors; `InternalClientError` occurs if the server closes a connection mid-use."""


_HOST_AND_PORT = re.compile(r"(.*?)(?::(\d+))?")
_PASSWORD_LINE = re.compile(r"(?!#)" + r"((?:\\.|[^:\\])*):" * 4 + r"(.*)")
_ESCAPED_CHARACTER = re.compile(r"\\(.)")


class _FastClosingConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that closes quickly even if the server hangs."""

    @override
    async def close(self, *, timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):  # the timeout aborts the connection
            await super().close(timeout=timeout or _CLOSE_TIMEOUT_SECONDS)


class PostgresPool(ConnectionPool):
    """Connections to a PostgreSQL server.

    `?pgbouncer=true` in the URL declares a pooler in transaction mode, which rejects settings on
    connect and would run prepared statements on other connections.
    """

    dialect: DialectName = "postgresql"

    def __init__(self, url: URL, codec: TextCodec | None = None) -> None:
        self._codec = codec or TextCodec()
        self._is_behind_pgbouncer = url.query.get("pgbouncer") in {"true", "1", "yes"}
        file = url.query.get("passfile")
        url = url.difference_update_query(["pgbouncer", "passfile"])
        self._dsn = to_dsn(url)
        self._connect_options: dict[str, Any] = {
            "timeout": CONNECT_TIMEOUT_SECONDS,
            "command_timeout": COMMAND_TIMEOUT_SECONDS,
            "connection_class": _FastClosingConnection,
        }
        if file is not None and not url.password:
            path = Path(str(file))
            read_password(path, url)  # reports mistakes at the start
            self._connect_options["password"] = functools.partial(_reread_password, path, url)
        if self._is_behind_pgbouncer:
            self._connect_options |= {"statement_cache_size": 0}
        else:
            settings = {**_SQL_TIMEOUTS, "application_name": "troupe"}
            self._connect_options |= {"server_settings": settings}
        size: dict[str, Any] = {"min_size": 0, "max_size": MAX_CONNECTIONS, "reset": _skip_reset}
        self._pool = asyncpg.create_pool(self._dsn, **size, **self._connect_options)
        self._is_pool_open = False

    @override
    async def run(self, start_unit: StartUnit[T]) -> T:
        """Run a unit and commit it; after a `TimeoutError`, it may still be committed."""
        if not self._is_pool_open:
            await self._pool
            self._is_pool_open = True
        try:
            async with self._acquire_connection() as connection:
                unit = start_unit()
                try:
                    return await self._run_unit(connection, unit, next(unit))
                except StopIteration as ended:
                    value: T = ended.value
                    return value
                except asyncpg.InternalClientError:
                    connection.terminate()  # asyncpg has lost track of what the server is doing
                    raise
                finally:
                    unit.close()
        except DRIVER_ERRORS as error:
            raise to_store_error(error) from None

    @contextlib.asynccontextmanager
    async def _acquire_connection(self) -> AsyncIterator[Any]:
        """Lend a connection; close it if the server does not cancel a statement in time."""
        connection = await self._pool.acquire()
        try:
            yield connection
        finally:
            with contextlib.suppress(TimeoutError):  # asyncpg has closed the connection
                await self._pool.release(connection, timeout=_CANCEL_TIMEOUT_SECONDS)

    async def _run_unit(self, connection: Any, unit: Unit[T], query: Query) -> T:
        if query.is_only_query_of_unit and not self._is_behind_pgbouncer:
            return await self._run_unit_to_end(connection, unit, query)
        async with connection.transaction():
            if self._is_behind_pgbouncer:
                await connection.execute(_SET_TIMEOUTS)
            return await self._run_unit_to_end(connection, unit, query)

    async def _run_unit_to_end(self, connection: Any, unit: Unit[T], query: Query) -> T:
        try:
            while True:
                query = unit.send(await self._execute_query(connection, query))
        except StopIteration as ended:
            result: T = ended.value
            return result

    async def _execute_query(self, connection: Any, query: Query) -> Rows:
        compiled_sql = query.statement.compile_for("postgresql")
        if query.value_rows:
            rows = [compiled_sql.arguments(values, self._codec) for values in query.value_rows]
            await connection.executemany(compiled_sql.text, rows)
            return ()
        values = compiled_sql.arguments(query.values, self._codec)
        records: Any = await connection.fetch(compiled_sql.text, *values)
        return decode_rows(records, tuple(records[0].keys()), self._codec) if records else records

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await self.commit(unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await self._run_with_engine(self._make_engine(COMMAND_TIMEOUT_SECONDS), unit)

    @override
    async def run_maintenance(self, unit: UnitOfWork[T]) -> T:
        def run_without_timeout(connection: Connection) -> T:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            return unit(connection)

        return await self._run_with_engine(self._make_engine(None), run_without_timeout)

    async def _run_with_engine(self, engine: AsyncEngine, unit: UnitOfWork[T]) -> T:
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(unit)
        except DRIVER_ERRORS as error:  # SQLAlchemy does not convert errors on connect
            raise to_store_error(error) from None

    def _make_engine(self, command_timeout_seconds: float | None) -> AsyncEngine:
        """Return an engine that opens a connection for each use, because it is rarely used."""

        async def connect(**_options: Any) -> asyncpg.Connection:
            options = {**self._connect_options, "command_timeout": command_timeout_seconds}
            return await asyncpg.connect(self._dsn, **options)

        # asyncpg parses the address, because SQLAlchemy supports neither sslmode nor several hosts.
        connect_arguments: dict[str, Any] = {"async_creator_fn": connect}
        if self._is_behind_pgbouncer:
            connect_arguments |= {
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"troupe_{uuid4()}",
            }
        engine = create_async_engine(
            "postgresql+asyncpg://", connect_args=connect_arguments, poolclass=NullPool
        )
        attach_codec(engine.sync_engine, self._codec)
        return engine

    @override
    async def close(self) -> None:
        if self._is_pool_open:
            await self._pool.close()


async def _skip_reset(_connection: object) -> None:
    """Replace asyncpg's reset query, which is not needed: units do not change session state."""


def read_password(file: Path, url: URL) -> str:
    """Return the password from the first matching line of a password file.

    Its lines are `host:port:database:user:password`. asyncpg itself ignores files that a group can
    read, such as secrets in Kubernetes, and does not resolve escapes. Raises `SettingsError` if
    the file cannot be read or no line matches.
    """
    host_option = url.query.get("host", url.host or "localhost")
    hosts = host_option.split(",") if isinstance(host_option, str) else host_option
    host_matches = [one for one in map(_HOST_AND_PORT.fullmatch, hosts) if one]
    host_names = {one[1].strip("[]") for one in host_matches}
    host_names |= {"localhost" for one in host_names if one.startswith("/")}
    ports = {one[2] or str(url.query.get("port", url.port or "5432")) for one in host_matches}
    user = str(url.username or url.query.get("user") or getpass.getuser())
    expected_fields = (host_names, ports, {str(url.database or user)}, {user})
    try:
        lines = map(_PASSWORD_LINE.fullmatch, file.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the password file {file} cannot be read: {error}") from None
    for line in filter(None, lines):
        *fields, password = [_ESCAPED_CHARACTER.sub(r"\1", one) for one in line.groups()]
        if all(one in {"*", *values} for one, values in zip(fields, expected_fields, strict=True)):
            register_secrets([password])
            return password
    expected_line = ":".join(",".join(sorted(one)) for one in expected_fields)
    raise SettingsError(
        f"the password file {file} has no line for {expected_line} "
        "(host:port:database:user); add one"
    )


def _reread_password(file: Path, url: URL) -> str:
    """Read the password for a new connection; raises `StoreError` if the file is missing."""
    try:
        return read_password(file, url)
    except SettingsError as error:
        raise StoreError(str(error)) from None


def to_dsn(url: URL) -> str:
    """Convert a URL to libpq's form: one `host` parameter for all hosts, and `sslmode`."""
    query = {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in url.query.items()
    }
    if "ssl" in query:
        ssl_mode = query.pop("ssl")
        query.setdefault("sslmode", "require" if ssl_mode == "true" else ssl_mode)
    dsn = url.set(drivername="postgresql", query=query)
    return dsn.render_as_string(hide_password=False)
