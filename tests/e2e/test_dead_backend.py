"""Test that all messages are answered while one of three providers is down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.support.chats import Chat, Platforms
from tests.support.features import ON_THE_WIRES
from tests.support.model_server import Model
from tests.support.service_process import Service, preset_json

pytestmark = ON_THE_WIRES

NOTE = "⚠ For the admins here: the model of tester failed (“"


@dataclass
class DeadProvider:
    """A server that accepts connections and closes them without a response."""

    base: str = ""
    requests: int = 0

    async def refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
        writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def dead() -> AsyncIterator[DeadProvider]:
    provider = DeadProvider()
    async with await asyncio.start_server(provider.refuse, "127.0.0.1", 0) as server:
        provider.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield provider


def providers(dead: DeadProvider, model: Model) -> dict[str, str]:
    """Return the settings of three providers; the first is dead."""
    addresses = {"ONE": dead.base, "TWO": model.base, "THREE": model.base}
    settings = {f"TROUPE_PROVIDERS__{name}__BASE_URL": base for name, base in addresses.items()}
    return settings | {f"TROUPE_PROVIDERS__{name}__MODEL": "m" for name in addresses}


@pytest.mark.parametrize(
    ("conversations", "messages_each"),
    [(4, 15), pytest.param(40, 25, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
async def test_all_messages_are_answered_while_one_of_three_providers_is_dead(
    service: Service,
    platforms: Platforms,
    model: Model,
    dead: DeadProvider,
    conversations: int,
    messages_each: int,
) -> None:
    asked_before, refused_before = len(model.requests), dead.requests
    chain = {"provider": "one", "fallbacks": [{"provider": "two"}, {"provider": "three"}]}
    await service.run_with(preset_json("tester", **chain), **providers(dead, model))
    make = (platforms.channel, platforms.telegram_dm, platforms.channel, platforms.telegram_group)
    channels = [make[number % len(make)]() for number in range(conversations)]

    def answers(where: Chat) -> list[str]:
        return [text for text in where.texts() if not text.startswith(NOTE)]

    async def talk(where: Chat) -> None:
        expected: list[str] = []
        for _ in range(messages_each):
            expected.append(where.ask(words=1).answer)
            await where.wait_until(lambda: answers(where) == expected, 300)

    async with asyncio.TaskGroup() as group:
        for where in channels:
            group.create_task(talk(where))
    for where in channels:
        notes = [text for text in where.texts() if text.startswith(NOTE)]
        assert len(notes) == 1, "the admins are told once"
    turns = messages_each * len(channels)
    assert len(model.requests) - asked_before == turns
    assert dead.requests - refused_before <= 1.10 * turns
