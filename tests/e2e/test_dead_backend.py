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

MESSAGES_EACH = 15
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


async def test_all_messages_are_answered_while_one_of_three_providers_is_dead(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, dead: DeadProvider
) -> None:
    chain = {"provider": "one", "fallbacks": [{"provider": "two"}, {"provider": "three"}]}
    (service.presets / "tester.json").write_text(preset_json("tester", **chain))
    addresses = {"ONE": dead.base, "TWO": model.base, "THREE": model.base}
    settings = {f"TROUPE_PROVIDERS__{name}__BASE_URL": base for name, base in addresses.items()}
    settings |= {f"TROUPE_PROVIDERS__{name}__MODEL": "m" for name in addresses}
    await service.start(**settings)
    await service.wait_until_ready()
    channels = [platforms.channel() for _ in range(2)]
    channels += [platforms.telegram_group(), platforms.telegram_dm()]

    def answers(where: Conversation) -> list[str]:
        return [text for text in platforms.bot_texts(where) if not text.startswith(NOTE)]

    async def talk(number: int, where: Conversation) -> None:
        expected = []
        for message in range(MESSAGES_EACH):
            name = f"{number:x}d{message:02x}"
            where.ask(name, words=1)
            expected.append(expected_answer(f"T{name}:1"))
            await wait_until(lambda: answers(where) == expected)

    async with asyncio.TaskGroup() as group:
        for number, where in enumerate(channels):
            group.create_task(talk(number, where))
    for where in channels:
        notes = [text for text in platforms.bot_texts(where) if text.startswith(NOTE)]
        assert len(notes) == 1, "the admins are told once"
    turns = MESSAGES_EACH * len(channels)
    assert len(model.requests) == turns
    assert dead.requests <= 1.10 * turns
