"""Backends, and the fake services that they talk to."""

from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import pytest
from typing_extensions import override

from bot.backends.openai_compatible.backend import OpenAICompatible
from bot.runtime.clock import SystemClock
from bot.settings import ProviderSettings
from tests.rigs.fake_openai import FakeOpenAI

Connect: TypeAlias = Callable[..., OpenAICompatible]


class Impatient(SystemClock):
    """Notes how long it should sleep, and sleeps that long only on its own watch."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    @override
    def monotonic(self) -> float:
        return sum(self.slept)

    @override
    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock() -> Impatient:
    return Impatient()


@pytest.fixture
async def service() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as service:
        yield service


@pytest.fixture
async def connect(service: FakeOpenAI, clock: Impatient) -> AsyncIterator[Connect]:
    """Make a backend named acme that talks to `service`, with short clocks and these settings."""
    made: list[OpenAICompatible] = []

    def connect(**given: object) -> OpenAICompatible:
        settings: dict[str, object] = {
            "base_url": service.base_url,
            "api_key": "sk-CANARY",
            "first_token_seconds": 4,
            "idle_seconds": 2,
            "total_seconds": 60,
        }
        backend = OpenAICompatible(
            ProviderSettings.model_validate(settings | given), "acme", clock=clock
        )
        made.append(backend)
        return backend

    yield connect
    for backend in made:
        await backend.close()
