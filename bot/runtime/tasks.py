"""Cancel tasks, also those in which a library swallows the cancellation."""

import asyncio
from collections.abc import Iterable
from typing import Any

_CANCEL_AGAIN_SECONDS = 3.0


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
