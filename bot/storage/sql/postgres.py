"""PostgreSQL: units on asyncpg itself, all else through SQLAlchemy; at most 8 connections.

One more is open while tables are upgraded.

Loaded only where a PostgreSQL is set: SQLAlchemy's asynchronous engines bring its whole ORM along.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
from sqlalchemy import URL, Connection, NullPool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from typing_extensions import override

from bot.storage.encryption.codec import TextCodec
from bot.storage.encryption.column_types import attach_codec
from bot.storage.engine.asyncpg_pool import FAILURES, AsyncpgPool, connect_options
from bot.storage.engine.failures import to_store_error
from bot.storage.engine.functions import install
from bot.storage.engine.password_file import take_password_file
from bot.storage.engine.statements import DialectName, StartUnit
from bot.storage.sql.connections import ConnectionPool, UnitOfWork
from bot.storage.units.functions import FUNCTIONS

T = TypeVar("T")
_CORE_CONNECTIONS = 2


class PostgresPool(ConnectionPool):
    """Connections to one PostgreSQL; `?pgbouncer=true` in the URL: through a transaction pooler."""

    dialect: DialectName = "postgresql"

    def __init__(self, url: URL, codec: TextCodec | None = None) -> None:
        behind_pgbouncer = url.query.get("pgbouncer") in {"true", "1", "yes"}
        url, password = take_password_file(url.difference_update_query(["pgbouncer"]))
        dsn = to_dsn(url)
        self._pool = AsyncpgPool(dsn, codec, behind_pgbouncer=behind_pgbouncer, password=password)
        limits = connect_options(behind_pgbouncer=behind_pgbouncer, password=password)
        self._engine = _make_engine(
            dsn, limits, codec, behind_pgbouncer, pool_size=_CORE_CONNECTIONS, max_overflow=0
        )
        patient = {**limits, "command_timeout": None}
        self._maintaining = _make_engine(dsn, patient, codec, behind_pgbouncer, poolclass=NullPool)
        # A function that only reads needs no BEGIN and no ROLLBACK: two round trips less. But a
        # transaction pooler may change the server between preparing a statement and running it.
        self._reading = (
            self._engine
            if behind_pgbouncer
            else self._engine.execution_options(isolation_level="AUTOCOMMIT")
        )

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self._pool.run(start)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await _translated(self._read(unit))

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await _translated(self._commit(unit))

    @override
    async def maintain(self, unit: UnitOfWork[T]) -> T:
        return await _translated(self._maintain(unit))

    @override
    async def close(self) -> None:
        await self._engine.dispose()
        await self._pool.close()

    async def _read(self, unit: UnitOfWork[T]) -> T:
        async with self._reading.connect() as connection:
            return await connection.run_sync(unit)

    async def _commit(self, unit: UnitOfWork[T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(unit)

    async def _maintain(self, unit: UnitOfWork[T]) -> T:
        async with self._maintaining.begin() as connection:
            await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            return await connection.run_sync(unit)


def _make_engine(
    dsn: str,
    limits: Mapping[str, Any],
    codec: TextCodec | None,
    behind_pgbouncer: bool,
    **pool: Any,
) -> AsyncEngine:
    async def connect(**_options: Any) -> asyncpg.Connection:
        return await asyncpg.connect(dsn, **limits)

    # asyncpg reads the address itself: SQLAlchemy knows neither sslmode nor several hosts.
    options: dict[str, Any] = {"async_creator_fn": connect}
    if behind_pgbouncer:
        options |= {
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"troupe_{uuid4()}",
        }
    engine = create_async_engine("postgresql+asyncpg://", connect_args=options, **pool)
    attach_codec(engine.sync_engine, codec or TextCodec())
    return engine


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


async def _translated(work: Awaitable[T]) -> T:
    """Wait for some work; SQLAlchemy does not translate what asyncpg raises while it connects."""
    try:
        return await work
    except FAILURES as error:
        raise to_store_error(error) from None
