"""A console on a database of its own, asked by a client that a test logs in."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from bot.chat.access import ApiToken, Scope
from bot.console.login import make_login_link, new_api_token, token_digest
from bot.console.operation import Installation
from bot.console.routes import (
    RouteGroup,
)
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from bot.service.console import make_console
from bot.settings import ConsoleSettings
from bot.storage.database import Database, open_database
from bot.storage.dead_letters import DeadLetters
from bot.storage.operation import NodeRegistry, Pauses, SqlMessageNotes
from bot.storage.tokens import ConsoleTokens
from tests.fakes import FakeClock

Client = TestClient[web.Request, web.Application]


@dataclass
class ConsoleUnderTest:
    """A console that listens, and what it stores."""

    client: Client
    tokens: ConsoleTokens
    clock: FakeClock
    database: Database

    @property
    def origin(self) -> str:
        return str(self.client.make_url("/")).rstrip("/")

    async def login_token(self) -> str:
        link = await make_login_link(self.tokens, self.clock, self.origin)
        return link.partition("#")[2]

    async def log_in(self) -> aiohttp.ClientResponse:
        """Exchange a one-time token for a session, which the client keeps as a cookie."""
        return await self.send_token(await self.login_token())

    async def send_token(self, token: str) -> aiohttp.ClientResponse:
        return await self.client.post(
            "/login",
            data={"token": token},
            headers={"Origin": self.origin},
            allow_redirects=False,
        )

    async def bearer(self, *scopes: Scope) -> dict[str, str]:
        """Return the headers of a new token for the API."""
        token = new_api_token()
        name = "-".join(scopes) or "none"
        new = ApiToken(name, frozenset(scopes), self.clock.now())
        await self.tokens.add_api_token(token_digest(token), new)
        return {"Authorization": f"Bearer {token}"}


MakeParts = Callable[[Database], list[RouteGroup]]


@pytest.fixture
def console_settings() -> ConsoleSettings:
    return ConsoleSettings(port=0)


@pytest.fixture
def make_parts() -> MakeParts:
    """Return what makes the pages beside those that every console has."""
    return lambda _database: []


@pytest.fixture
async def console(
    tmp_path: Path, console_settings: ConsoleSettings, make_parts: MakeParts
) -> AsyncIterator[ConsoleUnderTest]:
    clock = FakeClock()
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as database:
        tokens = ConsoleTokens(database, clock)
        made = make_console(
            console_settings,
            database,
            tokens,
            InProcessRateLimits(clock),
            clock,
            make_parts(database),
        )
        app = web.Application()
        made.add_routes(app)
        async with TestClient(TestServer(app), cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            yield ConsoleUnderTest(client, tokens, clock, database)


def installation(database: Database) -> Installation:
    """What the page of the operation reads beside the queues."""
    clock = SystemClock()
    return Installation(
        NodeRegistry(database, clock),
        Pauses(database, clock),
        DeadLetters(database, clock),
        SqlMessageNotes(database, clock),
    )
