"""Test which request gets the next slot of a provider, and what happens if the queue is full."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, quantiles
from typing import Any

import pytest
from typing_extensions import override

from bot.backends.chat_shares import ChatShares
from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.runtime.in_process import InProcessRateLimits, InProcessSignals
from bot.runtime.tasks import StopFlag, cancel_and_wait
from bot.storage.database import Database
from bot.texts.text import translate
from bot.turn.limits import slots as provider_slots
from bot.turn.limits.slots import ProviderSlots, Urgency
from tests.fakes import FakeClock, run_ready_tasks
from tests.samples import make_incoming
from tests.turn.setup import Setup, working
from tests.waiting import wait_until

ANSWER_SECONDS = 10.0
PAUSE_SECONDS = 20.0


@dataclass
class Requests:
    """Requests to one provider, each of which takes ten seconds."""

    clock: FakeClock
    slots: ProviderSlots
    begun: list[str] = field(default_factory=list)
    """The names of the requests in the order in which they got a slot."""
    positions: list[int] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def ask(
        self, name: str, chat: str = "", urgency: Urgency = Urgency.QUESTION
    ) -> asyncio.Task[None]:
        """Start a request; return once it has a slot or waits for one."""
        task = asyncio.create_task(self._request(name, chat, urgency))
        self.tasks.append(task)
        await run_ready_tasks()
        return task

    async def _request(self, name: str, chat: str, urgency: Urgency) -> None:
        def show(position: QueuePosition) -> None:
            self.positions.append(position.position)

        async with self.slots.hold("p", StopFlag(), show, chat=chat, urgency=urgency):
            self.begun.append(name)
            await self.clock.sleep(ANSWER_SECONDS)


class LateAnswers(InProcessRateLimits):
    """Rate limits that count immediately but respond a second later, like a slow server."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._late = clock

    @override
    async def acquire_slot(self, *args: Any, **more: Any) -> int:
        held = await super().acquire_slot(*args, **more)
        await self._late.sleep(1)
        return held


@contextlib.asynccontextmanager
async def requests(limit: int, max_waiting: int = 0) -> AsyncIterator[Requests]:
    async with requests_of_processes(1, limit, max_waiting) as [made]:
        yield made


@contextlib.asynccontextmanager
async def requests_of_processes(
    count: int, limit: int, max_waiting: int = 0
) -> AsyncIterator[list[Requests]]:
    """Return the requests of several processes, which share a list of started requests."""
    clock, signals, begun = FakeClock(), InProcessSignals(), list[str]()
    rates = InProcessRateLimits(clock)
    slots = (
        ProviderSlots(rates, clock, {"p": limit}, 240, max_waiting, signals) for _ in range(count)
    )
    made = [Requests(clock, each, begun) for each in slots]
    yield made
    for each in made:
        await cancel_and_wait(each.tasks)


async def test_questions_take_precedence_over_reactions_and_background_work() -> None:
    async with requests(limit=1) as made:
        await made.ask("first")
        await made.ask("summary", urgency=Urgency.BACKGROUND)
        await made.ask("overheard", "a", Urgency.UNADDRESSED)
        await made.ask("question", "b")
        for _ in range(4):
            await made.clock.advance(ANSWER_SECONDS + 1)
    assert made.begun == ["first", "question", "overheard", "summary"]


async def test_chats_take_turns_even_if_one_has_many_requests() -> None:
    async with requests(limit=1) as made:
        await made.ask("noisy 0", "noisy")
        for number in range(1, 5):
            await made.ask(f"noisy {number}", "noisy")
        await made.ask("quiet 0", "quiet")
        await made.ask("quiet 1", "quiet")
        for _ in range(4):
            await made.clock.advance(ANSWER_SECONDS + 1)
    assert made.begun[:5] == ["noisy 0", "quiet 0", "noisy 1", "quiet 1", "noisy 2"]


async def test_processes_take_turns_even_if_one_has_many_requests() -> None:
    async with requests_of_processes(2, limit=1) as [full, other]:
        for number in range(6):
            await full.ask(f"full {number}", f"chat {number}")
        await other.ask("other 0", "another chat")
        await other.ask("other 1", "one more")
        for _ in range(5):
            await full.clock.advance(ANSWER_SECONDS)
    assert full.begun[:5] == ["full 0", "full 1", "other 0", "full 2", "other 1"]


