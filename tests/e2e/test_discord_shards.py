"""Two shards of a bot in two processes: what one had is resumed by the other, nothing is lost."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until
from tests.postgres import create_postgres_database
from tests.rigs.simwire import SimWire

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    postgres_folder: str,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[ServiceProcess, ServiceProcess]]:
    url = await create_postgres_database(postgres_folder)
    async with AsyncExitStack() as stack:
        services = []
        for name in ("first", "second"):
            service = ServiceProcess(tmp_path_factory.mktemp(name), platforms, model)
            service.settings |= {"TROUPE_DATABASE_URL": url, "TROUPE_DISCORD__SHARDS": "2"}
            service.options = ("--platforms", "discord")
            await service.start()
            stack.push_async_callback(service.kill)
            await service.wait_until_ready()
            services.append(service)
        yield services[0], services[1]


def conversations_of_both_shards(platforms: LoopbackPlatforms) -> list[Conversation]:
    """Return a channel in a guild of each shard."""
    guild = platforms.guild
    found: dict[int, Conversation] = {}
    while len(found) < 2:
        shard = (guild.id >> 22) % 2
        if shard not in found:
            platforms.guild = guild
            found[shard] = platforms.channel()
        guild = platforms.discord.guild("Another guild")
        for person in platforms.people:
            platforms.discord.b.add_member(guild.id, person.id, roles=[])
    return [found[0], found[1]]


def connected(wire: SimWire) -> list[tuple[int, int]]:
    return sorted(one.shard for one in wire.sessions.values() if one.ws is not None)


def identifies(wire: SimWire) -> int:
    return sum(name == "<op2" for _, name, _ in wire.events)


def resumes(wire: SimWire) -> int:
    return sum(name == "<op6" for _, name, _ in wire.events)


async def test_shards_move_between_processes_without_an_identify_or_a_lost_message(
    pair: tuple[ServiceProcess, ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    first, second = pair
    wire = platforms.discord
    both = conversations_of_both_shards(platforms)
    asked = 0

    async def ask_and_wait(rounds: int = 3) -> None:
        nonlocal asked
        expected = []
        for _ in range(rounds):
            for conversation in both:
                conversation.ask(f"5b{asked}")
            expected.append(expected_answer(f"T5b{asked}:12"))
            asked += 1
        for conversation in both:
            await wait_until(
                lambda which=conversation: platforms.bot_texts(which)[-rounds:] == expected  # type: ignore[misc]
            )

    await wait_until(lambda: connected(wire) == [(0, 2), (1, 2)])
    await ask_and_wait()
    # The second process has taken over one of the shards of the first.
    await wait_until(lambda: "discord_resuming" in second.output())
    assert identifies(wire) == 2
    await ask_and_wait()

    await first.kill()
    await ask_and_wait()
    assert connected(wire) == [(0, 2), (1, 2)]

    before = resumes(wire)
    await first.start()
    await first.wait_until_ready()
    await wait_until(lambda: resumes(wire) > before)
    await ask_and_wait()

    assert await second.stop() == 0  # a deploy
    await ask_and_wait()
    for conversation in both:
        everything = [expected_answer(f"T5b{number}:12") for number in range(asked)]
        assert platforms.bot_texts(conversation) == everything
    assert identifies(wire) == 2
