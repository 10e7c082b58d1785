"""End tasks of ours in a way that a library cannot overlook."""

import asyncio
from collections.abc import Iterable
from typing import Any

_INSIST_SECONDS = 3.0


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raised stays in them.

    One that goes on is cancelled again: up to Python 3.11 `asyncio.wait_for` forgets a
    cancellation that comes in the moment in which what it waits for is there.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=_INSIST_SECONDS)
