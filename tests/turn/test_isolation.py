"""Test the gate that isolates messages that crash the process, but delays no other messages."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from bot.chat.session import AttemptState, InboxMessage
from bot.errors import Fenced
from bot.turn.claims import CrashIsolator, has_crashed_too_often
from tests.fakes import FakeClock, run_ready_tasks
from tests.samples import make_incoming

ALONE, WITH_OTHERS = AttemptState.RUNS_ALONE, AttemptState.WITH_OTHERS


class GateSetup:
    """A gate, and messages whose processing ends when a test says so."""

    def __init__(self, dice: Callable[[], float] = lambda: 1.0) -> None:
        self.clock = FakeClock()
        self.gate = CrashIsolator(self.clock, dice)
        self.in_work: list[str] = []
        self.attempts: dict[str, list[AttemptState]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def start(self, *names: str, crashes: int = 0, own: int = 0) -> None:
        """Start messages that were claimed together."""
        for name in names:
            self.prepare(name, crashes=crashes, own=own)
        await run_ready_tasks()

    def prepare(self, name: str, *, crashes: int, own: int = 0) -> None:
        """Create the task that processes a message, but do not run it yet."""
        self._ends[name] = asyncio.Event()
        self.attempts[name] = []
        message = InboxMessage(len(self.tasks), make_incoming(name), crashes, own)
        self.tasks[name] = asyncio.create_task(self._process(name, message))

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await run_ready_tasks()

    async def _process(self, name: str, message: InboxMessage) -> None:
        async def record(attempt: AttemptState) -> None:
            self.attempts[name].append(attempt)

        async with self.gate.wait_until_admitted(message, record):
            self.in_work.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.in_work.remove(name)


@asynccontextmanager
async def open_setup(dice: Callable[[], float] = lambda: 1.0) -> AsyncIterator[GateSetup]:
    opened = GateSetup(dice)
    yield opened
    for task in opened.tasks.values():
        task.cancel()
    if opened.tasks:
        await asyncio.wait(opened.tasks.values())


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[GateSetup]:
    async with open_setup() as opened:
        yield opened


async def test_all_messages_restart_immediately_after_one_crash(setup: GateSetup) -> None:
    await setup.start("a", "b", "c", crashes=1)
    assert setup.in_work == ["a", "b", "c"]
    assert setup.attempts == {"a": [], "b": [], "c": []}


async def test_message_that_crashed_once_is_recorded_as_alone_until_another_starts(
    setup: GateSetup,
) -> None:
    await setup.start("a", crashes=1)
    assert setup.attempts["a"] == [ALONE]
    await setup.start("b")
    assert setup.in_work == ["a", "b"]
    assert setup.attempts["a"] == [ALONE, WITH_OTHERS]


async def test_suspects_are_processed_one_at_a_time(setup: GateSetup) -> None:
    await setup.start("a", "b", "c", crashes=2)
    for name in "abc":
        assert setup.in_work == [name]
        assert setup.attempts[name] == [ALONE]
        await setup.end(name)


async def test_other_messages_do_not_wait_for_a_suspect(setup: GateSetup) -> None:
    await setup.start("suspect", crashes=3)
    await setup.start("a", "b")
    await setup.start("c", crashes=1)
    assert setup.in_work == ["suspect", "a", "b", "c"]
    assert setup.attempts["suspect"] == [ALONE]
    assert setup.attempts["c"] == []


async def test_suspect_with_the_most_crashes_starts_first(setup: GateSetup) -> None:
    await setup.start("first", crashes=4)
    await setup.start("own", crashes=3, own=1)
    await setup.clock.advance(10)
    for crashes in (3, 5, 4):
        await setup.start(f"{crashes} deaths", crashes=crashes)
    order = []
    for name in ("first", "own", "5 deaths", "4 deaths", "3 deaths"):
        order += setup.in_work
        await setup.end(name)
    assert order == ["first", "own", "5 deaths", "4 deaths", "3 deaths"]


async def test_suspect_with_the_most_crashes_in_a_batch_starts_first(
    setup: GateSetup,
) -> None:
    names = {"a": 2, "b": 3, "c": 2}
    for name, crashes in names.items():
        setup.prepare(name, crashes=crashes)
    await run_ready_tasks()
    assert setup.in_work == ["b"]


@pytest.mark.parametrize(("crashes", "seconds"), [(2, 4), (3, 16), (4, 60), (9, 60)])
async def test_suspect_waits_a_limited_time_for_a_slow_suspect(crashes: int, seconds: int) -> None:
    async with open_setup() as setup:
        await setup.start("long", crashes=crashes)
        await setup.start("suspect", crashes=crashes)
        await setup.clock.advance(seconds - 0.1)
        assert setup.in_work == ["long"]
        await setup.clock.advance(0.2)
        assert setup.in_work == ["long", "suspect"]
        assert setup.attempts == {"long": [ALONE, WITH_OTHERS], "suspect": [WITH_OTHERS]}


async def test_suspect_waits_longer_behind_a_slow_suspect_that_crashed_more_often(
    setup: GateSetup,
) -> None:
    await setup.start("more", crashes=3)
    await setup.start("fewer", crashes=2)
    await setup.clock.advance(63.9)
    assert setup.in_work == ["more"]
    await setup.clock.advance(0.2)
    assert setup.in_work == ["more", "fewer"]


async def test_only_a_third_of_many_suspects_start_before_others_end() -> None:
    async with open_setup(random.Random(1).random) as setup:
        await setup.start(*(f"{number}" for number in range(100)), crashes=2)
        await setup.clock.advance(1)
        assert 10 < len(setup.in_work) < 34, "they start spread over some seconds"
        await setup.clock.advance(3)
        first = list(setup.in_work)
        assert len(first) == 34
        for name in first[:4]:
            await setup.end(name)
        assert len(setup.in_work) == 32  # a third of 96
        await setup.clock.advance(60)
        assert len(setup.in_work) == 96  # those that take long hold up nobody for ever


async def test_message_that_alone_caused_a_crash_is_deferred(setup: GateSetup) -> None:
    await setup.start("suspect", crashes=2, own=1)
    await setup.clock.advance(9.9)
    assert setup.in_work == []
    assert setup.attempts["suspect"] == [AttemptState.DEFERRED]
    await setup.clock.advance(0.2)
    assert setup.in_work == ["suspect"]
    assert setup.attempts["suspect"] == [AttemptState.DEFERRED, ALONE]


async def test_crash_of_another_suspect_does_not_exonerate_a_deferred_message(
    setup: GateSetup,
) -> None:
    await setup.start("deferred", crashes=3, own=1)
    await setup.start("other", crashes=2)
    assert setup.attempts["deferred"] == [AttemptState.DEFERRED, AttemptState.NONE]
    await setup.start("late", crashes=3, own=1)
    assert setup.attempts["late"] == [AttemptState.NONE]


async def test_cancelled_suspects_do_not_block_other_messages(setup: GateSetup) -> None:
    await setup.start("x", "y", "z", crashes=2)
    await setup.start("d", crashes=3, own=1)
    for name in "dyx":
        setup.tasks[name].cancel()
        await run_ready_tasks()
    assert setup.in_work == ["z"]
    setup.tasks["z"].cancel()
    await setup.start("a", crashes=2)
    assert setup.in_work == ["a"]
    assert setup.attempts["a"] == [ALONE]


async def test_fenced_suspect_does_not_block_other_messages(setup: GateSetup) -> None:
    async def refuse(_: AttemptState) -> None:
        raise Fenced("a newer epoch")

    message = InboxMessage(1, make_incoming(), 2)
    with pytest.raises(Fenced):
        async with setup.gate.wait_until_admitted(message, refuse):
            pass
    await setup.start("a", crashes=2)
    assert setup.attempts["a"] == [ALONE]


@pytest.mark.parametrize(
    ("crashes", "own", "expected"), [(2, 2, False), (3, 3, True), (23, 0, False), (24, 0, True)]
)
def test_message_that_crashed_too_often_becomes_a_dead_letter(
    crashes: int, own: int, expected: bool
) -> None:
    assert has_crashed_too_often(InboxMessage(1, make_incoming(), crashes, own)) is expected
