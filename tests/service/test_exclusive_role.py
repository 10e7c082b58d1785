"""Test that work moves to another process when its holder ends, hangs or loses the database."""

import asyncio

import pytest
from typing_extensions import override

from bot.errors import StoreError
from bot.ports import RoleLeases
from bot.runtime.tasks import cancel_and_wait
from bot.service.exclusive_platform import ExclusivePlatform
from bot.service.exclusive_role import ExclusiveRole
from tests.fakes import FakeClock
from tests.platforms.telegram.conftest import FakeIntake
from tests.service.test_platform_supervisor import FakePlatform


class Leases:
    """Leases in memory; each process has its own view of them."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.held: dict[str, tuple[str, float]] = {}

    def of(self, owner: str) -> "ProcessLeases":
        return ProcessLeases(self, owner)


class ProcessLeases(RoleLeases):
    def __init__(self, leases: Leases, owner: str) -> None:
        self.has_database = True
        self._leases = leases
        self._owner = owner

    @override
    async def take(self, role: str, seconds: float) -> bool:
        if not self.has_database:
            raise StoreError("the database failed: away")
        now, held = self._leases.clock.now(), self._leases.held
        owner, until = held.get(role, (self._owner, 0.0))
        if owner != self._owner and until >= now:
            return False
        held[role] = self._owner, now + seconds
        return True

    @override
    async def release(self, role: str) -> None:
        if self._leases.held.get(role, ("", 0.0))[0] == self._owner:
            del self._leases.held[role]


class Process:
    """A process that does the work whenever it may."""

    def __init__(self, leases: Leases, name: str) -> None:
        self.leases = leases.of(name)
        self.role = ExclusiveRole("work", self.leases, leases.clock)
        self.is_working = False
        self.starts = 0
        self.task = asyncio.create_task(self.role.run(self._work))

    async def _work(self) -> None:
        self.is_working = True
        self.starts += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def two_processes(clock: FakeClock) -> tuple[Process, Process]:
    leases = Leases(clock)
    first = Process(leases, "first")
    await clock.advance(0)
    second = Process(leases, "second")
    await clock.advance(60)
    assert (first.is_working, second.is_working) == (True, False)
    assert (first.role.is_standby, second.role.is_standby) == (False, True)
    assert first.starts == 1, "a renewal does not start the work again"
    return first, second


async def test_standby_takes_over_at_once_from_a_process_that_ends(clock: FakeClock) -> None:
    first, second = await two_processes(clock)
    await cancel_and_wait([first.task])
    await clock.advance(2)
    assert second.is_working
    await cancel_and_wait([second.task])


async def test_standby_takes_over_from_a_killed_process(clock: FakeClock) -> None:
    first, second = await two_processes(clock)
    first.leases.has_database = False  # nothing of it reaches the database any more
    await clock.advance(7)
    assert not second.is_working, "its lease may not have ended"
    await clock.advance(6)
    assert second.is_working
    await cancel_and_wait([first.task, second.task])


async def test_process_that_cannot_renew_stops_before_the_standby_begins(clock: FakeClock) -> None:
    first, second = await two_processes(clock)
    first.leases.has_database = False
    for _ in range(150):
        await clock.advance(0.1)
        assert not (first.is_working and second.is_working)
    assert second.is_working
    first.leases.has_database = True
    await clock.advance(5)
    assert first.role.is_standby
    await cancel_and_wait([first.task, second.task])


async def test_errors_of_the_work_go_through_and_free_the_role(clock: FakeClock) -> None:
    leases = Leases(clock)
    role = ExclusiveRole("work", leases.of("first"), clock)

    async def fail() -> None:
        raise ConnectionError("the platform is away")

    with pytest.raises(ConnectionError):
        await role.run(fail)
    assert leases.held == {}


async def test_platform_that_stands_by_has_no_problem(clock: FakeClock) -> None:
    leases = Leases(clock)
    other = Process(leases, "other")
    await clock.advance(0)
    platform = FakePlatform()
    exclusive = ExclusivePlatform(platform, ExclusiveRole("work", leases.of("this"), clock))
    assert exclusive.connection_error == "not connected"
    running = asyncio.create_task(exclusive.run(FakeIntake()))
    await clock.advance(5)
    assert not platform.connected
    assert exclusive.connection_error is None
    await cancel_and_wait([other.task])
    await clock.advance(5)
    assert platform.connected
    assert exclusive.connection_error is None
    await cancel_and_wait([running])
