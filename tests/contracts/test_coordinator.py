"""Contract of the coordinator, on Valkey, Redis and the fake."""

import asyncio
import random

import pytest

from bot.errors import CoordinatorUnavailable
from bot.ports import Coordinator
from bot.storage.coordination.redis import open_coordinator


async def claim(coordinator: Coordinator, owner: str = "me", wait: float = 0) -> list[str]:
    return list(await coordinator.claim("q", owner, limit=10, lease_seconds=0.2, wait_seconds=wait))


async def test_ready_key_is_leased_to_one_owner(coordinator: Coordinator) -> None:
    await coordinator.notify("q", ["a", "b"])
    assert await claim(coordinator) == ["a", "b"]
    assert await claim(coordinator, "other") == []


async def test_key_notified_while_leased_is_ready_after_release(
    coordinator: Coordinator,
) -> None:
    await coordinator.notify("q", ["a"])
    await claim(coordinator)
    await coordinator.notify("q", ["a"])
    assert await claim(coordinator) == []
    await coordinator.release("q", "a", "me")
    assert await claim(coordinator) == ["a"]


async def test_released_key_is_not_ready(coordinator: Coordinator) -> None:
    await coordinator.notify("q", ["a"])
    await claim(coordinator)
    await coordinator.release("q", "a", "me")
    assert await claim(coordinator) == []


async def test_only_the_owner_can_release(coordinator: Coordinator) -> None:
    await coordinator.notify("q", ["a"])
    await claim(coordinator)
    await coordinator.notify("q", ["a"])
    await coordinator.release("q", "a", "other")
    assert await claim(coordinator) == []


async def test_key_with_an_expired_lease_is_ready_again(coordinator: Coordinator) -> None:
    await coordinator.notify("q", ["a"])
    await claim(coordinator)
    assert await coordinator.release_expired("q") == 0
    await asyncio.sleep(0.3)
    assert await coordinator.release_expired("q") == 1
    assert await claim(coordinator, "other") == ["a"]


async def test_renewed_lease_does_not_expire(coordinator: Coordinator) -> None:
    await coordinator.notify("q", ["a"])
    await claim(coordinator)
    await coordinator.renew("q", ["a"], "me", 60)
    await asyncio.sleep(0.3)
    assert await coordinator.release_expired("q") == 0


async def test_claim_waits_for_the_first_key(coordinator: Coordinator) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(claim(coordinator, wait=5))
        await asyncio.sleep(0.05)
        await coordinator.notify("q", ["a"])
    assert waiting.result() == ["a"]


async def test_queues_do_not_mix(coordinator: Coordinator) -> None:
    await coordinator.notify("other", ["a"])
    assert await claim(coordinator) == []


async def test_unreachable_server_raises_coordinator_unavailable() -> None:
    async with open_coordinator("redis://127.0.0.1:1/0") as unreachable:
        with pytest.raises(CoordinatorUnavailable):
            await unreachable.notify("q", ["a"])


async def test_response_to_a_cancelled_call_reaches_no_other_caller(
    coordinator: Coordinator,
) -> None:
    """A response left on a shared connection once showed users of a chat bot others' data."""
    random_source = random.Random(1)

    async def calls(queue: str) -> list[str]:
        got: list[str] = []
        for number in range(40):
            await coordinator.notify(queue, [f"{queue}:{number}"])
            wait = random_source.choice([0.0, 0.0005])
            try:
                async with asyncio.timeout(random_source.choice([0, 0.0002, 0.001, 5])):
                    got += await coordinator.claim(
                        queue, "me", limit=3, lease_seconds=60, wait_seconds=wait
                    )
            except TimeoutError:
                continue
        return got

    async with asyncio.TaskGroup() as group:
        tasks = {queue: group.create_task(calls(queue)) for queue in "abcdefgh"}

    for queue, task in tasks.items():
        assert task.result()
        assert {key.partition(":")[0] for key in task.result()} == {queue}


async def test_call_can_be_cancelled_at_any_moment(coordinator: Coordinator) -> None:
    """A cancellation that coincided with a response was once swallowed."""

    async def calls() -> None:
        while True:
            await coordinator.notify("q", ["a"])
            await coordinator.release_expired("q")
            await asyncio.sleep(0)  # the fake never waits

    for steps in range(200):
        task = asyncio.create_task(calls())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled(), f"after {steps} steps"
