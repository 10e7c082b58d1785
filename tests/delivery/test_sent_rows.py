"""Test that a worker gets a row's message id from a sender in another process."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import pytest

from bot.delivery.sender import SENT_ROWS_TOPIC, RowDispatcher, SentRowTracker, publish_sent_row
from bot.errors import Refused
from bot.runtime.in_process import InProcessSignals
from bot.storage.database import Database
from tests.delivery.setup import LANE, Delivery
from tests.fakes import run_ready_tasks
from tests.waiting import PATIENCE_SECONDS, wait_until


class WorkerAndSender(Delivery):
    """A worker without a sender, a sender in another process, and their signals."""

    def __init__(self, database: Database) -> None:
        signals, self.woken, self.woken_urgently = InProcessSignals(), list[str](), list[str]()
        super().__init__(database, announce_done_row=partial(publish_sent_row, signals))
        sent_row_tracker = SentRowTracker(self.outbox)
        signals.subscribe(SENT_ROWS_TOPIC, sent_row_tracker.record_announced_rows)
        self.delivery = RowDispatcher(sent_row_tracker, self._wake)

    def _wake(self, lanes: Sequence[str], *, is_urgent: bool) -> None:
        (self.woken_urgently if is_urgent else self.woken).extend(lanes)

    async def answer(self) -> None:
        await self.queue("an answer")
        self.delivery.deliver(LANE, None)


async def test_worker_is_notified_when_another_process_sends_a_row(database: Database) -> None:
    both = WorkerAndSender(database)
    await both.answer()
    waiting = asyncio.create_task(both.delivery.wait_until_sent(1))
    await run_ready_tasks()
    await both.work()
    async with asyncio.timeout(PATIENCE_SECONDS):  # less than the interval of queries
        assert await waiting == "1"
    assert both.texts == ["an answer"]


async def test_senders_are_signaled_that_a_lane_is_urgent(database: Database) -> None:
    both = WorkerAndSender(database)
    both.delivery.deliver(LANE, None)
    both.delivery.deliver("telegram:6", None, is_urgent=True)
    assert (both.woken, both.woken_urgently) == ([LANE], ["telegram:6"])


async def test_worker_is_notified_when_a_row_is_refused(database: Database) -> None:
    both = WorkerAndSender(database)
    await both.answer()
    both.surface.fail_next("send", Refused("blocked"))
    waiting = asyncio.create_task(both.delivery.wait_until_sent(1))
    await run_ready_tasks()
    await both.work()
    with pytest.raises(Refused):
        await waiting


class LostSignals:
    """An outbox whose rows other processes send without a signal; counts queries."""

    def __init__(self) -> None:
        self.sent: dict[int, str | None] = {}
        self.asked: list[set[int]] = []

    async def find_sent_ids(self, row_ids: Collection[int]) -> Mapping[int, str | None]:
        self.asked.append(set(row_ids))
        return {row: external_id for row, external_id in self.sent.items() if row in row_ids}


async def test_one_query_checks_all_awaited_rows() -> None:
    outbox = LostSignals()
    rows = SentRowTracker(outbox, poll_seconds=0.02)  # type: ignore[arg-type]
    waiting = {row: asyncio.create_task(rows.wait_until_sent(row)) for row in range(100)}
    await wait_until(lambda: bool(outbox.asked))
    assert outbox.asked[0] == set(waiting)
    outbox.sent = {row: f"m{row}" for row in range(1, 100)} | {0: None}
    await asyncio.wait(waiting.values())
    assert [waiting[row].result() for row in range(1, 100)] == [f"m{row}" for row in range(1, 100)]
    with pytest.raises(Refused):
        await waiting[0]
    assert rows._row_futures == {}
    assert all(asked == set(range(100)) for asked in outbox.asked)
