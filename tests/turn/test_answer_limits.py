"""Test that people and channels which ask for too much are slowed down, and told once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from typing_extensions import override

from bot.chat.rate import Rate
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.turn.limits.rate_limits import AnswerLimits
from bot.turn.limits.slots import ProviderSlots
from tests.fakes import FakeBackend, FakeClock, ScriptStep, run_ready_tasks
from tests.samples import BOB, make_incoming
from tests.turn.setup import Setup, running_worker
from tests.waiting import wait_until

SLOWED = (
    "⏳ That is more than 2 messages in 20 s. I will answer all of them, but more slowly: one every"
    " 10 s."
)


class RecordingRateLimits(InProcessRateLimits):
    """Records what was asked for."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.taken: list[Rate] = []

    @override
    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        self.taken += rates
        return await super().take(rates, max_wait_seconds)


def make_setup(
    database: Database,
    *,
    seconds: float = 20,
    per_person: int = 2,
    per_channel: int = 0,
    scripts: int = 8,
) -> tuple[Setup, RecordingRateLimits]:
    clock = FakeClock()
    rates = RecordingRateLimits(clock)
    limits = AnswerLimits(
        rates,
        clock,
        per_person=per_person,
        per_channel=per_channel,
        seconds=seconds,
    )
    backend = FakeBackend(*([f"answer {number}"] for number in range(1, scripts + 1)))
    setup = Setup(database, backend=backend, clock=clock, pipeline_parts={"limits": limits})
    return setup, rates


async def until_waiting(rates: RecordingRateLimits, taken: int) -> None:
    """Wait until so many rates were taken, the last of them for a notice before a wait."""
    await wait_until(lambda: len(rates.taken) == taken)
    await run_ready_tasks()


@asynccontextmanager
async def working(setup: Setup, *texts: str) -> AsyncIterator[asyncio.Task[None]]:
    await setup.receive(*texts)
    async with running_worker(setup) as worker:
        yield worker


async def test_person_is_slowed_down_and_told_once(database: Database) -> None:
    setup, rates = make_setup(database)
    async with working(setup, "a", "b", "c", "d") as worker:
        await until_waiting(rates, 4)
        assert len(setup.backend.prompts) == 2  # no work is done for the third
        await setup.clock.advance(10)
        await until_waiting(rates, 6)
        assert not worker.done()
        await setup.clock.advance(10)
        await worker
    assert setup.texts == ["answer 1", "answer 2", "answer 3", SLOWED, "answer 4"]
    assert [role for role, _ in await setup.history()] == ["user", "assistant"] * 4


async def test_others_in_the_channel_are_not_slowed_down(database: Database) -> None:
    setup, _rates = make_setup(database)
    await setup.say("a", "b", make_incoming("c", key="5:3", author=BOB))
    assert setup.texts == ["answer 1", "answer 2", "answer 3"]


async def test_channel_is_slowed_down_whoever_writes(database: Database) -> None:
    setup, rates = make_setup(database, per_person=0, per_channel=2)
    await setup.receive("a", "b", make_incoming("c", key="5:3", author=BOB))
    async with running_worker(setup) as worker:
        await until_waiting(rates, 4)
        await setup.clock.advance(10)
        await worker
    assert setup.texts == ["answer 1", "answer 2", "answer 3", SLOWED]


async def test_message_whose_moment_is_far_away_is_kept_and_told_of_once(
    database: Database,
) -> None:
    setup, _rates = make_setup(database, per_person=1, seconds=3600)
    await setup.say("a", "b", "c")
    assert setup.texts == [
        "answer 1",
        "That is more than one message in 3600 s. I have read yours, but will not answer it."
        " Please write again in 3600 s.",
    ]
    assert [text for _, text in await setup.history()] == ["a", "answer 1", "b", "c"]


async def test_retry_over_the_limit_keeps_the_old_answer(database: Database) -> None:
    setup, _rates = make_setup(database, per_person=1, seconds=3600)
    await setup.say("a", "/retry")
    assert setup.texts[1].startswith("⚠ That is more than one message in 3600 s.")
    assert [text for _, text in await setup.history()] == ["a", "answer 1"]


async def test_stop_ends_the_wait(database: Database) -> None:
    setup, rates = make_setup(database)
    async with working(setup, "a", "b", "c") as worker:
        await until_waiting(rates, 4)
        await setup.receive("/stop")
        await worker
    assert len(setup.backend.prompts) == 2


async def test_commands_are_not_limited(database: Database) -> None:
    setup, _rates = make_setup(database, per_person=1, seconds=3600)
    await setup.say("a", "/me a tall knight", "/me clear", "/new")
    assert len(setup.texts) == 4


async def test_person_is_counted_over_all_channels(database: Database) -> None:
    clock = FakeClock()
    rates = RecordingRateLimits(clock)
    limits = AnswerLimits(rates, clock, per_person=15, per_channel=15, seconds=30)
    setup = Setup(database, ["Hi."], clock=clock, pipeline_parts={"limits": limits})
    await setup.say("hello")
    assert rates.taken == [Rate("person:telegram:1", 15, 30), Rate("channel:telegram:5", 15, 30)]


# --- requests in flight ------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def slots(clock: FakeClock) -> ProviderSlots:
    return ProviderSlots(InProcessRateLimits(clock), clock, {"p": 1}, lease_seconds=240)


async def test_request_waits_until_another_one_has_ended(
    database: Database, clock: FakeClock, slots: ProviderSlots
) -> None:
    go_on = asyncio.Event()
    scripts: list[list[ScriptStep]] = [[go_on, "one"], ["two"]]
    setup = Setup(database, *scripts, clock=clock, pipeline_parts={"slots": slots})
    await setup.receive("a", make_incoming("b", key="6:1", chat="6"))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(setup.work())
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        second = group.create_task(setup.work("telegram:6"))
        await wait_until(lambda: slots.waiting("p") == 1)
        await clock.advance(5)
        assert len(setup.backend.prompts) == 1
        go_on.set()
        await first
        await clock.advance(1)
        await second
    assert setup.texts == ["one", "two"]


async def test_fallback_answers_when_no_slot_becomes_free(
    database: Database, clock: FakeClock
) -> None:
    rates = InProcessRateLimits(clock)
    assert await rates.acquire("p", 1, "another process", 600)
    fallback = FakeBackend(["Hi."])
    setup = Setup(
        database,
        fallback=fallback,
        preset={"fallbacks": [{"provider": "q"}]},
        clock=clock,
        pipeline_parts={"slots": ProviderSlots(rates, clock, {"p": 1}, lease_seconds=240)},
    )
    await setup.receive("a")
    async with running_worker(setup) as worker:
        await run_ready_tasks()
        while not fallback.prompts:
            await clock.advance(1)
            await asyncio.sleep(0.001)
        await worker
    assert setup.texts[0] == "Hi."
