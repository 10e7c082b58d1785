"""Test the webhook over a PostgreSQL that stands still: it is told soon, and nothing is lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from pydantic import SecretStr
from sqlalchemy import func, select

from bot.console.server import serve_http, webhook_routes
from bot.intake import InboxIntake
from bot.ports import Intake
from bot.runtime.clock import SystemClock
from bot.settings import ConsoleSettings
from bot.storage.database import Database, open_database
from bot.storage.inbox import SqlInbox
from bot.storage.tables import conversation, inbox
from tests.platforms.telegram.conftest import Rig
from tests.platforms.telegram.test_webhook import GOOD, HEADER, PATH, SECRET
from tests.postgres import create_postgres_database, frozen_postgres, running_postgres
from tests.waiting import wait_until

pytestmark = pytest.mark.service
BODY = json.dumps(GOOD).encode()


class Store:
    """A server of its own, which may stand still, and what was stored in it."""

    def __init__(self, folder: str, database: Database) -> None:
        self.folder = Path(folder)
        self.database = database
        self.woken: list[str] = []
        self.intake: Intake = InboxIntake(SqlInbox(database, SystemClock()), self._note)

    def _note(self, conversations: Sequence[str]) -> None:
        self.woken.extend(conversations)

    async def states(self) -> Sequence[str]:
        return await self.database.read(lambda c: c.execute(select(inbox.c.state)).scalars().all())

    async def conversations(self) -> int:
        count = select(func.count()).select_from(conversation)
        return await self.database.read(lambda c: c.execute(count).scalar_one())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as folder:
        yield folder


@pytest_asyncio.fixture
async def store(server: str) -> AsyncIterator[Store]:
    url = await create_postgres_database(server)
    async with open_database(url) as database:
        yield Store(server, database)


@asynccontextmanager
async def called(rig: Rig, store: Store) -> AsyncIterator[str]:
    """Serve the webhook of a bot; its calls may take a tenth of a second."""
    secret, url = SecretStr(SECRET), f"http://127.0.0.1:1{PATH}"
    bot = rig.bot(mode="webhook", webhook_url=url, webhook_secret=secret)
    routes = webhook_routes([bot], store.intake, store_seconds=0.1)
    try:
        async with serve_http(ConsoleSettings(port=0), [routes]) as address:
            yield f"{address}{PATH}"
    finally:
        await bot.close()


async def call(address: str, body: bytes = BODY) -> tuple[int, str | None]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(address, data=body, headers={HEADER: SECRET}) as response,
    ):
        return response.status, response.headers.get("Retry-After")


async def call_until_stored(address: str, body: bytes = BODY) -> None:
    """Call again and again, as Telegram does after anything but 200."""
    async with asyncio.timeout(60):
        while (await call(address, body))[0] != HTTPStatus.OK:
            pass


async def test_call_is_answered_while_the_server_stands_still_and_stored_once(
    rig: Rig, store: Store
) -> None:
    async with called(rig, store) as address:
        await call_until_stored(address, BODY.replace(b'"update_id": 7', b'"update_id": 6'))
        await store.database.write(lambda c: c.execute(inbox.delete()))
        with frozen_postgres(store.folder):
            for _ in range(2):
                assert await call(address) == (HTTPStatus.SERVICE_UNAVAILABLE, "5")
        await call_until_stored(address)
        await wait_until(lambda: len(store.woken) > 1)

    assert await store.states() == ["new"], "a repetition is recognised by its key"
    assert await store.conversations() == 1
    assert set(store.woken) == {"telegram:5"}
