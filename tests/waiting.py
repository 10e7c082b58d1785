"""Wait for other tasks and the database, which take real time."""

import asyncio
from collections.abc import Callable

from tests.fakes import FakeClock

PATIENCE_SECONDS = 120.0
"""Ends a test that hangs; on a busy machine whatever is right may take nearly as long."""

BELOW_STALL_SECONDS = 40.0
"""For what must not wait for a server that says nothing for a minute."""


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 # no event: a look at what is there
            await asyncio.sleep(0.002)


async def advance_in_steps(clock: FakeClock, seconds: float) -> None:
    """Move the clock in small steps, with time for the database in between."""
    for _ in range(10):
        await clock.advance(seconds / 10)
        await asyncio.sleep(0.01)
