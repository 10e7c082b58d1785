"""Lanes that wait for their bot's rate limit are not claimed in vain, and delay no other bots."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from bot.chat.incoming import Address
from bot.chat.outgoing import MessageContent, OutboxOperation, OutboxRow, OutboxState
from bot.chat.rate import CallWindow
from bot.delivery.pacing import CallQueue, RateLimitedSurface
from bot.delivery.sender import Sender
from bot.runtime.in_process import InProcessRateLimits, InProcessSignals
from bot.runtime.keyed_worker_pool import KeyedWorkerPool
from bot.storage.outbox import SqlOutbox
from tests.fakes import LIMITS, FakeClock, FakeSurface

TELEGRAM, OTHER = "telegram", "telegram@77"
THIRTY = replace(LIMITS, bot_call_windows=(CallWindow(30, 1.0),), responses_count_as_calls=False)


@pytest.fixture(autouse=True)
def same_pauses() -> None:
    """Make the random part of the delay of rescheduled rows constant."""
    random.seed(1)


class OneRowLanes:
    """An outbox with one row per lane; counts claims and reschedules."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.takes: Counter[str] = Counter()  # by lane
        self.postponed = 0
        self.sent: list[str] = []
        self.responses: set[str] = set()
        """The lanes in which the row responds to a command."""
        self._due: dict[str, float] = {}  # by lane; absent: sent
        self._numbers: dict[str, int] = {}

    def queue(self, lane: str) -> None:
        self._numbers[lane] = len(self._numbers)
        self._due[lane] = self.clock.now()

    async def list_due_lanes(self, limit: int, _sources: Collection[str]) -> Sequence[str]:
        now = self.clock.now()
        due = [lane for lane, at in self._due.items() if at <= now]
        return sorted(due, key=self._due.__getitem__)[:limit]

    async def reserve_due_rows(self, lanes: Sequence[str]) -> Sequence[OutboxRow]:
        await asyncio.sleep(0)
        now = self.clock.now()
        return [self.begin(lane) for lane in lanes if self._due.get(lane, now + 1) <= now]

    def begin(self, lane: str) -> OutboxRow:
        self.takes[lane] += 1
        self._due[lane] = self.clock.now() + 20
        source, _, chat = lane.partition(":")
        platform, _, bot_id = source.partition("@")
        return OutboxRow(
            id=self._numbers[lane],
            turn_name=lane,
            address=Address(platform, chat, bot_id=bot_id),
            part_number=0,
            operation=OutboxOperation.SEND,
            content=MessageContent(lane),
            reply_to=None,
            interaction="token" if lane in self.responses else None,
            state=OutboxState.PENDING,
            attempt_count=self.takes[lane],
            external_id=None,
            send_deadline=self.clock.monotonic() + 10,
        )

    async def mark_sent(self, row: OutboxRow, _external_id: str | None) -> None:
        del self._due[row.address.lane]
        self.sent.append(row.address.lane)

    async def reschedule(self, row: OutboxRow, seconds: float) -> None:
        self.postponed += 1
        self._due[row.address.lane] = self.clock.now() + seconds


class Process:
    def __init__(self, outbox: OneRowLanes, rates: InProcessRateLimits) -> None:
        clock, self.rates = outbox.clock, rates
        waiting = CallQueue(clock)
        surface = RateLimitedSurface(FakeSurface(THIRTY), rates, clock, call_queue=waiting)
        sender = Sender(
            cast(SqlOutbox, outbox),
            {TELEGRAM: surface, OTHER: surface},
            clock,
            settle_seconds=10,
            call_queue=waiting,
        )
        self.pool = KeyedWorkerPool[OutboxRow](
            "lanes",
            signals=InProcessSignals(),
            find_ready_keys=lambda limit: outbox.list_due_lanes(limit, ()),
            claim=sender.claim,
            process=sender.deliver_lane,
            max_concurrent=4000,
            clock=clock,
            seconds_on_hold=sender.seconds_on_hold,
            extra_urgent_slots=1,
        )


