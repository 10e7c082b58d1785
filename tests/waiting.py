"""Wait for other tasks and the database, which take real time."""

import asyncio
from collections.abc import Callable

from tests.fakes import FakeClock

_TIMEOUT_SECONDS = 60.0


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 # no event: a look at what is there
            await asyncio.sleep(0.002)


async def advance_in_steps(clock: FakeClock, seconds: float) -> None:
    """Move the clock in small steps, with time for the database in between."""
    for _ in range(10):
        await clock.advance(seconds / 10)
        await asyncio.sleep(0.01)
