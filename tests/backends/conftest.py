"""Fixtures: backends and the fake services they connect to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import pytest
from typing_extensions import override

from bot.backends.chat_completions import request_runner
from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.runtime.clock import SystemClock
from bot.templates.renderer import Renderer
from tests.rigs.fake_openai import FakeOpenAI

Connect: TypeAlias = Callable[..., OpenAICompatibleBackend]


class FakeClock(SystemClock):
    """Records sleeps and advances its own time instead of waiting."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.before_sleep: asyncio.Task[object] | None = None
        """A task that every sleep waits for."""

    @override
    def monotonic(self) -> float:
        return sum(self.slept)

    @override
    async def sleep(self, seconds: float) -> None:
        if self.before_sleep is not None:
            await asyncio.wait([self.before_sleep])
        self.slept.append(seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    async with Renderer() as running:
        yield running


@pytest.fixture
def is_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the detection of process pauses, because a busy machine can trigger it."""
    monkeypatch.setattr(request_runner, "SUSPENSION_THRESHOLD_SECONDS", 60.0)


@pytest.fixture
async def service() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as service:
        yield service


@pytest.fixture
async def connect(service: FakeOpenAI, clock: FakeClock) -> AsyncIterator[Connect]:
    """Create a backend named acme for `service` with short timeouts and the given settings."""
    made: list[OpenAICompatibleBackend] = []

    def connect(**given: object) -> OpenAICompatibleBackend:
        settings: dict[str, object] = {
            "base_url": service.base_url,
            "api_key": "sk-CANARY",
            "first_token_seconds": 4,
            "idle_seconds": 2,
            "total_seconds": 60,
        }
        backend = OpenAICompatibleBackend(
            OpenAISettings.model_validate(settings | given), "acme", clock=clock
        )
        made.append(backend)
        return backend

    yield connect
    for backend in made:
        await backend.close()
