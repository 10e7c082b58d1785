"""Processes with different bots on one PostgreSQL: each delivers its own, and nothing is lost."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until
from tests.postgres import create_postgres_database

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_SECOND_TOKEN = "987654321:AAH-" + "y" * 31
_names = (f"{number:04x}" for number in itertools.count(0xD000))


@dataclass
class Fleet:
    """Two Telegram bots in the same chats, a Discord bot, and a process for each of the three."""

    first: LoopbackPlatforms
    """Discord, and Telegram as the first bot sees it."""
    second: LoopbackPlatforms
    """Telegram as the second bot sees it; its chats and message ids are those of the first."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    postgres_folder: str,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Fleet]:
    url = await create_postgres_database(postgres_folder, with_tables=False)
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(running_platforms(_SECOND_TOKEN))

        def install(name: str, server: LoopbackPlatforms, unused: str) -> ServiceProcess:
            folder: Path = tmp_path_factory.mktemp(name)
            service = ServiceProcess(folder, server, model)
            service.settings["TROUPE_DATABASE_URL"] = url
            del service.settings[f"TROUPE_{unused}__TOKEN"]
            return service

        services = [
            install("telegram", platforms, "DISCORD"),
            install("discord", platforms, "TELEGRAM"),
            install("second", second, "DISCORD"),
        ]
        for service in services:  # one after the other: who comes first is the first bot
            await service.start()
            stack.push_async_callback(service.kill)
            await service.wait_until_ready(60)
        yield Fleet(platforms, second)


async def wait_for_texts(
    server: LoopbackPlatforms, conversation: Conversation, expected: Sequence[str]
) -> None:
    """Wait until a bot said exactly this."""
    await wait_until(lambda: server.bot_texts(conversation) == list(expected))


async def test_each_process_delivers_its_own_platform(fleet: Fleet) -> None:
    conversations = [
        *(fleet.first.telegram_group(), fleet.first.channel()),
        *(fleet.first.telegram_dm(), fleet.first.discord_dm()),
    ]
    for conversation in conversations:
        names = [next(_names) for _ in range(3)]
        for name in names:
            conversation.ask(name)
        expected = [expected_answer(f"T{name}:12") for name in names]
        await wait_for_texts(fleet.first, conversation, expected)


async def test_two_bots_in_one_group_both_answer(fleet: Fleet) -> None:
    groups = [(each, each.in_telegram_group(-5000)) for each in (fleet.first, fleet.second)]
    expected = []
    for number in range(3):
        names = [next(_names) for _ in groups]
        for (_, group), name in zip(groups, names, strict=True):
            group.ask(name, who=number % 2)  # with the same chat and message id for both
        expected.append([expected_answer(f"T{name}:12") for name in names])
    for (server, group), answers in zip(groups, zip(*expected, strict=True), strict=True):
        await wait_for_texts(server, group, answers)
