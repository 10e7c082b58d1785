"""A PostgreSQL that stands still, its connections open, keeps nobody who waits no longer."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bot.runtime.clock import SystemClock
from bot.storage.database import open_database
from bot.storage.inbox import SqlInbox
from bot.storage.postgres import COMMAND_SECONDS
from tests.postgres import create_postgres_database, frozen_postgres
from tests.samples import make_incoming

pytestmark = pytest.mark.service


@pytest.fixture
async def server(postgres_folder: str) -> tuple[Path, str]:
    """A server's data folder, and the URL of a database."""
    return Path(postgres_folder), await create_postgres_database(postgres_folder)


async def test_cancelled_statement_ends_before_its_time_limit(server: tuple[Path, str]) -> None:
    data, url = server
    async with open_database(url) as database:
        store = SqlInbox(database, SystemClock())
        await store.receive([make_incoming()], {})
        with frozen_postgres(data):
            waiting = [
                asyncio.create_task(store.receive([make_incoming()], {})),
                asyncio.create_task(database.ping()),
            ]
            await asyncio.wait(waiting, timeout=0.1)
            for task in waiting:
                task.cancel()
            done, _ = await asyncio.wait(waiting, timeout=COMMAND_SECONDS)
            assert done == set(waiting)
            assert all(task.cancelled() for task in waiting)
        await store.receive([make_incoming(key="5:2")], {})


async def test_database_is_closed_while_the_server_stands_still(server: tuple[Path, str]) -> None:
    data, url = server
    async with (
        AsyncExitStack() as stack,
        asyncio.timeout(COMMAND_SECONDS),
        open_database(url) as database,
    ):
        await database.ping()
        await SqlInbox(database, SystemClock()).receive([make_incoming()], {})
        stack.enter_context(frozen_postgres(data))
