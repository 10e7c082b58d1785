"""What a process runs for each of its roles, beside the platforms: start, jobs, drain."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from bot.chat.outgoing import OutboxRow
from bot.errors import StoreError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock
from bot.runtime.keyed_worker_pool import KeyedWorkerPool

DRAIN_SECONDS = 10.0
"""How long the work in progress of one role may go on after a signal."""
_DRAIN_POLL_SECONDS = 0.05


@frozen_dataclass
class RolePart:
    """What one role needs of the process that has it."""

    start: Callable[[], Awaitable[None]]
    """Give back what this process held in an earlier life."""

    jobs: Sequence[Callable[[], Awaitable[None]]]
    """What runs until the process ends."""

    drain: Callable[[], Awaitable[None]]
    """Finish what is in progress, and begin nothing new."""


async def drain_lanes(lanes: KeyedWorkerPool[OutboxRow], clock: Clock, *, is_alone: bool) -> None:
    """Send what is queued if no other process will, else only what was begun."""
    if not is_alone:
        await lanes.drain(DRAIN_SECONDS)
        return
    with contextlib.suppress(TimeoutError, StoreError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while not await lanes.is_idle():
                await clock.sleep(_DRAIN_POLL_SECONDS)
    await lanes.drain(0)
