"""PostgreSQL: units on asyncpg itself, all else through SQLAlchemy; at most 8 connections.

Loaded only where a PostgreSQL is set: SQLAlchemy's asynchronous engines bring its whole ORM along.
"""

from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine
from typing_extensions import override

from bot.storage.engine.asyncpg_pool import COMMAND_SECONDS, CONNECT_SECONDS, AsyncpgPool
from bot.storage.engine.statements import StartUnit
from bot.storage.sql.connections import ConnectionPool, UnitOfWork

T = TypeVar("T")
_CORE_CONNECTIONS = 2


class PostgresPool(ConnectionPool):
    """Connections to one PostgreSQL; `?pgbouncer=true` in the URL: through a transaction pooler."""

    def __init__(self, url: URL) -> None:
        behind_pgbouncer = url.query.get("pgbouncer") in {"true", "1", "yes"}
        url = url.difference_update_query(["pgbouncer"])
        dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._pool = AsyncpgPool(dsn, behind_pgbouncer=behind_pgbouncer)
        options: dict[str, Any] = {"timeout": CONNECT_SECONDS, "command_timeout": COMMAND_SECONDS}
        if behind_pgbouncer:
            options |= {
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"troupe_{uuid4()}",
            }
        self._engine = create_async_engine(
            url, pool_size=_CORE_CONNECTIONS, max_overflow=0, connect_args=options
        )

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self._pool.run(start)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        async with self._engine.connect() as connection:
            return await connection.run_sync(unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(unit)

    @override
    async def close(self) -> None:
        await self._engine.dispose()
        await self._pool.close()
