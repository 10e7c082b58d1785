"""A message that kills the process is set aside; its neighbours are answered and not blamed."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.child_launcher import running_launcher
from tests.e2e.crash_points import FATAL_WORD
from tests.e2e.loopback_platforms import LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import CheckResult, check_transcripts
from tests.postgres import create_postgres_database
from tests.valkey import run_valkey

pytestmark = [pytest.mark.service, pytest.mark.timeout(400)]
_NOTICE = "crashed the service repeatedly"
_OWN_DEATHS = 3
_MAX_SHARED_DEATHS = 6
"""Two before anything is a suspect, and some more while suspects are told apart."""


@pytest_asyncio.fixture
async def platforms() -> AsyncIterator[LoopbackPlatforms]:
    async with running_platforms() as both:
        yield both


@pytest_asyncio.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as answering:
        answering.chunk_delays = (0.05, 0.1, 0.3)
        yield answering


@pytest_asyncio.fixture(params=["embedded", "two_processes"])
async def services(
    request: pytest.FixtureRequest,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    tmp_path: Path,
) -> AsyncIterator[Sequence[ServiceProcess]]:
    """One process with SQLite; or two with a PostgreSQL and a Valkey, one for each platform."""
    async with contextlib.AsyncExitStack() as stack:
        installed = [
            ServiceProcess(
                tmp_path / name,
                platforms,
                model,
                await stack.enter_async_context(running_launcher()),
            )
            for name in ("first", "second")[: 1 if request.param == "embedded" else 2]
        ]
        if len(installed) > 1:
            url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
            valkey = await stack.enter_async_context(run_valkey(tmp_path))
            shared = {"TROUPE_DATABASE_URL": url, "TROUPE_REDIS_URL": valkey}
            for service, unused in zip(installed, ("DISCORD", "TELEGRAM"), strict=True):
                service.settings |= shared
                del service.settings[f"TROUPE_{unused}__TOKEN"]
        for service in installed:
            stack.push_async_callback(service.kill)
        yield installed


def _notices(platforms: LoopbackPlatforms) -> list[str]:
    return [post.conversation for post in platforms.messages() if _NOTICE in post.text]


def _check(platforms: LoopbackPlatforms) -> CheckResult:
    return check_transcripts(post for post in platforms.messages() if _NOTICE not in post.text)


def _operator_lines(services: Sequence[ServiceProcess]) -> list[str]:
    lines = [line for one in services for line in one.log.read_text().splitlines()]
    return [line for line in lines if "set_aside" in line]


async def test_fatal_message_is_set_aside_and_its_fifty_neighbours_are_answered(
    services: Sequence[ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    fatal = platforms.telegram_dm()
    neighbours = [platforms.telegram_group() for _ in range(30)]
    neighbours += [platforms.channel() for _ in range(20)]
    names = (f"{number:04x}" for number in itertools.count())
    for service in services:
        await service.start_with_crash_point("never", 1, "fatal_message")
        await service.wait_until_ready(60)
    for neighbour in neighbours:
        neighbour.ask(next(names))
    fatal.say(f"{FATAL_WORD}!", 0)
    deaths = 0
    async with asyncio.timeout(360):
        while not (_notices(platforms) and _check(platforms).is_clean):
            for service in services:
                if await service.exits_within(0.1):
                    deaths += 1
                    assert deaths <= _OWN_DEATHS + _MAX_SHARED_DEATHS, "it was not set aside"
                    await service.start_with_crash_point("never", 1, "fatal_message")
                    neighbours[deaths].ask(next(names))
    for service in services:
        assert await service.stop() == 0
    assert _notices(platforms) == [fatal.name]
    assert len(_operator_lines(services)) == 1
    assert _check(platforms).questions == len(neighbours) + deaths
    assert deaths >= _OWN_DEATHS
    print(f"{deaths} deaths")  # noqa: T201
