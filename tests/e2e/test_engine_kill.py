"""Test that every turn ends once when the engine of a local model is killed.

Only the visible messages are checked. TROUPE_SEED=... repeats a run.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import psutil
import pytest

from tests.backends.local_model import lend_model
from tests.support.chats import Chat, Platforms
from tests.support.features import ON_THE_WIRES
from tests.support.service_process import Service, preset_json
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES

QUESTION = "Tell me a story of a keeper, a dog and a lamp, number {number}."


def engine_of(service: Service) -> psutil.Process | None:
    for child in psutil.Process(service.process.pid).children(recursive=True):
        try:
            if "bot.backends.llama_cpp.xllamacpp_child" in child.cmdline():
                return child
        except psutil.NoSuchProcess:
            continue
    return None


async def start_with_local_model(service: Service) -> None:
    """Start the service with the real small model."""
    await lend_model(service.data)
    service.settings |= {
        "TROUPE_PROVIDERS__TEST__KIND": "llama_cpp",
        "TROUPE_PROVIDERS__TEST__BASE_URL": "",
        "TROUPE_PROVIDERS__TEST__MODEL": "",
        "TROUPE_PROVIDERS__TEST__CONTEXT_TOKENS": "1024",
        "TROUPE_PROVIDERS__TEST__THREADS": "1",
    }
    answers = {"max_output_tokens": 60, "max_rounds": 3, "busy": "queue"}
    service.write_tester(preset_json("tester", system="You tell stories.", **answers))
    await service.start()
    await service.wait_until_ready(120)  # a model loads slowly on a busy machine


async def run_under_kills(
    service: Service, platforms: Platforms, seed: int, kills: int
) -> Counter[str]:
    """Ask in four chats and kill the engine at random times; count the outcomes of the turns."""
    rng = random.Random(seed)
    await start_with_local_model(service)
    chats = [platforms.telegram_dm() for _ in range(4)]
    asked: Counter[str] = Counter()

    def answered() -> bool:
        return all(len(chat.texts()) >= asked[chat.name] for chat in chats)

    def ask(chat: Chat) -> None:
        asked[chat.name] += 1
        chat.say(QUESTION.format(number=asked.total()))

    for killed in range(kills + 1):
        for chat in rng.sample(chats, rng.randint(1, 4)):
            ask(chat)
        if killed < kills:
            await asyncio.sleep(rng.uniform(0.1, 2.5))
            (await wait_until(lambda: engine_of(service))).kill()
        await wait_until(answered)
    await service.wait_until_finished(asked.total())  # what is shown may still grow
    assert await service.stop() == 0, "the service did not stop cleanly"
    return count_outcomes(platforms, chats, asked)


def count_outcomes(
    platforms: Platforms, chats: Sequence[Chat], asked: Counter[str]
) -> Counter[str]:
    ends: Counter[str] = Counter()
    for chat in chats:
        texts = chat.texts()
        assert len(texts) == asked[chat.name], "a turn was answered twice"
        for text in texts:
            assert text.strip("…⏳ "), "a placeholder was left"  # a tiny model may answer "L"
            assert "in the queue" not in text
            told = text.startswith("⚠")  # behind an answer it says that the limit cut it
            ends["interrupted" if "(interrupted)" in text else "told" if told else "whole"] += 1
    return ends


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.soak)])
async def test_every_turn_ends_once_when_the_engine_is_killed(
    service: Service, platforms: Platforms, seed: int, kills: int
) -> None:
    ends = await run_under_kills(service, platforms, seed, kills)
    print(ends)  # noqa: T201 # for the record, with -rP
    assert ends["whole"] > 0
    assert kills < 50 or ends["interrupted"] > 10
