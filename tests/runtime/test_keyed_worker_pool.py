"""Each key is processed by one worker at a time, after a signal or a poll."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

import pytest

from bot.errors import StoreError
from bot.runtime.keyed_worker_pool import KeyedWorkerPool, urgent_topic
from tests.fakes import FakeClock, FakeSignals, run_ready_tasks
from tests.waiting import wait_until


class PoolHarness:
    """A pool whose processing can be blocked; `ready` are the ready keys in the database."""

    def __init__(
        self,
        max_concurrent: int = 10,
        *,
        is_blocked: bool = False,
        all_processes_wake_keys: bool = False,
        extra_urgent_slots: int = 0,
    ) -> None:
        self.clock = FakeClock()
        self.signals = FakeSignals()
        self.ready: list[str] = []
        self.claims: list[list[str]] = []
        self.held_elsewhere: set[str] = set()
        self.started: list[str] = []
        self.ended: list[str] = []
        self.unblock = asyncio.Event()
        if not is_blocked:
            self.unblock.set()
        self.unblock_claims = asyncio.Event()
        self.unblock_claims.set()
        self.failure: Exception | None = None
        self.store_fails = False
        self.pool = KeyedWorkerPool[str](
            "q",
            signals=self.signals,
            find_ready_keys=self.find_ready_keys,
            claim=self.claim,
            process=self.process,
            max_concurrent=max_concurrent,
            clock=self.clock,
            all_processes_wake_keys=all_processes_wake_keys,
            extra_urgent_slots=extra_urgent_slots,
        )

    async def find_ready_keys(self, limit: int) -> Sequence[str]:
        if self.store_fails:
            raise StoreError("the disk is full")
        return self.ready[:limit]

    async def claim(self, keys: Sequence[str]) -> Mapping[str, str]:
        if self.store_fails:
            raise StoreError("the disk is full")
        self.claims.append(list(keys))
        await self.unblock_claims.wait()
        return {key: f"item of {key}" for key in keys if key not in self.held_elsewhere}

    async def process(self, item: str) -> None:
        key = item.removeprefix("item of ")
        self.started.append(key)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        await self.unblock.wait()
        self.ended.append(key)
        if key in self.ready:
            self.ready.remove(key)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        task = asyncio.create_task(self.pool.run())
        await run_ready_tasks()
        try:
            yield self
            assert not task.done(), task.exception()
        finally:
            await self.pool.drain(0)
            task.cancel()
            await asyncio.wait([task])


async def test_many_woken_keys_are_claimed_in_batches() -> None:
    async with PoolHarness(max_concurrent=1000).open() as harness:
        keys = [str(number) for number in range(100)]
        harness.pool.wake(keys)
        await wait_until(lambda: harness.ended == keys)
    assert [len(claimed) for claimed in harness.claims] == [32, 32, 32, 4]


async def test_woken_keys_are_claimed_together_and_processed() -> None:
    async with PoolHarness().open() as harness:
        harness.pool.wake(["a"])
        harness.pool.wake(["b", "a"])
        assert harness.pool.unfinished_count == 2
        await wait_until(lambda: harness.ended == ["a", "b"])
        await run_ready_tasks()
        assert harness.claims == [["a", "b"]]
        assert harness.pool.unfinished_count == 0


async def test_keys_woken_by_another_process_are_claimed_after_a_delay() -> None:
    async with PoolHarness(all_processes_wake_keys=True).open() as harness:
        harness.signals.receive("q", ["a"])
        harness.signals.receive("q", ["b"])
        harness.pool.wake(["own"])
        await wait_until(lambda: harness.ended == ["own"])
        assert harness.claims == [["own"]]
        await harness.clock.advance(0.1)
        await wait_until(lambda: harness.ended == ["own", "a", "b"])
        assert harness.claims == [["own"], ["a", "b"]]


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_key_woken_while_in_progress_is_processed_again_afterward(is_claimed: bool) -> None:
    async with PoolHarness(is_blocked=True).open() as harness:
        harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        if is_claimed:
            harness.pool.start("a", "item of a")
        else:
            harness.pool.wake(["a"])
        await harness.clock.advance(10)
        assert harness.started == ["a"]
        harness.unblock.set()
        await wait_until(lambda: harness.ended == ["a", "a"])
        assert len(harness.claims) == (1 if is_claimed else 2)


async def test_no_more_than_max_concurrent_keys_are_claimed() -> None:
    async with PoolHarness(max_concurrent=2, is_blocked=True).open() as harness:
        harness.pool.wake(["a", "b", "c"])
        await wait_until(lambda: len(harness.started) == 2)
        await run_ready_tasks()
        assert harness.claims == [["a", "b"]]
        harness.unblock.set()
        await wait_until(lambda: harness.ended == ["a", "b", "c"])


async def test_urgent_keys_are_first_and_may_exceed_max_concurrent() -> None:
    async with PoolHarness(
        max_concurrent=2, extra_urgent_slots=2, is_blocked=True
    ).open() as harness:
        harness.pool.wake(["a", "b", "c"])
        await wait_until(lambda: len(harness.started) == 2)
        harness.signals.publish(urgent_topic("q"), ["d", "e", "f"])
        harness.pool.wake(["d", "e", "f"])
        await wait_until(lambda: len(harness.started) == 4)
        await run_ready_tasks()
        assert harness.claims == [["a", "b"], ["d", "e"]]
        harness.unblock.set()
        await wait_until(lambda: len(harness.ended) == 6)
    assert harness.started[4:] == ["f", "c"]
    assert harness.started.count("d") == 1


async def test_urgent_mark_applies_to_one_run_of_a_key() -> None:
    async with PoolHarness(
        max_concurrent=1, extra_urgent_slots=1, is_blocked=True
    ).open() as harness:
        harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        harness.signals.publish(urgent_topic("q"), ["a"])
        harness.pool.wake(["a"])
        await run_ready_tasks()
        assert harness.claims == [["a"]], "it is in progress"
        harness.unblock.set()
        await wait_until(lambda: harness.started == ["a", "a"])
        harness.unblock.clear()
        harness.pool.wake(["b"])
        await wait_until(lambda: harness.started == ["a", "a", "b"])
        harness.pool.wake(["a"])
        await run_ready_tasks()
        assert harness.claims == [["a"], ["a"], ["b"]]
        harness.unblock.set()


async def test_keys_claimed_by_other_processes_do_not_block_the_next_keys() -> None:
    harness = PoolHarness(max_concurrent=2)
    harness.held_elsewhere = {"a", "b", "c"}
    async with harness.open():
        harness.pool.wake(["a", "b", "c", "d"])
        await wait_until(lambda: harness.ended == ["d"])
    assert harness.claims == [["a", "b"], ["c", "d"]]


async def test_polling_is_more_frequent_while_signals_do_not_work() -> None:
    harness = PoolHarness()
    harness.signals.is_cross_process = False
    async with harness.open():
        harness.ready = ["a"]
        await harness.clock.advance(0.5)
        assert harness.claims == [["a"]]


async def test_store_error_does_not_end_the_pool() -> None:
    harness = PoolHarness()
    harness.store_fails = True
    async with harness.open():
        harness.pool.wake(["a"])
        await harness.clock.advance(5)
        harness.store_fails = False
        harness.ready = ["a"]
        await harness.clock.advance(2)
        await wait_until(lambda: "a" in harness.ended)
    assert harness.claims[0] == ["a"]


async def test_exception_for_one_key_does_not_affect_other_keys() -> None:
    harness = PoolHarness()
    harness.failure = RuntimeError("a bug")
    async with harness.open():
        harness.pool.wake(["a", "b"])
        await wait_until(lambda: harness.ended == ["b"])
        await run_ready_tasks()
        assert harness.pool.unfinished_count == 0


async def test_drain_finishes_keys_in_progress_and_claims_no_other_keys() -> None:
    async with PoolHarness(is_blocked=True).open() as harness:
        harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        draining = asyncio.create_task(harness.pool.drain(10))
        await run_ready_tasks()
        harness.pool.wake(["b"])
        await run_ready_tasks()
        harness.unblock.set()
        await draining
        assert harness.ended == ["a"]
        assert harness.started == ["a"]


async def test_drain_waits_for_keys_being_claimed() -> None:
    harness = PoolHarness()
    harness.unblock_claims.clear()
    async with harness.open():
        harness.pool.wake(["a", "b"])
        await wait_until(lambda: harness.claims == [["a", "b"]])
        draining = asyncio.create_task(harness.pool.drain(10))
        await run_ready_tasks()
        assert not draining.done()
        harness.unblock_claims.set()
        await draining
        assert harness.ended == ["a", "b"]


async def test_nothing_is_started_after_drain() -> None:
    harness = PoolHarness()
    harness.unblock_claims.clear()
    async with harness.open():
        harness.pool.wake(["a"])
        await wait_until(lambda: harness.claims == [["a"]])
        await harness.pool.drain(0.01)
        harness.unblock_claims.set()
        await run_ready_tasks()
        harness.pool.start("b", "item of b")
        await run_ready_tasks()
    assert harness.started == []
    assert harness.pool.unfinished_count == 0


async def test_drain_cancels_keys_after_its_timeout() -> None:
    async with PoolHarness(is_blocked=True).open() as harness:
        harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        await harness.pool.drain(0.01)
        assert (harness.pool.unfinished_count, harness.ended) == (0, [])
