"""Test that a role moves to another process if its holder ends, hangs, or loses the database."""

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import REGISTRY
from typing_extensions import override

from bot.errors import StoreError
from bot.ports import Intake, ShardedPlatform
from bot.runtime.tasks import cancel_and_wait
from bot.service.exclusive_role import ExclusiveReceiver, ExclusiveRole, ShardReceiver
from bot.storage.leases import SqlRoleLeases
from tests.fakes import FakeClock
from tests.service.test_platform_supervisor import FakePlatform
from tests.support.intake import FakeIntake


class Leases:
    """Leases in memory, with a view for each process."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.held: dict[str, tuple[str, float]] = {}

    def of(self, owner: str) -> "ProcessLeases":
        return ProcessLeases(self, owner)


class ProcessLeases(SqlRoleLeases):
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

    @override
    async def list_held_roles(self, prefix: str) -> Sequence[str]:
        now = self._leases.clock.now()
        return [
            role
            for role, (_, until) in self._leases.held.items()
            if role.startswith(prefix) and until >= now
        ]


class Process:
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


async def test_standby_takes_over_at_once_when_the_active_process_ends(clock: FakeClock) -> None:
    first, second = await two_processes(clock)
    await cancel_and_wait([first.task])
    await clock.advance(1)
    assert second.is_working
    await cancel_and_wait([second.task])


async def test_standby_takes_over_when_the_active_process_is_killed(clock: FakeClock) -> None:
    first, second = await two_processes(clock)
    first.leases.has_database = False  # nothing of it reaches the database any more
    await clock.advance(7)
    assert not second.is_working, "its lease may not have ended"
    await clock.advance(6)
    assert second.is_working
    await cancel_and_wait([first.task, second.task])


async def test_process_that_cannot_renew_its_lease_stops_before_the_standby_starts(
    clock: FakeClock,
) -> None:
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


async def test_error_in_the_work_propagates_and_releases_the_role(clock: FakeClock) -> None:
    leases = Leases(clock)
    role = ExclusiveRole("work", leases.of("first"), clock)

    async def fail() -> None:
        raise ConnectionError("the platform is away")

    with pytest.raises(ConnectionError):
        await role.run(fail)
    assert leases.held == {}


async def test_standby_platform_reports_no_problem(clock: FakeClock) -> None:
    leases = Leases(clock)
    other = Process(leases, "other")
    await clock.advance(0)
    platform = FakePlatform()
    exclusive = ExclusiveReceiver(platform, ExclusiveRole("work", leases.of("this"), clock))
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


class FakeShards(FakePlatform, ShardedPlatform):
    """A platform with four shards that records which of them are running."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: set[str] = set()

    @override
    async def list_shards(self) -> Sequence[str]:
        return [f"{number}/4" for number in range(4)]

    @override
    async def run_shard(self, shard: str, intake: Intake) -> None:
        self.shown.add(shard)
        try:
            await asyncio.Event().wait()
        finally:
            self.shown.remove(shard)


class Sharing:
    def __init__(self, leases: Leases, name: str) -> None:
        self.leases = leases.of(name)
        self.shards = FakeShards()
        shared = ShardReceiver(self.shards, "fake", name, self.leases, leases.clock)
        self.platform = shared
        self.task = asyncio.create_task(shared.run(FakeIntake()))


async def settle(clock: FakeClock, seconds: int) -> None:
    """Advance the clock in small steps, so that the processes can run in between."""
    for _ in range(seconds * 2):
        await clock.advance(0.5)


async def test_shards_are_distributed_evenly_with_one_holder_each(clock: FakeClock) -> None:
    leases = Leases(clock)
    first = Sharing(leases, "first")
    await settle(clock, 5)
    assert len(first.shards.shown) == 4

    second = Sharing(leases, "second")
    await settle(clock, 15)
    assert (len(first.shards.shown), len(second.shards.shown)) == (2, 2)
    assert not first.shards.shown & second.shards.shown

    second.leases.has_database = False  # killed: nothing of it reaches the database
    await settle(clock, 30)
    assert len(first.shards.shown) == 4
    assert not second.shards.shown, "it stops before the other begins"
    await cancel_and_wait([first.task, second.task])


async def test_shards_of_an_ended_process_are_taken_over_in_two_seconds(clock: FakeClock) -> None:
    leases = Leases(clock)
    first, second = Sharing(leases, "first"), Sharing(leases, "second")
    await settle(clock, 20)
    assert len(first.shards.shown | second.shards.shown) == 4
    await cancel_and_wait([first.task])
    await clock.advance(2)
    assert len(second.shards.shown) == 4
    await cancel_and_wait([second.task])
    assert not [role for role, (_, until) in leases.held.items() if until > clock.now()]


async def test_metrics_show_which_roles_are_held(clock: FakeClock) -> None:
    """Only platform roles count, or a sender that deletes expired rows would silence an alert."""
    leases = Leases(clock)

    def held(role: str) -> float | None:
        return REGISTRY.get_sample_value("troupe_held_roles", {"role": role})

    async def wait_forever() -> None:
        await asyncio.Event().wait()

    shards = [
        ExclusiveRole(f"receive test {number}", leases.of("one"), clock, metric_name="receive test")
        for number in range(2)
    ]
    assert held("receive test") == 0
    tasks = [asyncio.create_task(one.run(wait_forever)) for one in shards]
    await clock.advance(1)
    assert held("receive test") == 2
    await cancel_and_wait(tasks)
    assert held("receive test") == 0
