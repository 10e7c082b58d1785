"""Two processes of one bot on one PostgreSQL: one receives, both work, and a standby takes over."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until
from tests.postgres import create_postgres_database

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Pair:
    """Two processes with the same tokens; the first one receives."""

    first: ServiceProcess
    second: ServiceProcess


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    postgres_folder: str,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Pair]:
    url = await create_postgres_database(postgres_folder)
    async with AsyncExitStack() as stack:
        services = []
        for name in ("first", "second"):
            service = ServiceProcess(tmp_path_factory.mktemp(name), platforms, model)
            service.settings["TROUPE_DATABASE_URL"] = url
            await service.start()
            stack.push_async_callback(service.kill)
            await service.wait_until_ready()
            services.append(service)
        yield Pair(*services)


async def answer_everywhere(platforms: LoopbackPlatforms, names: str) -> None:
    """Ask in a Telegram group and a Discord channel; wait for one answer to each."""
    asked: list[tuple[Conversation, list[str]]] = []
    for conversation in (platforms.telegram_group(), platforms.channel()):
        for name in names:
            conversation.ask(f"5a7{name}")
        asked.append((conversation, [expected_answer(f"T5a7{name}:12") for name in names]))
    for conversation, expected in asked:
        await wait_until(
            lambda which=conversation, texts=expected: platforms.bot_texts(which) == texts  # type: ignore[misc]
        )


async def test_one_process_receives_and_a_killed_one_is_replaced(
    pair: Pair, platforms: LoopbackPlatforms
) -> None:
    refused = [call for call in platforms.telegram.log if call["status"] == 409]
    await answer_everywhere(platforms, "012")
    assert "standing_by" in pair.second.output()
    sessions = [one for one in platforms.discord.sessions.values() if one.ws is not None]
    assert len(sessions) == 1

    await pair.first.kill()
    await answer_everywhere(platforms, "345")
    assert "role_taken_over" in pair.second.output()

    await pair.first.start()
    await pair.first.wait_until_ready()
    assert await pair.second.stop() == 0
    await answer_everywhere(platforms, "678")
    assert [call for call in platforms.telegram.log if call["status"] == 409] == refused
