"""What a process may take of PostgreSQL: seconds for each wait, and connections."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Connection

from bot.errors import StoreError
from bot.storage.database import open_database, parse_url
from bot.storage.postgres import to_dsn
from bot.storage.statements import Statement, Unit
from tests.postgres import create_postgres_database
from tests.support.store import answer_in

pytestmark = [pytest.mark.service, pytest.mark.timeout(120)]

_MAX_CONNECTIONS = 8
_LOCK = "SELECT key FROM lane FOR UPDATE"
_SLEEP = "SELECT pg_sleep(300)"
_COUNT_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


@pytest.fixture
async def url(postgres_folder: str) -> str:
    return await create_postgres_database(postgres_folder)


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A server that accepts connections and never says anything."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read()

    with tempfile.TemporaryDirectory(prefix="troupe-pg-") as folder:
        async with await asyncio.start_unix_server(serve, Path(folder) / ".s.PGSQL.5432"):
            yield folder
            for writer in writers:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Connect beside the process under test."""
    connection = await asyncpg.connect(to_dsn(parse_url(url)))
    try:
        yield connection
    finally:
        await connection.close()


async def fail(work: Awaitable[object], reason: str | None = None) -> None:
    with pytest.raises(StoreError, match=reason):
        await work


def running(sql: str) -> Unit[None]:
    yield Statement(sql).query()


async def test_server_that_never_answers_is_given_up() -> None:
    async with silent_server() as folder:
        opening = open_database(f"postgresql+asyncpg://postgres@/t?host={folder}")
        await fail(opening.__aenter__(), "TROUPE_DATABASE_URL")


async def test_statement_that_takes_too_long_is_given_up(url: str) -> None:
    def sleep(connection: Connection) -> None:
        connection.exec_driver_sql(_SLEEP)

    async with open_database(url) as database, asyncio.TaskGroup() as group:
        for work in (
            *(database.run(lambda: running(_SLEEP)), database.read(sleep)),
            database.write(sleep),
        ):
            group.create_task(fail(work))


async def test_unit_waits_for_a_lock_no_longer_than_its_limit(url: str) -> None:
    async with open_database(url) as database, connected(url) as other:
        await answer_in(database, 1)
        async with other.transaction():
            await other.execute(_LOCK)
            await fail(database.run(lambda: running(_LOCK)), "lock timeout")


async def test_process_has_at_most_eight_connections_under_load(url: str) -> None:
    counts = [0]
    async with (
        open_database(url) as database,
        connected(url) as watcher,
        asyncio.TaskGroup() as group,
    ):
        works = [group.create_task(answer_in(database, number)) for number in range(100)]
        works += [
            group.create_task(database.run_reading(lambda: running("SELECT pg_sleep(0.01)")))
            for _ in range(100)
        ]
        while not all(one.done() for one in works):
            counts.append(await watcher.fetchval(_COUNT_OTHERS))
    assert max(counts) == _MAX_CONNECTIONS
