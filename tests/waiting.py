"""Wait for what happens between tasks and a database, which takes real time."""

import asyncio
from collections.abc import Callable

from tests.fakes import FakeClock

_A_WHILE_SECONDS = 20.0  # after which a test waits in vain


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_A_WHILE_SECONDS):
        while not condition():  # noqa: ASYNC110 # no event: a look at what is there
            await asyncio.sleep(0.002)


async def passes(clock: FakeClock, seconds: float) -> None:
    """Let time pass in small steps, and the database answer in between."""
    for _ in range(10):
        await clock.advance(seconds / 10)
        await asyncio.sleep(0.01)
