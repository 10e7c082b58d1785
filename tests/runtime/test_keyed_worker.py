"""A queue is worked off: each key by one at a time, none forgotten, with or without a server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bot.errors import StoreError
from bot.runtime.keyed_worker import Desk
from tests.fakes import FakeClock, FakeCoordinator, settle
from tests.waiting import until


class Office:
    """A desk with work that a test can hold up; `has_work` is what SQL would say."""

    def __init__(self, *, most_at_once: int = 10) -> None:
        self.clock = FakeClock()
        self.coordinator = FakeCoordinator(self.clock)
        self.has_work: list[str] = []
        self.began: list[str] = []
        self.ended: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.failure: Exception | None = None
        self.store_fails = False
        self.desk = Desk(
            "q",
            coordinator=self.coordinator,
            waiting=self.waiting,
            work=self.work,
            owner="me",
            most_at_once=most_at_once,
            clock=self.clock,
        )

    async def waiting(self, limit: int) -> Sequence[str]:
        if self.store_fails:
            raise StoreError("the disk is full")
        return self.has_work[:limit]

    async def work(self, key: str) -> None:
        self.began.append(key)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        await self.go_on.wait()
        self.ended.append(key)
        if key in self.has_work:
            self.has_work.remove(key)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.desk.run())
        await settle()
        try:
            yield
            assert not task.done(), task.exception()
        finally:
            await self.desk.drain(0)
            task.cancel()
            await asyncio.wait([task])


async def test_a_key_that_is_ready_is_worked_on() -> None:
    office = Office()
    async with office.open():
        await office.desk.wake(["a", "b"])
        await until(lambda: office.ended[-1:] == ["b"])
        await settle()
        assert office.desk.busy == 0
        assert office.coordinator.held("q") == set()


async def test_a_key_is_never_worked_on_twice_at_once() -> None:
    office = Office()
    office.go_on.clear()
    async with office.open():
        await office.desk.wake(["a"])
        await until(lambda: office.began == ["a"])
        await office.desk.wake(["a"])
        office.coordinator.wipe()
        await office.desk.wake(["a"])
        await settle()
        assert office.began == ["a"]


async def test_a_key_that_woke_under_work_is_worked_on_again() -> None:
    office = Office()
    office.go_on.clear()
    async with office.open():
        await office.desk.wake(["a"])
        await until(lambda: office.began == ["a"])
        await office.desk.wake(["a"])
        office.go_on.set()
        await until(lambda: office.began == ["a", "a"])


async def test_no_more_keys_are_taken_than_there_is_room_for() -> None:
    office = Office(most_at_once=2)
    office.go_on.clear()
    async with office.open():
        await office.desk.wake(["a", "b", "c"])
        await until(lambda: len(office.began) == 2)
        await settle()
        assert office.desk.busy == 2
        assert office.coordinator.held("q") == {"a", "b"}
        office.go_on.set()
        await until(lambda: office.ended == ["a", "b", "c"])


async def test_the_janitor_finds_what_nobody_was_told() -> None:
    office = Office()
    async with office.open():
        office.has_work = ["a"]
        await office.clock.advance(2)
        await until(lambda: "a" in office.ended)


async def test_the_janitor_frees_what_a_dead_process_held() -> None:
    office = Office()
    await office.coordinator.notify("q", ["a"])
    await office.coordinator.claim("q", "dead", limit=1, lease_seconds=15, wait_seconds=0)
    async with office.open():
        await office.clock.advance(10)
        assert office.began == []
        await office.clock.advance(10)
        await until(lambda: "a" in office.ended)


async def test_work_that_takes_long_is_not_taken_away() -> None:
    office = Office()
    office.go_on.clear()
    async with office.open():
        await office.desk.wake(["a"])
        await until(lambda: office.began == ["a"])
        await office.clock.advance(60)
        taken = await office.coordinator.claim(
            "q", "other", limit=1, lease_seconds=15, wait_seconds=0
        )
        assert taken == []


async def test_while_the_coordinator_is_away_sql_is_asked() -> None:
    office = Office()
    office.coordinator.down = True
    async with office.open():
        office.has_work = ["a"]
        await office.desk.wake(["a"])
        await office.clock.advance(1)
        await until(lambda: "a" in office.ended)
        office.coordinator.down = False
        await office.clock.advance(1)
        await office.desk.wake(["b"])
        await until(lambda: office.ended[-1:] == ["b"])


async def test_a_store_that_fails_for_a_while_ends_nothing() -> None:
    office = Office()
    office.store_fails = office.coordinator.down = True
    async with office.open():
        await office.clock.advance(5)
        office.store_fails = office.coordinator.down = False
        office.has_work = ["a"]
        await office.clock.advance(2)
        await until(lambda: "a" in office.ended)


async def test_a_bug_in_one_key_leaves_the_others_alone() -> None:
    office = Office()
    office.failure = RuntimeError("a bug")
    async with office.open():
        await office.desk.wake(["a", "b"])
        await until(lambda: office.ended == ["b"])
        await settle()
        assert office.desk.busy == 0


async def test_what_a_full_disk_held_up_is_taken_again() -> None:
    office = Office()
    office.failure = StoreError("the disk is full")
    async with office.open():
        await office.desk.wake(["a"])
        await until(lambda: office.began == ["a"])
        await settle()
        await office.desk.wake(["a"])
        await until(lambda: "a" in office.ended)


async def test_draining_lets_work_end_and_takes_no_more() -> None:
    office = Office()
    office.go_on.clear()
    async with office.open():
        await office.desk.wake(["a"])
        await until(lambda: office.began == ["a"])
        draining = asyncio.create_task(office.desk.drain(10))
        await settle()
        await office.desk.wake(["b"])
        await settle()
        office.go_on.set()
        await draining
        assert office.ended == ["a"]
        assert office.began == ["a"]


async def test_work_that_outlasts_the_drain_is_cancelled() -> None:
    office = Office()
    office.go_on.clear()
    async with office.open():
        await office.desk.wake(["a"])
        await until(lambda: office.began == ["a"])
        await office.desk.drain(0.01)
        assert (office.desk.busy, office.ended) == (0, [])


async def test_who_stops_leaves_every_key_to_the_others_at_once() -> None:
    office = Office()
    office.go_on.clear()
    async with office.open():
        await office.desk.wake(["under work"])
        await until(lambda: office.began == ["under work"])
        office.desk.stopping = True
        await office.desk.wake(["new"])
        await settle()
        await office.desk.drain(0)
        await settle()
        ready = await office.coordinator.claim(
            "q", "other", limit=9, lease_seconds=15, wait_seconds=0
        )
        assert set(ready) == {"new", "under work"}
