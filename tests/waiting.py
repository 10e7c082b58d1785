"""Wait for other tasks, processes and the database, which take real time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.fakes import FakeClock

PATIENCE_SECONDS = 120.0
"""Ends a test that hangs; on a busy machine whatever is right may take nearly as long."""

BELOW_STALL_SECONDS = 40.0
"""For what must not wait for a server that says nothing for a minute."""

T = TypeVar("T")


async def wait_until(condition: Callable[[], T | None], seconds: float = PATIENCE_SECONDS) -> T:
    """Wait until `condition()` is true, and return its value."""
    interval = 0.002
    async with asyncio.timeout(seconds):
        while not (found := condition()):
            await asyncio.sleep(interval)
            interval = min(0.02, 1.2 * interval)  # another process may make it so
    return found


async def wait_until_async(
    condition: Callable[[], Awaitable[object]], seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait until what `condition()` gives is true; it asks another process or a server."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def advance_in_steps(clock: FakeClock, seconds: float) -> None:
    """Move the clock in small steps, with time for the database in between."""
    for _ in range(10):
        await clock.advance(seconds / 10)
        await asyncio.sleep(0.01)
