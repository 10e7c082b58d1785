"""PostgreSQL connections that wait in the event loop.

Imported only where a PostgreSQL database is configured: SQLAlchemy's asynchronous engines import
its whole ORM.
"""

from typing import TypeVar

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine
from typing_extensions import override

from bot.storage.sql.connections import ConnectionPool, UnitOfWork

T = TypeVar("T")


class PostgresPool(ConnectionPool):
    def __init__(self, url: URL) -> None:
        self._engine = create_async_engine(url, pool_size=16, max_overflow=16)

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
