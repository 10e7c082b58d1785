"""PostgreSQL: units on at most 8 connections of asyncpg; tables and copies through SQLAlchemy.

Loaded only where a PostgreSQL is set: SQLAlchemy's asynchronous engines bring its whole ORM along.
"""

import contextlib
import getpass
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
import structlog
from sqlalchemy import URL, Connection, NullPool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from typing_extensions import override

from bot.errors import SettingsError
from bot.storage.codec import TextCodec
from bot.storage.column_types import attach_codec
from bot.storage.functions import FUNCTIONS, install
from bot.storage.sqlite import ConnectionPool, UnitOfWork
from bot.storage.statements import (
    DialectName,
    Query,
    Rows,
    StartUnit,
    Unit,
    decoded,
    to_store_error,
)
from bot.telemetry.secret_masker import mask_from_now_on

_OPTION = "passfile"
_PORT = "5432"
_LINE = re.compile(r"(?!#)" + r"((?:\\.|[^:\\])*):" * 4 + r"(.*)")
_ESCAPED = re.compile(r"\\(.)")
_log = structlog.get_logger(__name__)


class PostgresPasswordFile:
    """Returns the password for one server when asyncpg connects.

    Args:
        file: one line a password, `host:port:database:user:password`; the first that fits counts.
        wanted: the fields of each host of the address but the password.
    """

    def __init__(self, file: Path, wanted: Sequence[tuple[str, ...]]) -> None:
        """Read the file once.

        Raises:
            SettingsError: it cannot be read, or no line fits.
        """
        self._file = file
        self._wanted = wanted
        self._password = self._read()

    def __call__(self) -> str:
        """Return the password; what was read before while the file is being replaced."""
        try:
            self._password = self._read()
        except SettingsError as error:
            _log.warning("secret_file_not_read", reason=str(error))
        return self._password

    def _read(self) -> str:
        try:
            found = map(_LINE.fullmatch, self._file.read_text("utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SettingsError(
                f"the password file {self._file} cannot be read: {reason}"
            ) from None
        lines = [[_ESCAPED.sub(r"\1", one) for one in line.groups()] for line in found if line]
        for wanted in self._wanted:
            for *given, password in lines:
                if all(each in {"*", one} for each, one in zip(given, wanted, strict=True)):
                    mask_from_now_on([password])
                    return password
        searched = " or ".join(":".join(one) for one in self._wanted)
        raise SettingsError(f"no line of the password file {self._file} is for {searched}")


def take_password_file(url: URL) -> tuple[URL, PostgresPasswordFile | None]:
    """Take `?passfile=FILE` out of an address; without it, use what libpq would.

    Raises:
        SettingsError: the file that the address names cannot be read, or has no fitting line.
    """
    given = url.query.get(_OPTION)
    url = url.difference_update_query([_OPTION])
    environment = os.environ  # noqa: TID251 # of libpq, not of Troupe
    if url.password or "password" in url.query or "PGPASSWORD" in environment:
        return url, None
    if given is not None:
        return url, PostgresPasswordFile(Path(str(given)), list(_wanted(url)))
    file = Path(environment.get("PGPASSFILE") or Path.home() / ".pgpass")
    if not file.is_file():
        return url, None
    try:
        return url, PostgresPasswordFile(file, list(_wanted(url)))
    except SettingsError as error:  # the server may want none
        _log.info("password_file_not_used", reason=str(error))
        return url, None


def _wanted(url: URL) -> Iterator[tuple[str, ...]]:
    """Return what the lines for each host of an address begin with."""
    given = url.query.get("host", url.host or "localhost")
    hosts = given.split(",") if isinstance(given, str) else given
    ports = str(url.query.get("port", url.port or _PORT)).split(",")
    user = str(url.username or url.query.get("user") or getpass.getuser())
    database = str(url.database or url.query.get("dbname", user))
    for number, each in enumerate(hosts):
        host, _, port = each.rpartition(":") if re.search(r"[^:]:\d+$", each) else (each, "", "")
        port = port or ports[min(number, len(ports) - 1)]
        yield host.strip("[]"), port, database, user
        if host.startswith("/"):
            yield "localhost", port, database, user


T = TypeVar("T")
MAX_CONNECTIONS = 8
CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 20.0
_CANCEL_SECONDS = 2.0
"""How long a server may take to cancel a statement."""
_CLOSE_SECONDS = 2.0
"""How long it may take to end a connection."""
_SERVER_LIMITS = {
    "statement_timeout": "20s",
    "lock_timeout": "5s",
    # a stopped process must not hold a row's lock for ever
    "idle_in_transaction_session_timeout": "10s",
}
_SET_LIMITS = "; ".join(f"SET LOCAL {name} = '{limit}'" for name, limit in _SERVER_LIMITS.items())

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The last attempt, if the server ends a connection in the middle of a statement."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """Closes soon even if the server hangs, since connections are closed one by one."""

    @override
    async def close(self, *, timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):  # then it is aborted
            await super().close(timeout=timeout or _CLOSE_SECONDS)


def connect_options(
    *, behind_pgbouncer: bool, password: Callable[[], str] | None = None
) -> dict[str, Any]:
    """Return the options of asyncpg besides the address.

    A pooler in transaction mode refuses settings at connect, and would hand a prepared statement to
    another client. The password is asked for at each connect.
    """
    limits: dict[str, Any] = {
        "timeout": CONNECT_SECONDS,
        "command_timeout": COMMAND_SECONDS,
        "connection_class": _Connection,
        "password": password,
    }
    if behind_pgbouncer:
        return {**limits, "statement_cache_size": 0}
    return {**limits, "server_settings": {**_SERVER_LIMITS, "application_name": "troupe"}}


class AsyncpgPool:
    """Runs units in transactions of a small pool.

    Args:
        dsn: `postgresql://user@host1:5432,host2:5432/name?target_session_attrs=primary`.
        codec: encodes the texts of units; None: none is encrypted.
        behind_pgbouncer: the address is that of a pooler in transaction mode.
        password: returns the password for a new connection; None: it is in the address.
    """

    def __init__(
        self,
        dsn: str,
        codec: TextCodec | None = None,
        *,
        behind_pgbouncer: bool = False,
        password: Callable[[], str] | None = None,
    ) -> None:
        self._codec = codec or TextCodec()
        self._behind_pgbouncer = behind_pgbouncer
        self._pool = asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=MAX_CONNECTIONS,
            reset=_keep,
            **connect_options(behind_pgbouncer=behind_pgbouncer, password=password),
        )
        self._opened = False

    async def run(self, start: StartUnit[T]) -> T:
        """Run a unit in a transaction and commit it.

        Raises:
            StoreError: the server refused it; nothing of the unit was written.
            OSError: the server is away.
            TimeoutError: it took too long; whether it was committed is not known.
        """
        if not self._opened:
            await self._pool
            self._opened = True
        try:
            async with self._acquired() as connection:
                unit = start()
                try:
                    return await self._run(connection, unit, next(unit))
                except StopIteration as ended:
                    value: T = ended.value
                    return value
                except asyncpg.InternalClientError:
                    connection.terminate()  # asyncpg has lost track of what the server is doing
                    raise
                finally:
                    unit.close()
        except FAILURES as error:
            raise to_store_error(error) from None

    @contextlib.asynccontextmanager
    async def _acquired(self) -> AsyncIterator[Any]:
        """Lend a connection, and close it if the server takes too long to cancel a statement.

        asyncpg alone would wait for that as long as for the statement: for a server that stands
        still, another 20 s.
        """
        connection = await self._pool.acquire()
        try:
            yield connection
        finally:
            with contextlib.suppress(TimeoutError):  # asyncpg has closed it
                await self._pool.release(connection, timeout=_CANCEL_SECONDS)

    async def _run(self, connection: Any, unit: Unit[T], query: Query) -> T:
        if query.is_whole_unit and not self._behind_pgbouncer:
            return await _finish(connection, unit, query, self._codec)
        async with connection.transaction():
            if self._behind_pgbouncer:
                await connection.execute(_SET_LIMITS)
            return await _finish(connection, unit, query, self._codec)

    async def close(self) -> None:
        if self._opened:
            await self._pool.close()


async def _keep(_connection: object) -> None:
    """Skip asyncpg's reset of a connection, a round trip: units change no session state."""


async def _finish(connection: Any, unit: Unit[T], query: Query, codec: TextCodec) -> T:
    """Run a unit from its first query to its end."""
    try:
        while True:
            query = unit.send(await _rows_of(connection, query, codec))
    except StopIteration as ended:
        value: T = ended.value
        return value


async def _rows_of(connection: Any, query: Query, codec: TextCodec) -> Rows:
    sql = query.statement.compiled("postgresql")
    if query.many:
        rows = [sql.arguments(values, codec) for values in query.many]
        await connection.executemany(sql.text, rows)
        return ()
    found: Any = await connection.fetch(sql.text, *sql.arguments(query.values, codec))
    return decoded(found, tuple(found[0].keys()), codec) if found else found


class PostgresPool(ConnectionPool):
    """Connections to one PostgreSQL; `?pgbouncer=true` in the URL: through a transaction pooler."""

    dialect: DialectName = "postgresql"

    def __init__(self, url: URL, codec: TextCodec | None = None) -> None:
        behind_pgbouncer = url.query.get("pgbouncer") in {"true", "1", "yes"}
        url, password = take_password_file(url.difference_update_query(["pgbouncer"]))
        dsn = to_dsn(url)
        self._pool = AsyncpgPool(dsn, codec, behind_pgbouncer=behind_pgbouncer, password=password)
        limits = connect_options(behind_pgbouncer=behind_pgbouncer, password=password)
        self._engine = _make_engine(dsn, limits, codec, behind_pgbouncer)
        patient = {**limits, "command_timeout": None}
        self._maintaining = _make_engine(dsn, patient, codec, behind_pgbouncer)

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self._pool.run(start)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await self.commit(unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await _run_in(self._engine, unit)

    @override
    async def maintain(self, unit: UnitOfWork[T]) -> T:
        def without_timeout(connection: Connection) -> T:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            return unit(connection)

        return await _run_in(self._maintaining, without_timeout)

    @override
    async def close(self) -> None:
        await self._pool.close()


def _make_engine(
    dsn: str, limits: Mapping[str, Any], codec: TextCodec | None, behind_pgbouncer: bool
) -> AsyncEngine:
    """Make an engine that opens a connection for each function: few run once a service works."""

    async def connect(**_options: Any) -> asyncpg.Connection:
        return await asyncpg.connect(dsn, **limits)

    # asyncpg reads the address itself: SQLAlchemy knows neither sslmode nor several hosts.
    options: dict[str, Any] = {"async_creator_fn": connect}
    if behind_pgbouncer:
        options |= {
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"troupe_{uuid4()}",
        }
    engine = create_async_engine("postgresql+asyncpg://", connect_args=options, poolclass=NullPool)
    attach_codec(engine.sync_engine, codec or TextCodec())
    return engine


async def _run_in(engine: AsyncEngine, unit: UnitOfWork[T]) -> T:
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(unit)
    except FAILURES as error:  # SQLAlchemy does not translate what it raises while it connects
        raise to_store_error(error) from None


def install_functions(connection: Connection) -> None:
    """Create the functions of the units, as far as the database does not have them."""
    install(connection, FUNCTIONS)


def to_dsn(url: URL) -> str:
    """Return a URL as asyncpg and libpq read it.

    Several hosts are one `host` of the query, and SQLAlchemy's `ssl` is called `sslmode`.
    """
    query = {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in url.query.items()
    }
    if "ssl" in query:
        mode = query.pop("ssl")
        query.setdefault("sslmode", "require" if mode == "true" else mode)
    dsn = url.set(drivername="postgresql", query=query)
    return dsn.render_as_string(hide_password=False)
