"""Test that one loop renews all leases, and that only the work of a lost one is stopped."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

import pytest
from typing_extensions import override

from bot.chat.session import Claim
from bot.errors import Fenced, StoreError
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.turn.claims import LEASE_SECONDS, LeaseKeeper
from tests.fakes import FakeClock, run_ready_tasks

ONE, TWO = Claim("telegram:1", 1, "me"), Claim("telegram:2", 1, "me")


class ScriptedLeases(Conversations):
    """Records what is renewed, and says that some of it was `lost`."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        super().__init__(database, clock)
        self.renewed: list[list[Claim]] = []
        self.lost: set[Claim] = set()
        self.is_down = False

    @override
    async def renew(self, claims: Collection[Claim], lease_seconds: float) -> Sequence[Claim]:
        self.renewed.append(list(claims))
        if self.is_down:
            raise StoreError("down")
        return [one for one in claims if one in self.lost]


class Setup:
    """A keeper that runs, and workers that hold a claim until they are told to end."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        self.leases = ScriptedLeases(database, self.clock)
        self.keeper = LeaseKeeper(self.leases, self.clock)
        self.end = asyncio.Event()

    async def work(self, claim: Claim) -> None:
        with self.keeper.hold(claim):
            await self.end.wait()


async def test_all_leases_are_renewed_together_until_their_work_ends(database: Database) -> None:
    setup = Setup(database)
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(setup.keeper.run())
        workers = [group.create_task(setup.work(claim)) for claim in (ONE, TWO)]
        await setup.clock.advance(LEASE_SECONDS / 3)
        setup.end.set()
        await asyncio.wait(workers)
        await setup.clock.advance(LEASE_SECONDS)
        keeping.cancel()
    assert setup.leases.renewed == [[ONE, TWO]]


async def test_only_the_work_of_a_lost_lease_is_stopped(database: Database) -> None:
    setup = Setup(database)
    setup.leases.lost = {ONE}
    keeping = asyncio.create_task(setup.keeper.run())
    lost, held = (asyncio.create_task(setup.work(claim)) for claim in (ONE, TWO))
    await setup.clock.advance(LEASE_SECONDS / 3)

    with pytest.raises(Fenced):
        await lost
    assert not held.done()
    setup.end.set()
    await held
    keeping.cancel()


async def test_work_goes_on_while_the_database_is_down(database: Database) -> None:
    setup = Setup(database)
    setup.leases.is_down = True
    keeping = asyncio.create_task(setup.keeper.run())
    worker = asyncio.create_task(setup.work(ONE))
    await setup.clock.advance(2 * LEASE_SECONDS / 3)
    assert len(setup.leases.renewed) == 2
    assert not worker.done()
    keeping.cancel()
    worker.cancel()


async def test_cancellation_from_elsewhere_is_no_lost_lease(database: Database) -> None:
    setup = Setup(database)
    worker = asyncio.create_task(setup.work(ONE))
    await run_ready_tasks()
    worker.cancel()
    with suppress(asyncio.CancelledError):
        await worker
    assert worker.cancelled()


async def test_claim_is_certain_for_half_a_lease_after_its_newest_proof(database: Database) -> None:
    setup = Setup(database)
    setup.keeper.note([ONE, TWO], setup.clock.monotonic())
    workers = [asyncio.create_task(setup.work(claim)) for claim in (ONE, TWO)]
    await setup.clock.advance(LEASE_SECONDS / 3)
    setup.leases.lost = {TWO}
    keeping = asyncio.create_task(setup.keeper.run())
    await setup.clock.advance(LEASE_SECONDS / 3)
    assert [setup.keeper.is_certain(claim) for claim in (ONE, TWO)] == [True, False]
    setup.leases.is_down = True  # or this process stands still
    await setup.clock.advance(LEASE_SECONDS / 2)
    assert not setup.keeper.is_certain(ONE)
    setup.end.set()
    keeping.cancel()
    await asyncio.wait([*workers, keeping])
