"""Conversations keep their places in a real model's memory."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from statistics import mean

import httpx2
import psutil
import pytest

from bot.backends.llama_cpp.backend import LlamaCpp
from bot.backends.llama_cpp.engines.server_engine import ServerEngine
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import Delta, Message, Prompt, QueuePosition, Usage
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.templates.renderer import Renderer
from tests.backends.asking import ask, prompt
from tests.backends.local_model import ENGINES, lend_model

pytestmark = pytest.mark.service

SETTINGS = LlamaCppSettings(parallel=2, context_tokens=1024)
STORY = prompt(
    "Tell me a very long story.",
    model="default",
    max_output_tokens=900,
    parameters={"temperature": 0},  # with dice it is a short one now and then
)
SYSTEM = Message("system", "You keep a library. " + "Name the shelf and be kind. " * 20)


class House:
    """A data directory, and the backend that works in it."""

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

    def saved(self) -> list[Path]:
        return list((self.folder / "slots").glob("*.state"))


@pytest.fixture(params=ENGINES)
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    await lend_model(tmp_path)
    settings = SETTINGS.model_copy(update={"engine": request.param})
    async with Renderer() as renderer:
        house = House(tmp_path, renderer, settings)
        yield house
        await house.backend.close()


def words(*numbers: int) -> list[Message]:
    """One side of a talk, of about 65 tokens a message."""
    return [Message("user", f"{number} " + f"shelf number {number} " * 15) for number in numbers]


async def test_every_turn_pays_for_its_own_tokens_also_after_a_restart(house: House) -> None:
    for conversation in range(4):
        await house.turn(str(conversation), *words(conversation))
    between = await house.turn("0", *words(0, 10))

    await house.restart()
    after = await house.turn("1", *words(1, 11))

    assert between.prompt_tokens - between.cached_tokens < 90
    assert after.prompt_tokens - after.cached_tokens < 90


async def test_new_conversation_shares_the_system_text_that_others_have_read(house: House) -> None:
    first = await house.turn("a", *words(1))
    second = await house.turn("b", *words(2))

    assert first.cached_tokens == 0
    assert second.prompt_tokens - second.cached_tokens < 90


async def test_dropping_the_oldest_turns_moves_the_rest_up(house: House) -> None:
    await house.turn("a", *words(1, 2, 3, 4))

    shorter = await house.turn("a", *words(3, 4, 5))

    assert shorter.prompt_tokens - shorter.cached_tokens < 120


async def test_what_moves_up_in_one_s_own_place_does_not_in_another_s(house: House) -> None:
    await house.turn("a", *words(1, 2, 3, 4))

    other = await house.turn("b", *words(3, 4, 5))

    assert other.prompt_tokens - other.cached_tokens > 150


async def test_forgetting_deletes_the_files_and_the_place(house: House) -> None:
    await house.turn("a", *words(1))
    await house.restart()
    assert len(house.saved()) == 1

    await house.backend.forget("a")
    assert house.saved() == []
    await house.turn("a", *words(1))
    await house.backend.forget("a")
    again = await house.turn("a", *words(1))

    assert again.cached_tokens == 0


async def test_saved_places_are_for_our_eyes_only(house: House) -> None:
    await house.turn("a", *words(1))
    await house.restart()

    folder = house.folder / "slots"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_killed_engine_finds_what_was_saved(house: House) -> None:
    for conversation in range(3):  # the first one's place goes to the last one
        await house.turn(str(conversation), *words(conversation))
    psutil.Process().children()[-1].kill()

    back = await house.turn("0", *words(0, 10))

    assert back.prompt_tokens - back.cached_tokens < 90


async def test_leaving_an_answer_frees_its_place_within_a_tenth_of_a_second(house: House) -> None:
    took: list[float] = []
    for _ in range(5):
        async with aclosing(house.backend.generate(STORY)) as pieces:
            await anext(pieces)
        left = time.perf_counter()
        engine = (await house.backend._model("default")).engine
        assert isinstance(engine, ServerEngine)
        await until_idle(engine._client)
        took.append(time.perf_counter() - left)

    assert min(took) < 0.1, took


async def until_idle(server: httpx2.AsyncClient) -> None:
    while True:
        if not any(slot["is_processing"] for slot in (await server.get("/slots")).json()):
            return
        await asyncio.sleep(0.005)


async def test_of_four_people_at_once_nobody_waits_more_than_twice_the_average(
    house: House,
) -> None:
    await house.turn("warm", *words(0))
    waits: dict[str, list[float]] = {name: [] for name in "abcd"}

    async def ask_five_times(name: str) -> None:
        for number in range(5):
            said = (SYSTEM, *words(number))
            asked = Prompt(said, "default", name, max_output_tokens=20, asked_by=name)
            began = time.perf_counter()
            async with aclosing(house.backend.generate(asked)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Delta) and len(waits[name]) == number:
                        waits[name].append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as tasks:
        for name in waits:
            tasks.create_task(ask_five_times(name))

    average = mean(wait for each in waits.values() for wait in each)
    assert max(mean(each) for each in waits.values()) <= 2 * average, waits


async def test_who_waits_is_told_and_a_full_line_refuses(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.backends.llama_cpp.fair_queue._TOLD_AFTER_SECONDS", 0.01)
    few = house.settings.model_copy(update={"parallel": 1, "most_waiting": 1})
    house.backend = LlamaCpp(few, house.folder, house.renderer)
    async with aclosing(house.backend.generate(STORY)) as first:
        await anext(first)
        async with aclosing(house.backend.generate(STORY)) as second:
            told = await anext(second)
            refused = await ask(house.backend, STORY)

    assert told == QueuePosition(1, None)
    assert refused.error is not None
    assert refused.error.notice.startswith("Others are waiting for the model")


async def test_answer_ends_at_its_time_limit(house: House) -> None:
    brief = house.settings.model_copy(update={"total_seconds": 1.0})
    house.backend = LlamaCpp(brief, house.folder, house.renderer)
    await house.backend.preload("default")

    answer = await ask(house.backend, STORY)

    assert isinstance(answer.error, BackendInterrupted | BackendUnavailable)
