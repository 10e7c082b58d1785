"""The engine of a local model is killed in mid-answer again and again: every turn ends once.

Judged from the chats alone. TROUPE_SEED=... repeats a run.
"""

import asyncio
import os
import random
from collections import Counter

import psutil
import pytest

from tests.backends.local_model import lend_model
from tests.e2e.service import Service, preset
from tests.e2e.test_walk import until
from tests.e2e.world import Place, World

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

QUESTION = "Tell me a story of a keeper, a dog and a lamp, number {number}."


def engine_of(service: Service) -> psutil.Process | None:
    for child in psutil.Process(service.process.pid).children(recursive=True):
        try:
            if "bot.backends.llama_cpp.engines.xllamacpp_child" in child.cmdline():
                return child
        except psutil.NoSuchProcess:
            continue
    return None


async def furnished(service: Service) -> None:
    """Let the service run on the real small model."""
    await lend_model(service.data)
    service.settings |= {
        "TROUPE_PROVIDERS__TEST__KIND": "llama_cpp",
        "TROUPE_PROVIDERS__TEST__BASE_URL": "",
        "TROUPE_PROVIDERS__TEST__MODEL": "",
        "TROUPE_PROVIDERS__TEST__CONTEXT_TOKENS": "1024",
    }
    short = preset("tester", system="You tell stories.", max_output_tokens=60, max_rounds=3)
    (service.presets / "tester.json").write_text(short)
    await service.start()
    await service.ready(120)  # a model is heavy on a machine that does other things too


async def besiege(service: Service, world: World, kills: int) -> Counter[str]:
    """Ask in four chats and kill the engine at any moment; gives how the turns ended."""
    seed = int(os.environ.get("TROUPE_SEED", random.randrange(2**32)))  # noqa: TID251 # a test's own
    print(f"seed {seed}")  # noqa: T201 # pytest shows it when the test fails
    dice = random.Random(seed)
    await furnished(service)
    chats = [world.telegram_private() for _ in range(4)]
    asked: Counter[str] = Counter()

    def answered() -> bool:
        return all(len(world.said_in(chat)) >= asked[chat.name] for chat in chats)

    def ask(chat: Place) -> None:
        asked[chat.name] += 1
        chat.say(QUESTION.format(number=asked.total()), 0)

    for killed in range(kills + 1):
        for chat in dice.sample(chats, dice.randint(1, 4)):
            ask(chat)
        if killed < kills:
            await asyncio.sleep(dice.uniform(0.1, 2.5))
            (await until(lambda: engine_of(service), 30)).kill()
        await until(answered, 90)
    assert await service.stop() == 0, "the service did not end in order"
    return judged(world, chats, asked)


def judged(world: World, chats: list[Place], asked: Counter[str]) -> Counter[str]:
    ends: Counter[str] = Counter()
    for chat in chats:
        texts = world.said_in(chat)
        assert len(texts) == asked[chat.name], "a turn was answered twice"
        for text in texts:
            assert len(text.strip("…⏳ ")) > 1, "a placeholder was left"
            assert "in line" not in text
            ends[
                "interrupted" if "(interrupted)" in text else "told" if "⚠" in text else "whole"
            ] += 1
    return ends


@pytest.mark.timeout(300)
async def test_engine_killed_in_mid_answer_every_turn_ends_once(
    service: Service, world: World
) -> None:
    ends = await besiege(service, world, kills=5)

    print(ends)  # noqa: T201 # for the record, with -rP
    assert ends["whole"] > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_engine_killed_fifty_times_every_turn_ends_once(
    service: Service, world: World
) -> None:
    ends = await besiege(service, world, kills=50)

    print(ends)  # noqa: T201 # for the record, with -rP
    assert ends["interrupted"] > 10
