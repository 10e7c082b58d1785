"""`troupe pause`, `resume`, `nodes` and `dead-letters` beside the processes of an installation."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from bot.storage.coordination.embedded_valkey import run_embedded_valkey
from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until
from tests.postgres import create_postgres_database

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_NOTICE = "⏸ I am paused at the moment."


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["one", "two"])
async def processes(
    request: pytest.FixtureRequest,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[list[ServiceProcess]]:
    """One process on SQLite; or two on PostgreSQL, which hear of each other over Valkey."""
    settings = {}
    async with AsyncExitStack() as stack:
        if request.param == "two":
            postgres = request.getfixturevalue("postgres_folder")
            folder = tmp_path_factory.mktemp("valkey")
            settings["TROUPE_DATABASE_URL"] = await create_postgres_database(postgres)
            settings["TROUPE_REDIS_URL"] = await stack.enter_async_context(
                run_embedded_valkey(folder)
            )
        started = []
        for number in range(2 if settings else 1):
            folder = tmp_path_factory.mktemp(f"process{number}")
            service = ServiceProcess(Path(folder), platforms, model)
            service.settings |= settings
            await service.start()
            stack.push_async_callback(service.stop)
            await service.wait_until_ready()
            started.append(service)
        yield started


def has(platforms: LoopbackPlatforms, where: Conversation, *expected: str) -> bool:
    """Return whether the bot wrote exactly this: the beginnings of texts."""
    texts = platforms.bot_texts(where)
    return len(texts) == len(expected) and all(
        text.startswith(one) for text, one in zip(texts, expected, strict=True)
    )


@pytest.mark.timeout(300)
async def test_pause_holds_answers_back_tells_once_and_loses_nothing(
    processes: list[ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    operator = processes[-1]
    group, other = platforms.telegram_group(), platforms.channel()
    group.ask("6a0")
    await wait_until(lambda: has(platforms, group, expected_answer("T6a0:12")))

    assert await operator.run_command("pause", "--platform", "telegram")
    for service in processes:
        await wait_until(lambda one=service: "answering_paused" in one.output())  # type: ignore[misc]
    group.ask("6a1")
    group.ask("6a2")
    other.ask("6b0")
    await wait_until(lambda: has(platforms, other, expected_answer("T6b0:12")))
    await wait_until(lambda: has(platforms, group, expected_answer("T6a0:12"), _NOTICE))

    lines = (await operator.run_command("jobs")).splitlines()
    assert any(line.split()[:4] == ["conversations", "that", "wait", "1"] for line in lines), lines

    assert await operator.run_command("resume", "--platform", "telegram")
    expected = ["T6a0:12", "T6a1:12", "T6a2:12"]
    first, *rest = map(expected_answer, expected)
    await wait_until(lambda: has(platforms, group, first, _NOTICE, *rest))


async def test_every_process_is_listed_and_none_that_ended(
    processes: list[ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    _, *lines = (await processes[0].run_command("nodes")).splitlines()
    assert len(lines) == len(processes)
    assert all("gateway,worker,sender,console" in line for line in lines)
    assert not any("silent" in line for line in lines)
    if len(processes) > 1:
        assert await processes[-1].stop() == 0
        _, *lines = (await processes[0].run_command("nodes")).splitlines()
        assert len(lines) == len(processes) - 1
