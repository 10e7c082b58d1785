"""A key that is claimed while its last work is ending is worked on, not held idle."""

import asyncio
from collections.abc import Sequence

from typing_extensions import override

from bot.desk import Desk
from tests.fakes import FakeClock, FakeCoordinator, settle


class SlowToAnswer(FakeCoordinator):
    """Lets a key go at once, but the answer that says so is long under way."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.answers = asyncio.Event()

    @override
    async def done(self, queue: str, key: str, owner: str) -> None:
        await super().done(queue, key, owner)
        await self.answers.wait()


async def test_a_key_claimed_while_its_last_work_ends_is_worked_on_again() -> None:
    clock = FakeClock()
    coordinator = SlowToAnswer(clock)
    worked: list[str] = []

    async def nothing(_limit: int) -> Sequence[str]:
        return []

    async def work(key: str) -> None:
        worked.append(key)

    desk = Desk(
        "q",
        coordinator=coordinator,
        waiting=nothing,
        work=work,
        owner="me",
        most_at_once=10,
        clock=clock,
    )
    running = asyncio.create_task(desk.run())
    await desk.wake(["a"])
    await settle()
    await desk.wake(["a"])
    await settle()
    assert worked == ["a"]

    coordinator.answers.set()
    await settle()

    assert worked == ["a", "a"]
    await desk.drain(0)
    running.cancel()
    await asyncio.wait([running])
