"""A backend for Anthropic's Messages API, connected to a fake service."""

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import pytest

from bot.backends.anthropic.backend import AnthropicBackend
from bot.backends.anthropic.settings import AnthropicSettings
from tests.backends.conftest import FakeClock
from tests.rigs.fake_anthropic import FakeAnthropic

Connect: TypeAlias = Callable[..., AnthropicBackend]


@pytest.fixture
async def service() -> AsyncIterator[FakeAnthropic]:
    async with FakeAnthropic() as service:
        yield service


@pytest.fixture
async def connect(service: FakeAnthropic, clock: FakeClock) -> AsyncIterator[Connect]:
    """Create a backend named claude for `service` with short timeouts and the given settings."""
    made: list[AnthropicBackend] = []

    def connect(**given: object) -> AnthropicBackend:
        settings: dict[str, Any] = {
            "base_url": service.base_url,
            "api_key": "sk-ant-CANARY",
            "first_token_seconds": 4,
            "idle_seconds": 2,
            "total_seconds": 60,
        }
        backend = AnthropicBackend(
            AnthropicSettings.model_validate(settings | given), "claude", clock=clock
        )
        made.append(backend)
        return backend

    yield connect
    for backend in made:
        await backend.close()
