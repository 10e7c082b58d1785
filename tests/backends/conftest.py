"""Backends, and the fake services that they talk to."""

from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import pytest

from bot.backends.openai_compatible import OpenAICompatible
from bot.chat.prompt import Message, Prompt
from bot.settings import ProviderSettings
from tests.rigs.fake_openai import FakeOpenAI

Connect: TypeAlias = Callable[..., OpenAICompatible]


def prompt(text: str = "hello", **parts: object) -> Prompt:
    defaults: dict[str, object] = {"model": "m", "conversation": "room"}
    return Prompt(messages=(Message("user", text),), **(defaults | parts))  # type: ignore[arg-type]


@pytest.fixture
async def service() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as service:
        yield service


class Pauses:
    """Where waits between tries go, instead of into the night."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def connect(service: FakeOpenAI, pauses: Pauses) -> AsyncIterator[Connect]:
    """Make a backend that talks to `service`, with short clocks and these settings."""
    made: list[OpenAICompatible] = []

    def connect(**given: object) -> OpenAICompatible:
        settings: dict[str, object] = {
            "base_url": service.base_url,
            "api_key": "sk-CANARY",
            "first_token_seconds": 2,
            "idle_seconds": 2,
            "total_seconds": 10,
        }
        backend = OpenAICompatible(
            ProviderSettings.model_validate(settings | given), "acme", sleep=pauses
        )
        made.append(backend)
        return backend

    yield connect
    for backend in made:
        await backend.close()
