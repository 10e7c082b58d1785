"""Test that a message that kills the process is set aside, and all others are answered."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from tests.postgres import create_postgres_database
from tests.support.chats import Platforms, running_platforms
from tests.support.crash_points import FATAL_WORD
from tests.support.features import GROUPS, ON_THE_WIRES
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.shapes import Installer
from tests.support.transcripts import CheckResult, check_transcripts

pytestmark = ON_THE_WIRES
_NOTICE = "crashed the service repeatedly"
_OWN_DEATHS = 3
_MAX_SHARED_DEATHS = 6
"""Two before there are suspects, and some more until the fatal message is identified."""


@pytest_asyncio.fixture(loop_scope="session")
async def platforms() -> AsyncIterator[Platforms]:
    async with running_platforms() as both:
        yield both


@pytest_asyncio.fixture(loop_scope="session")
async def model() -> AsyncIterator[Model]:
    async with Model() as answering:
        answering.chunk_delays = (0.02, 0.05)  # a slow machine takes longer anyway
        yield answering


@pytest_asyncio.fixture(
    loop_scope="session", params=["embedded", pytest.param("two", marks=pytest.mark.soak)]
)
async def services(
    request: pytest.FixtureRequest, installer: Installer
) -> AsyncIterator[Sequence[Service]]:
    """Return one process on SQLite, or two on PostgreSQL and Valkey, one per platform."""
    if request.param == "embedded":
        async with installer.processes("first") as services:
            yield services
        return
    url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    names = ("first", "second")
    async with installer.processes(*names, database_url=url, with_valkey=True) as services:
        for service, unused in zip(services, ("DISCORD", "TELEGRAM"), strict=True):
            del service.settings[f"TROUPE_{unused}__TOKEN"]
        yield services


def _notices(platforms: Platforms) -> list[str]:
    return [post.conversation for post in platforms.messages() if _NOTICE in post.text]


def _check(platforms: Platforms) -> CheckResult:
    return check_transcripts(post for post in platforms.messages() if _NOTICE not in post.text)


async def test_message_that_kills_the_service_is_set_aside_and_fifty_others_are_answered(
    services: Sequence[Service], platforms: Platforms
) -> None:
    fatal = platforms.telegram_dm()
    neighbours = [platforms.open(kind) for kind in GROUPS for _ in range(25)]
    for service in services:
        await service.start_with_crash_point("never", 1, "fatal_message")
        await service.wait_until_ready()
    for neighbour in neighbours:
        neighbour.ask()
    fatal.say(f"{FATAL_WORD}!")
    deaths = 0
    async with asyncio.timeout(360):
        while not (_notices(platforms) and _check(platforms).is_clean):
            for service in services:
                if await service.exits_within(0.1):
                    deaths += 1
                    assert deaths <= _OWN_DEATHS + _MAX_SHARED_DEATHS, "it was not set aside"
                    await service.start_with_crash_point("never", 1, "fatal_message")
                    neighbours[deaths].ask()
    for service in services:
        assert await service.stop() == 0
    assert _notices(platforms) == [fatal.name]
    lines = [line for one in services for line in one.log.read_text().splitlines()]
    assert sum("set_aside" in line for line in lines) == 1
    assert _check(platforms).questions == len(neighbours) + deaths
    assert deaths >= _OWN_DEATHS
