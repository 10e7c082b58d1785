"""One of three providers is dead: every message is answered, and the dead one is left alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

NOTE = "⚠ For the admins here: another model answers in place of tester's own"


class DeadProvider:
    """Accepts connections and ends them without an answer."""

    def __init__(self) -> None:
        self.requests = 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._refuse, "127.0.0.1", 0)

    async def close(self) -> None:
        self._server.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
        writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dead() -> AsyncIterator[DeadProvider]:
    provider = DeadProvider()
    await provider.start()
    yield provider
    await provider.close()


@pytest.mark.parametrize(
    ("conversations", "messages_each"),
    [(4, 15), pytest.param(40, 25, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
async def test_all_messages_are_answered_while_one_of_three_providers_is_dead(
    service: ServiceProcess,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    dead: DeadProvider,
    conversations: int,
    messages_each: int,
) -> None:
    asked_before, refused_before = len(model.requests), dead.requests
    chain = {"provider": "one", "fallbacks": [{"provider": "two"}, {"provider": "three"}]}
    (service.presets / "tester.json").write_text(preset_json("tester", **chain))
    addresses = {"ONE": dead.base, "TWO": model.base, "THREE": model.base}
    settings = {f"TROUPE_PROVIDERS__{name}__BASE_URL": base for name, base in addresses.items()}
    settings |= {f"TROUPE_PROVIDERS__{name}__MODEL": "m" for name in addresses}
    settings |= {f"TROUPE_LIMITS__ANSWERS_PER_{one}": "0" for one in ("PERSON", "CHANNEL")}
    await service.start(**settings)
    await service.wait_until_ready()
    make = (platforms.channel, platforms.telegram_dm, platforms.channel, platforms.telegram_group)
    channels = [make[number % len(make)]() for number in range(conversations)]

    def answers(where: Conversation) -> list[str]:
        return [text for text in platforms.bot_texts(where) if not text.startswith(NOTE)]

    async def talk(number: int, where: Conversation) -> None:
        expected = []
        for message in range(messages_each):
            name = f"{number:x}d{message:02x}"
            where.ask(name, words=1)
            expected.append(expected_answer(f"T{name}:1"))
            await wait_until(lambda: answers(where) == expected, 300)

    async with asyncio.TaskGroup() as group:
        for number, where in enumerate(channels):
            group.create_task(talk(number, where))
    for where in channels:
        notes = [text for text in platforms.bot_texts(where) if text.startswith(NOTE)]
        assert len(notes) == 1, "the admins are told once"
    turns = messages_each * len(channels)
    assert len(model.requests) - asked_before == turns
    assert dead.requests - refused_before <= 1.10 * turns


async def test_operators_are_told_once_in_private_and_nobody_else(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, dead: DeadProvider
) -> None:
    chain = {"provider": "one", "fallbacks": [{"provider": "two"}]}
    (service.presets / "tester.json").write_text(preset_json("tester", **chain))
    settings = {"TROUPE_PROVIDERS__ONE__BASE_URL": dead.base, "TROUPE_PROVIDERS__ONE__MODEL": "m"}
    settings |= {"TROUPE_PROVIDERS__TWO__BASE_URL": model.base, "TROUPE_PROVIDERS__TWO__MODEL": "m"}
    on_discord, on_telegram = platforms.discord_dm(), platforms.telegram_dm()
    if service.is_running:
        await service.stop()
    who = (f"discord:{on_discord.people[0].id}", f"telegram:{on_telegram.people[0]}")
    await service.start(TROUPE_ADMINS=",".join(who), **settings)
    await service.wait_until_ready()
    on_telegram.say("/start", 0)
    await wait_until(lambda: platforms.bot_texts(on_telegram))
    asked = []
    for number, make in enumerate((platforms.channel, platforms.telegram_group) * 2):
        where, name = make(), f"e{number:x}d"
        where.ask(name, words=1)
        asked.append((where, [expected_answer(f"T{name}:1")]))
    for where, expected in asked:
        await wait_until(lambda: platforms.bot_texts(where) == expected)  # noqa: B023

    def notes(private: Conversation) -> list[str]:
        return [text for text in platforms.bot_texts(private) if NOTE in text]

    for private in (on_discord, on_telegram):
        await wait_until(lambda: notes(private))  # noqa: B023
        assert len(notes(private)) == 1
    for where, expected in asked:
        assert platforms.bot_texts(where) == expected, "who asked is not told"