async def test_one_chat_never_takes_all_slots() -> None:
    async with requests(limit=4) as made:
        for number in range(6):
            await made.ask(f"noisy {number}", "noisy")
        assert made.begun == ["noisy 0", "noisy 1", "noisy 2"]
        await made.ask("quiet", "quiet")
        await made.clock.advance(0.5)
    assert made.begun == ["noisy 0", "noisy 1", "noisy 2", "quiet"]


async def test_cancelled_request_does_not_lower_the_priority_of_its_chat() -> None:
    async with requests(limit=4) as made:
        for number in range(3):
            await made.ask(f"noisy {number}", "noisy")
        fourth = await made.ask("noisy 3", "noisy")
        await cancel_and_wait([fourth])
        await made.clock.advance(61)  # it is noisy no more
        for number in range(4):
            await made.ask(f"quiet {number}", f"quiet {number}")
        await made.ask("summary", urgency=Urgency.BACKGROUND)
        await made.ask("question", "noisy")
        await made.clock.advance(ANSWER_SECONDS + 1)
    assert made.begun[-2:] == ["question", "summary"]


async def test_one_chat_may_use_all_slots_if_there_are_few() -> None:
    async with requests(limit=3) as made:
        for number in range(4):
            await made.ask(f"noisy {number}", "noisy")
    assert made.begun == ["noisy 0", "noisy 1", "noisy 2"]


async def _answer_seconds(
    slots: int, chats: int, *, with_noise: bool, processes: int
) -> list[float]:
    """Return how long answers take in quiet chats, with or without a noisy chat."""
    rng = random.Random(1)
    async with requests_of_processes(processes, limit=slots) as made:
        taken: list[float] = []
        clock = made[0].clock

        async def ask(chat: str, number: int) -> float:
            began = clock.now()
            held = made[number % processes].slots
            async with held.hold("p", StopFlag(), lambda _: None, chat=chat):
                await clock.sleep(ANSWER_SECONDS * rng.uniform(0.5, 1.5))
            return clock.now() - began

        async def ask_without_end(number: int) -> None:
            while True:
                await ask("noisy", number)

        async def ask_now_and_then(number: int) -> None:
            for _ in range(100):
                await clock.sleep(rng.expovariate(1 / PAUSE_SECONDS))
                taken.append(await ask(f"quiet {number}", number))

        if with_noise:
            made[0].tasks += [asyncio.create_task(ask_without_end(n)) for n in range(3 * slots)]
            await run_ready_tasks()
        quiet = [asyncio.create_task(ask_now_and_then(one)) for one in range(chats)]
        made[0].tasks += quiet
        while not all(task.done() for task in quiet):
            await clock.advance(5)
        return taken


@pytest.mark.parametrize(("slots", "chats", "processes"), [(4, 4, 1), (8, 4, 2), (4, 8, 4)])
async def test_noisy_chat_delays_other_chats_by_at_most_a_fifth(
    slots: int, chats: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_slots, "_POLL_SECONDS", 0.5)  # is simulated faster, and no better
    alone = await _answer_seconds(slots, chats, with_noise=False, processes=processes)
    beside_noise = await _answer_seconds(slots, chats, with_noise=True, processes=processes)
    assert mean(beside_noise) <= 1.2 * mean(alone)
    for place in (50, 95, 99):
        assert percentile(beside_noise, place) <= 1.2 * percentile(alone, place)


def percentile(values: Sequence[float], place: int) -> float:
    return quantiles(values, n=100)[place - 1]


async def test_chat_leaves_one_more_free_slot_than_other_chats_recently_used() -> None:
    async with requests(limit=8) as made:
        held = [made.slots.hold("p", StopFlag(), lambda _: None, chat=f"{one}") for one in "abc"]
        async with contextlib.AsyncExitStack() as stack:
            for one in held:
                await stack.enter_async_context(one)
            await made.ask("noisy 0", "noisy")
        for number in range(1, 8):
            await made.ask(f"noisy {number}", "noisy")
        assert len(made.begun) == 4
        for _ in range(13):
            await made.clock.advance(5)
        assert len(made.begun) == 8
        for number in range(8, 16):
            await made.ask(f"noisy {number}", "noisy")
        assert len(made.begun) == 8 + 6, "a quarter is left free in any case"