@asynccontextmanager
async def running(outbox: OneRowLanes, processes: int = 1) -> AsyncIterator[list[Process]]:
    rates = InProcessRateLimits(outbox.clock)
    found = [Process(outbox, rates) for _ in range(processes)]
    tasks = [asyncio.create_task(one.pool.run()) for one in found]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for one in found:
            await one.pool.drain(0)


def lanes(count: int, source: str = TELEGRAM) -> list[str]:
    return [f"{source}:{number}" for number in range(1, count + 1)]


def outbox_with(queued: Sequence[str]) -> OneRowLanes:
    outbox = OneRowLanes(FakeClock())
    for lane in queued:
        outbox.queue(lane)
    return outbox


async def test_rows_waiting_for_the_bots_rate_limit_are_claimed_about_once() -> None:
    outbox = outbox_with(lanes(300))
    async with running(outbox):
        await outbox.clock.advance(11)
    assert len(outbox.sent) == 300, "the rate is used as far as it goes"
    assert outbox.takes.total() <= 330
    assert outbox.postponed <= 30


async def test_few_rows_are_claimed_while_the_platform_refuses_the_bot() -> None:
    outbox = outbox_with(lanes(300))
    async with running(outbox) as [process]:
        await process.rates.block_calls(TELEGRAM, 30)
        await outbox.clock.advance(29)
        assert outbox.sent == []
        assert outbox.takes.total() <= 32 * (1 + 29 // 5)
        await outbox.clock.advance(12)
    assert len(outbox.sent) == 300


async def test_rows_started_when_queued_are_claimed_about_once_more() -> None:
    outbox = outbox_with(lanes(300))
    async with running(outbox) as [process]:
        for lane in lanes(300):
            process.pool.start(lane, outbox.begin(lane))
        await outbox.clock.advance(18)
    assert len(outbox.sent) == 300
    assert outbox.takes.total() <= 660
    assert outbox.postponed <= 330


async def test_bot_does_not_wait_for_another_bots_rate_limit() -> None:
    outbox = outbox_with(lanes(300) + lanes(30, OTHER))
    async with running(outbox):
        await outbox.clock.advance(0.5)
    assert sum(lane.startswith(OTHER) for lane in outbox.sent) == 30


async def test_response_to_a_command_does_not_wait_for_the_rate_limit() -> None:
    outbox = outbox_with(lanes(300))
    async with running(outbox) as [process]:
        await outbox.clock.advance(1.1)
        outbox.queue("telegram:301")
        outbox.responses.add("telegram:301")
        process.pool.wake(["telegram:301"], is_urgent=True)
        await outbox.clock.advance(0.1)
        assert "telegram:301" in outbox.sent
    assert len(outbox.sent) < 100


async def test_lanes_do_not_wait_for_another_chats_rate_limit() -> None:
    outbox = outbox_with(lanes(60))
    async with running(outbox) as [process]:
        for lane in lanes(40):
            await process.rates.block_calls(lane, 1.5)
        await outbox.clock.advance(0.5)
        assert set(outbox.sent) == set(lanes(60)[40:])


async def test_lanes_on_hold_in_one_process_can_be_claimed_by_another() -> None:
    outbox = outbox_with(lanes(300))
    async with running(outbox, processes=1) as [first]:
        await outbox.clock.advance(2)
        assert first.pool.unfinished_count > 100, "it is not idle while lanes wait"
    assert len(outbox.sent) < 150
    async with running(outbox):
        await outbox.clock.advance(30)
    assert len(outbox.sent) == 300


async def test_lane_that_waited_longest_is_claimed_first() -> None:
    outbox = outbox_with([])
    queued = lanes(400)
    async with running(outbox) as [process]:
        for lane in queued:  # 40 a second, claimed when they are queued
            outbox.queue(lane)
            process.pool.start(lane, outbox.begin(lane))
            await outbox.clock.advance(0.025)
        await outbox.clock.advance(10)
    assert sorted(outbox.sent) == sorted(queued)
    overtaken = [abs(place - queued.index(lane)) for place, lane in enumerate(outbox.sent)]
    assert max(overtaken) <= 40
