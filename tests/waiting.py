"""Wait for other tasks, other processes, and the database, which take real time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakSet

from bot.storage.sqlite import SqliteThreads
from tests.fakes import FakeClock, run_ready_tasks

PATIENCE_SECONDS = 120.0
"""The timeout for tests that hang; on a busy machine, a correct test may take nearly as long."""

BELOW_STALL_SECONDS = 40.0
"""For actions that must not wait for a server that is silent for a minute."""

_STUCK_SECONDS = 30.0  # a thread that works for longer is held up by the test
T = TypeVar("T")
_in_threads = WeakSet[asyncio.Future[Any]]()


def _watched(start: Callable[..., asyncio.Future[Any]]) -> Callable[..., asyncio.Future[Any]]:
    def begin(*args: Any) -> asyncio.Future[Any]:
        work = start(*args)
        _in_threads.add(work)
        return work

    return begin


for owner, name in ((asyncio.BaseEventLoop, "run_in_executor"), (SqliteThreads, "submit")):
    setattr(owner, name, _watched(getattr(owner, name)))


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
    """Wait until `await condition()` is true."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def settle() -> None:
    """Wait until no thread works for this loop, so that all tasks wait for the clock or test."""
    await run_ready_tasks()
    loop = asyncio.get_running_loop()
    while working := {one for one in _in_threads if one.get_loop() is loop and not one.done()}:
        done, _ = await asyncio.wait(working, timeout=_STUCK_SECONDS)
        await run_ready_tasks()
        if not done:
            return


async def advance_in_steps(clock: FakeClock, seconds: float) -> None:
    """Move the clock in small steps, with time for the database in between."""
    for _ in range(10):
        await settle()
        await clock.advance(seconds / 10)
    await settle()
