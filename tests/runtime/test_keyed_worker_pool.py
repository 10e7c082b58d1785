"""Each key of a queue is processed by one worker at a time, with or without a coordinator."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bot.errors import StoreError
from bot.runtime.keyed_worker_pool import KeyedWorkerPool
from tests.fakes import FakeClock, FakeCoordinator, run_ready_tasks
from tests.waiting import wait_until


class PoolHarness:
    """A pool whose work a test can block; `pending` is what SQL would return."""

    def __init__(self, *, max_concurrent: int = 10) -> None:
        self.clock = FakeClock()
        self.coordinator = FakeCoordinator(self.clock)
        self.pending: list[str] = []
        self.started: list[str] = []
        self.ended: list[str] = []
        self.unblock = asyncio.Event()
        self.unblock.set()
        self.failure: Exception | None = None
        self.store_fails = False
        self.pool = KeyedWorkerPool(
            "q",
            coordinator=self.coordinator,
            pending_keys=self.pending_keys,
            process=self.process,
            owner="me",
            max_concurrent=max_concurrent,
            clock=self.clock,
        )

    async def pending_keys(self, limit: int) -> Sequence[str]:
        if self.store_fails:
            raise StoreError("the disk is full")
        return self.pending[:limit]

    async def process(self, key: str) -> None:
        self.started.append(key)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        await self.unblock.wait()
        self.ended.append(key)
        if key in self.pending:
            self.pending.remove(key)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.pool.run())
        await run_ready_tasks()
        try:
            yield
            assert not task.done(), task.exception()
        finally:
            await self.pool.drain(0)
            task.cancel()
            await asyncio.wait([task])


async def test_ready_key_is_processed() -> None:
    harness = PoolHarness()
    async with harness.open():
        await harness.pool.wake(["a", "b"])
        await wait_until(lambda: harness.ended[-1:] == ["b"])
        await run_ready_tasks()
        assert harness.pool.busy_count == 0
        assert harness.coordinator.leased_keys("q") == set()


async def test_key_is_never_processed_twice_at_once() -> None:
    harness = PoolHarness()
    harness.unblock.clear()
    async with harness.open():
        await harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        await harness.pool.wake(["a"])
        harness.coordinator.clear()
        await harness.pool.wake(["a"])
        await run_ready_tasks()
        assert harness.started == ["a"]


async def test_key_woken_while_in_progress_is_processed_again() -> None:
    harness = PoolHarness()
    harness.unblock.clear()
    async with harness.open():
        await harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        await harness.pool.wake(["a"])
        harness.unblock.set()
        await wait_until(lambda: harness.started == ["a", "a"])


async def test_no_more_than_max_concurrent_keys_are_claimed() -> None:
    harness = PoolHarness(max_concurrent=2)
    harness.unblock.clear()
    async with harness.open():
        await harness.pool.wake(["a", "b", "c"])
        await wait_until(lambda: len(harness.started) == 2)
        await run_ready_tasks()
        assert harness.pool.busy_count == 2
        assert harness.coordinator.leased_keys("q") == {"a", "b"}
        harness.unblock.set()
        await wait_until(lambda: harness.ended == ["a", "b", "c"])


async def test_pending_key_without_wake_up_is_found() -> None:
    harness = PoolHarness()
    async with harness.open():
        harness.pending = ["a"]
        await harness.clock.advance(2)
        await wait_until(lambda: "a" in harness.ended)


async def test_expired_lease_of_a_dead_process_is_released() -> None:
    harness = PoolHarness()
    await harness.coordinator.notify("q", ["a"])
    await harness.coordinator.claim("q", "dead", limit=1, lease_seconds=15, wait_seconds=0)
    async with harness.open():
        await harness.clock.advance(10)
        assert harness.started == []
        await harness.clock.advance(10)
        await wait_until(lambda: "a" in harness.ended)


async def test_lease_is_renewed_while_a_key_is_in_progress() -> None:
    harness = PoolHarness()
    harness.unblock.clear()
    async with harness.open():
        await harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        await harness.clock.advance(60)
        taken = await harness.coordinator.claim(
            "q", "other", limit=1, lease_seconds=15, wait_seconds=0
        )
        assert taken == []


async def test_sql_is_polled_while_the_coordinator_is_away() -> None:
    harness = PoolHarness()
    harness.coordinator.is_down = True
    async with harness.open():
        harness.pending = ["a"]
        await harness.pool.wake(["a"])
        await harness.clock.advance(1)
        await wait_until(lambda: "a" in harness.ended)
        harness.coordinator.is_down = False
        await harness.clock.advance(1)
        await harness.pool.wake(["b"])
        await wait_until(lambda: harness.ended[-1:] == ["b"])


async def test_store_error_does_not_end_the_pool() -> None:
    harness = PoolHarness()
    harness.store_fails = harness.coordinator.is_down = True
    async with harness.open():
        await harness.clock.advance(5)
        harness.store_fails = harness.coordinator.is_down = False
        harness.pending = ["a"]
        await harness.clock.advance(2)
        await wait_until(lambda: "a" in harness.ended)


async def test_exception_for_one_key_does_not_stop_the_others() -> None:
    harness = PoolHarness()
    harness.failure = RuntimeError("a bug")
    async with harness.open():
        await harness.pool.wake(["a", "b"])
        await wait_until(lambda: harness.ended == ["b"])
        await run_ready_tasks()
        assert harness.pool.busy_count == 0


async def test_key_that_failed_with_store_error_is_processed_again() -> None:
    harness = PoolHarness()
    harness.failure = StoreError("the disk is full")
    async with harness.open():
        await harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        await run_ready_tasks()
        await harness.pool.wake(["a"])
        await wait_until(lambda: "a" in harness.ended)


async def test_drain_finishes_keys_in_progress_and_claims_no_more() -> None:
    harness = PoolHarness()
    harness.unblock.clear()
    async with harness.open():
        await harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        draining = asyncio.create_task(harness.pool.drain(10))
        await run_ready_tasks()
        await harness.pool.wake(["b"])
        await run_ready_tasks()
        harness.unblock.set()
        await draining
        assert harness.ended == ["a"]
        assert harness.started == ["a"]


async def test_drain_cancels_keys_after_its_timeout() -> None:
    harness = PoolHarness()
    harness.unblock.clear()
    async with harness.open():
        await harness.pool.wake(["a"])
        await wait_until(lambda: harness.started == ["a"])
        await harness.pool.drain(0.01)
        assert (harness.pool.busy_count, harness.ended) == (0, [])


async def test_stopping_pool_releases_every_key_at_once() -> None:
    harness = PoolHarness()
    harness.unblock.clear()
    async with harness.open():
        await harness.pool.wake(["in progress"])
        await wait_until(lambda: harness.started == ["in progress"])
        harness.pool.stopping = True
        await harness.pool.wake(["new"])
        await run_ready_tasks()
        await harness.pool.drain(0)
        await run_ready_tasks()
        ready = await harness.coordinator.claim(
            "q", "other", limit=9, lease_seconds=15, wait_seconds=0
        )
        assert set(ready) == {"new", "in progress"}
