"""Conversations keep their KV slots in a real model."""

from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from bot.backends.llama_cpp.backend import LlamaCpp
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import Message, Prompt, Usage
from bot.templates.renderer import Renderer
from tests.backends.asking import ask
from tests.backends.local_model import DEFAULT_ENGINE, lend_model

pytestmark = pytest.mark.service

SETTINGS = LlamaCppSettings(threads=1, context_tokens=1024)
SYSTEM = Message("system", "You keep a library. " + "Name the shelf and be kind. " * 20)


class BackendHarness:
    """A data directory with a backend that uses it."""

    def __init__(self, folder: Path, renderer: Renderer, settings: LlamaCppSettings) -> None:
        self.folder = folder
        self.renderer = renderer
        self.settings = settings
        self.backend = LlamaCpp(settings, folder, renderer)

    async def restart(self) -> None:
        await self.backend.close()
        self.backend = LlamaCpp(self.settings, self.folder, self.renderer)

    async def turn(self, conversation: str, *said: Message) -> Usage:
        asked = Prompt((SYSTEM, *said), "default", conversation, max_output_tokens=1)
        answer = await ask(self.backend, asked)
        assert answer.error is None
        assert answer.finish is not None
        return answer.finish.usage

    def saved_files(self) -> list[Path]:
        return list((self.folder / "slots").glob("*.state"))


@pytest.fixture(params=DEFAULT_ENGINE)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackendHarness]:
    await lend_model(tmp_path)
    parallel = 2 if request.param == "xllamacpp" else 1
    settings = SETTINGS.model_copy(update={"engine": request.param, "parallel": parallel})
    async with Renderer() as renderer:
        harness = BackendHarness(tmp_path, renderer, settings)
        yield harness
        await harness.backend.close()


def words(*numbers: int) -> list[Message]:
    """Return user messages of about 65 tokens each."""
    return [Message("user", f"{number} " + f"shelf number {number} " * 15) for number in numbers]


async def test_each_turn_decodes_only_new_tokens_even_after_a_restart(
    harness: BackendHarness,
) -> None:
    for conversation in range(4):
        await harness.turn(str(conversation), *words(conversation))
    between = await harness.turn("0", *words(0, 10))

    await harness.restart()
    after = await harness.turn("1", *words(1, 11))

    assert between.prompt_tokens - between.cached_tokens < 90
    assert after.prompt_tokens - after.cached_tokens < 90


async def test_new_conversation_reuses_the_cached_system_prompt(harness: BackendHarness) -> None:
    first = await harness.turn("a", *words(1))
    second = await harness.turn("b", *words(2))

    assert first.cached_tokens == 0
    assert second.prompt_tokens - second.cached_tokens < 90


@pytest.mark.parametrize("harness", ["xllamacpp"], indirect=True)
async def test_cached_tokens_are_shifted_when_the_oldest_turns_are_dropped(
    harness: BackendHarness,
) -> None:
    await harness.turn("a", *words(1, 2, 3, 4))

    shorter = await harness.turn("a", *words(3, 4, 5))

    assert shorter.prompt_tokens - shorter.cached_tokens < 120


async def test_cached_tokens_of_another_conversation_are_not_shifted(
    harness: BackendHarness,
) -> None:
    await harness.turn("a", *words(1, 2, 3, 4))

    other = await harness.turn("b", *words(3, 4, 5))

    assert other.prompt_tokens - other.cached_tokens > 150


async def test_forget_deletes_files_and_slot(harness: BackendHarness) -> None:
    await harness.turn("a", *words(1))
    await harness.restart()
    assert len(harness.saved_files()) == 1

    await harness.backend.forget("a")
    assert harness.saved_files() == []
    await harness.turn("a", *words(1))
    await harness.backend.forget("a")
    again = await harness.turn("a", *words(1))

    assert again.cached_tokens == 0


async def test_saved_slots_are_private(harness: BackendHarness) -> None:
    await harness.turn("a", *words(1))
    await harness.restart()

    folder = harness.folder / "slots"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_restarted_engine_restores_saved_slots(harness: BackendHarness) -> None:
    for conversation in range(3):  # the last one evicts the first one
        await harness.turn(str(conversation), *words(conversation))
    psutil.Process().children()[-1].kill()

    back = await harness.turn("0", *words(0, 10))

    assert back.prompt_tokens - back.cached_tokens < 90