async def test_busiest_chat_leaves_the_last_two_slots_to_other_chats() -> None:
    async with requests(limit=4) as made:
        for number in range(3):
            await made.ask(f"noisy {number}", "noisy")
            await made.clock.advance(ANSWER_SECONDS)
        for chat in "ab":
            await made.ask(chat, chat)
        await made.ask("noisy 3", "noisy")
        await made.clock.advance(0.5)
        for chat in "cd":
            await made.ask(chat, chat)
        await made.clock.advance(ANSWER_SECONDS)
    assert made.begun == ["noisy 0", "noisy 1", "noisy 2", "a", "b", "c", "d", "noisy 3"]


async def test_slot_freed_by_this_process_is_reused_immediately() -> None:
    async with requests(limit=1) as made:
        first = await made.ask("first", "a")
        await made.ask("second", "b")
        first.cancel()
        await run_ready_tasks()
        assert made.begun == ["first", "second"]


async def test_inactive_chats_are_forgotten() -> None:
    clock = FakeClock()
    shares = ChatShares(clock, 8)
    for number in range(200):
        shares.record_slot_use(f"chat {number}", 7)
        if number == 50:
            assert shares.slot_quota("chat 0") == 2
        await clock.advance(1)
    assert shares.slot_quota("chat 0") == 6
    assert len(shares) <= 61


async def test_full_queue_error_states_the_position_in_both_languages() -> None:
    async with requests(limit=1, max_waiting=2) as made:
        await made.ask("answered")
        await made.ask("second", "b")
        await made.ask("third", "c")
        assert made.positions == [2]
        refused = await made.ask("fourth", "d")
        error = refused.exception()
        assert isinstance(error, BackendUnavailable)
        assert "number 3 in the queue for the model" in error.notice
        assert "3" in translate(error.notice, "zh")
        assert translate(error.notice, "zh") != error.notice
        await made.clock.advance(ANSWER_SECONDS + 1)
        await made.ask("fifth", "e")
    assert made.begun == ["answered", "second"]
    assert not made.tasks[-1].done() or made.tasks[-1].cancelled(), "a place had become free"


async def test_request_cancelled_before_admission_leaves_the_queue() -> None:
    clock = FakeClock()
    rates = LateAnswers(clock)
    made = Requests(clock, ProviderSlots(rates, clock, {"p": 1}, 240, max_waiting_requests=1))
    first = await made.ask("first")
    await clock.advance(1)
    gone = await made.ask("gone")
    await clock.advance(1)  # it has found no slot, and asks for a place among those that wait
    await cancel_and_wait([gone])
    await made.ask("second")
    await clock.advance(ANSWER_SECONDS + 5)
    assert made.begun == ["first", "second"]
    await cancel_and_wait([first, *made.tasks])


async def test_queued_request_gives_up_after_a_minute() -> None:
    async with requests(limit=1) as made:
        blocked = [await made.ask("held")]
        for number in range(10):
            blocked.append(await made.ask(f"question {number}", f"chat {number}"))
        late = await made.ask("summary", urgency=Urgency.BACKGROUND)
        await made.clock.advance(61)
        error = late.exception()
        assert isinstance(error, BackendUnavailable)
        assert "Too many people are asking at once" in error.notice
        failed = [one for one in blocked if one.done() and one.exception() is not None]
        assert len(failed) + len(made.begun) == len(blocked)


async def test_command_is_answered_while_all_slots_are_held(database: Database) -> None:
    clock = FakeClock()
    rates = InProcessRateLimits(clock)
    assert await rates.acquire_slot("p", 1, "another process", 600)
    slots = ProviderSlots(rates, clock, {"p": 1}, lease_seconds=240)
    setup = Setup(database, clock=clock, provider_slots=slots)
    async with working(setup, "a question", make_incoming("/help", key="6:1", chat="6")):
        await wait_until(lambda: slots.waiting_count("p") == 1)
        await setup.work("telegram:6")
        assert len(setup.texts) == 1
        assert "/preset" in setup.texts[0]
        assert setup.backend.prompts == []
