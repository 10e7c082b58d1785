"""Fixtures: a console alone, or with the whole service behind it."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from bot.runtime.in_process import InProcessRateLimits
from bot.service.console import make_console
from bot.settings import ConsoleSettings, Settings
from bot.storage.database import open_database
from bot.storage.tokens import ConsoleTokens
from tests.fakes import FakeClock
from tests.platforms.web.channel import write_settings
from tests.support.console import MARLOWE, NORA, ConsoleUnderTest, MakeParts, Playground, opened


@pytest.fixture
def console_settings() -> ConsoleSettings:
    return ConsoleSettings(port=0)


@pytest.fixture
def make_parts() -> MakeParts:
    """Return a function that makes the extra pages of a test; by default there are none."""
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


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return write_settings(tmp_path, [NORA, MARLOWE])


@pytest.fixture
async def playground(settings: Settings) -> AsyncIterator[Playground]:
    async with opened(settings) as one:
        yield one
