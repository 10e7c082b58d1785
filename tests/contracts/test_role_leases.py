"""Contract of role leases: one holder at a time, on SQLite and on PostgreSQL."""

import asyncio

from bot.runtime.clock import SystemClock
from bot.storage.leases import SqlRoleLeases
from tests.fakes import FakeClock
from tests.support.store import Store

ROLE = "receive telegram"


def leases(store: Store, owner: str) -> SqlRoleLeases:
    return SqlRoleLeases(store.database, owner, SystemClock())


async def test_one_process_at_a_time_holds_a_role(store: Store) -> None:
    ours, theirs = leases(store, "us"), leases(store, "them")
    assert await ours.take(ROLE, 60)
    assert not await theirs.take(ROLE, 60)
    assert await ours.take(ROLE, 60), "its holder renews it"
    assert await theirs.take("another role", 60)


async def test_one_of_many_concurrent_requests_gets_the_lease(store: Store) -> None:
    processes = [leases(store, f"process {number}") for number in range(8)]
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one.take(ROLE, 60)) for one in processes]
    assert sorted(task.result() for task in asked) == [False] * 7 + [True]


async def test_released_or_expired_role_is_free(store: Store) -> None:
    ours, theirs = leases(store, "us"), leases(store, "them")
    assert await ours.take(ROLE, 60)
    await theirs.release(ROLE)
    assert not await theirs.take(ROLE, 60), "only its holder can give it back"
    await ours.release(ROLE)
    assert await theirs.take(ROLE, -1)
    assert await ours.take(ROLE, 60), "theirs has expired"
    assert not await theirs.take(ROLE, 60)


async def test_only_sqlite_trusts_the_clocks_of_processes(store: Store) -> None:
    ours, fast = leases(store, "us"), FakeClock(SystemClock().now() + 90)
    assert await ours.take(ROLE, 60)
    theirs = SqlRoleLeases(store.database, "them", fast)
    assert await theirs.take(ROLE, 60) == store.database.is_sqlite
