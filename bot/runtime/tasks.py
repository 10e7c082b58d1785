"""Cancel tasks, also those in which a library swallows or delays the cancellation."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_CANCEL_AGAIN_SECONDS = 3.0
_ending: set[asyncio.Future[Any]] = set()
"""What was abandoned and has not ended yet: the event loop alone would not keep it."""


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their exceptions stay in them.

    A task that goes on is cancelled again: up to Python 3.11 `asyncio.wait_for` loses a
    cancellation that arrives at the moment its result does.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)


async def finish_within(seconds: float, work: Awaitable[T]) -> T:
    """Return what some work returns, or abandon it.

    `asyncio.timeout` waits until what it has cancelled has ended, and a statement ends seconds
    after that where the server stands still.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
    finally:  # unless it is done; then what it raises is left out
        _ending.add(task)
        task.add_done_callback(_forget)
        task.cancel()
    raise TimeoutError


def _forget(task: asyncio.Future[Any]) -> None:
    _ending.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio reports that nobody has looked at it
