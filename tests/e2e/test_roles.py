"""A gateway, a worker of a pool, a sender and a console as processes; one answer each."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from http import HTTPStatus

import aiohttp
import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import check_transcripts, expected_answer
from tests.e2e.waiting import wait_until
from tests.postgres import create_postgres_database
from tests.valkey import run_valkey

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_ROLES = ("gateway", "worker", "sender", "console")
_NAMES = "01234567"
_STREAMED_WORDS = 60
_ADDRESS = re.compile(r"health at (http://\S+)/readyz")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(
    postgres_folder: str,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Mapping[str, ServiceProcess]]:
    """One process for each role, all with one data directory and one port for the console."""
    model.answers_all = True
    model.chunk_delays = (0.02, *[0.05] * 14, 0.35)  # the last one leads to live edits
    shared = tmp_path_factory.mktemp("shared")
    url = await create_postgres_database(postgres_folder)
    async with AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(run_valkey(shared))
        started = {}
        for role in _ROLES:
            service = ServiceProcess(tmp_path_factory.mktemp(role), platforms, model)
            service.settings |= {
                "TROUPE_DATA_DIR": str(shared / "data"),
                "TROUPE_DATABASE_URL": url,
                "TROUPE_REDIS_URL": valkey,
            }
            service.options = ("--role", role)
            await service.start()
            stack.push_async_callback(service.kill)
            started[role] = service
        for service in started.values():
            await service.wait_until_ready()
        yield started


@pytest.mark.timeout(300)
async def test_roles_answer_once_and_in_order_while_the_worker_is_killed(
    processes: Mapping[str, ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    conversations = [platforms.telegram_group(), platforms.telegram_dm(), platforms.channel()]
    for name in _NAMES:
        for number, one in enumerate(conversations):
            one.ask(f"8{number}{name}0", _STREAMED_WORDS)
        if name == _NAMES[len(_NAMES) // 2]:
            await wait_until(lambda: bool(platforms.bot_texts(conversations[0])))
            await processes["worker"].kill()
            await processes["worker"].start()
        await asyncio.sleep(0.1)

    def last_answers() -> bool:
        ends = [
            expected_answer(f"T8{number}{_NAMES[-1]}0:{_STREAMED_WORDS}")[-20:]
            for number in range(len(conversations))
        ]
        return all(
            any(text.endswith(end) for text in platforms.bot_texts(one)[-1:])
            for one, end in zip(conversations, ends, strict=True)
        )

    await wait_until(last_answers, 120)
    result = check_transcripts(platforms.messages())
    assert result.is_clean, result
    assert result.questions == len(_NAMES) * len(conversations)


async def test_only_the_gateway_connects_and_only_the_worker_asks_the_model(
    processes: Mapping[str, ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    sessions = [one for one in platforms.discord.sessions.values() if one.ws is not None]
    assert len(sessions) == 1
    assert "on telegram as" in processes["gateway"].output()
    for role in ("worker", "sender", "console"):
        assert "on telegram as" not in processes[role].output()


async def test_only_the_console_serves_pages(processes: Mapping[str, ServiceProcess]) -> None:
    async with aiohttp.ClientSession() as session:
        statuses = {}
        for role, service in processes.items():
            [address, *_] = _ADDRESS.findall(service.output())
            async with session.get(f"{address}/login") as response:
                statuses[role] = response.status
    found, absent = HTTPStatus.OK, HTTPStatus.NOT_FOUND
    assert statuses == {**dict.fromkeys(_ROLES, absent), "console": found}
