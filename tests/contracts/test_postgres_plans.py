"""Test that PostgreSQL scans no table that has 1,000,000 turns or 100,000 open rows.

The server counts the rows that a step reads, including those read inside database functions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from typing_extensions import override

from bot.runtime.clock import SystemClock
from bot.storage.codec import TextCodec
from bot.storage.database import Database
from bot.storage.retention import delete_expired
from bot.storage.sqlite import ConnectionPool, UnitOfWork
from bot.storage.statements import DialectName, Query, Rows, StartUnit
from tests.postgres import create_postgres_database
from tests.support.chat_steps import OVER_ALL_ROWS, STEPS, Chat
from tests.turn.whole_chat import use_whole_chat

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

T = TypeVar("T")
_READ_PER_MESSAGE = 40
"""The maximum number of rows that a step may read for one message."""
_EXPIRED = 700  # in full_postgres.sql
_SMALL = {"node", "pause", "role_lease"}
"""Tables without an index, which have few rows: one for each process, pause or job."""

_FILL = Path(__file__).with_name("full_postgres.sql")
_COUNTS = """
SELECT relname, seq_scan, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
FROM pg_stat_xact_user_tables
"""


class OneConnection(ConnectionPool):
    """A pool that runs all units of work in one transaction of one connection."""

    dialect: DialectName = "postgresql"

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._free = asyncio.Lock()

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self.read(lambda connection: _run(connection, start))

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        async with self._free:
            return await self._connection.run_sync(unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await self.read(unit)

    @override
    async def close(self) -> None:
        """Do nothing, because the test closes the connection."""


async def measured(
    database: Database, work: Callable[[], Awaitable[object]]
) -> tuple[set[str], int, object]:
    """Run `work`; return the scanned tables, the number of rows read, and the result."""
    before = await database.read(_counts)
    value = await work()
    after = await database.read(_counts)
    rows = sum(read - before.get(table, (0, 0))[1] for table, (_, read) in after.items())
    scans = {table for table, (n, _) in after.items() if n > before.get(table, (0, 0))[0]}
    return scans, rows, value


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def full_url(postgres_folder: str) -> AsyncIterator[str]:
    url = await create_postgres_database(postgres_folder)
    async with _transaction(url) as connection:
        await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        for statement in _FILL.read_text().split(";\n"):
            await connection.exec_driver_sql(statement)
        await connection.commit()
    yield url


@pytest_asyncio.fixture(loop_scope="module")
async def full(full_url: str) -> AsyncIterator[Database]:
    async with _transaction(full_url) as connection:
        yield Database(OneConnection(connection))


@pytest.mark.parametrize("step", sorted(STEPS.keys() - OVER_ALL_ROWS))
async def test_no_message_processing_step_scans_a_table(full: Database, step: str) -> None:
    chat = Chat(full)
    await chat.open()
    scanned, rows, _ = await measured(full, lambda: STEPS[step](chat))
    assert scanned == set()
    assert rows <= _READ_PER_MESSAGE


async def test_no_action_in_a_chat_scans_a_table(full: Database) -> None:
    scanned, _, _ = await measured(full, lambda: use_whole_chat(full))
    assert scanned <= _SMALL


async def test_retention_reads_little_more_than_it_deletes(full: Database) -> None:
    scanned, rows, deleted = await measured(full, lambda: delete_expired(full, SystemClock(), 14))
    assert deleted == 4 * _EXPIRED
    assert scanned <= _SMALL
    assert rows < 20 * _EXPIRED


def _counts(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return the numbers of scans and of rows read in this transaction, by table."""
    rows = connection.exec_driver_sql(_COUNTS).all()
    return {table: (scans, read) for table, scans, read in rows}


def _run(connection: Connection, start: StartUnit[T]) -> T:
    unit, rows = start(), None
    while True:
        try:
            query = unit.send(rows) if rows is not None else next(unit)
        except StopIteration as ended:
            value: T = ended.value
            return value
        rows = _rows_of(connection, query)


def _rows_of(connection: Connection, query: Query) -> Rows:
    sql = query.statement.compile_for("postgresql")
    found: Rows = ()
    for values in query.value_rows or (query.values,):
        result = connection.exec_driver_sql(sql.text, tuple(sql.arguments(values, TextCodec())))
        found = result.fetchall() if result.returns_rows else ()
    return found


@asynccontextmanager
async def _transaction(url: str) -> AsyncIterator[AsyncConnection]:
    """Open a connection whose changes are rolled back, unless the block commits them."""
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()
