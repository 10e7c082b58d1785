"""Renew the lease of a claimed conversation, and stop its worker when the lease is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from bot.chat.session import Claim
from bot.errors import Fenced, StoreError
from bot.ports import Clock, Conversations

LEASE_SECONDS = 15.0


@contextlib.asynccontextmanager
async def renewed_lease(
    conversations: Conversations, claim: Claim, clock: Clock
) -> AsyncIterator[None]:
    """Renew the lease while the block runs; if it is lost, cancel the block and raise `Fenced`."""
    worker = asyncio.current_task()
    renewing = asyncio.create_task(_renew(conversations, claim, clock), name="renew lease")
    in_block = True

    def cancel_worker(renewed: asyncio.Task[None]) -> None:
        if _failed(renewed) and in_block and worker is not None:
            worker.cancel()

    renewing.add_done_callback(cancel_worker)
    try:
        yield
    except asyncio.CancelledError:
        if worker is not None and _failed(renewing) and worker.uncancel() == 0:
            lost = renewing.exception()
            raise Fenced(f"the lease of {claim.conversation} was lost") from lost
        raise
    finally:
        in_block = False
        renewing.cancel()


async def _renew(conversations: Conversations, claim: Claim, clock: Clock) -> None:
    while True:
        await clock.sleep(LEASE_SECONDS / 3)
        with contextlib.suppress(StoreError):  # if it lasts, `finish` raises it
            await conversations.renew(claim, LEASE_SECONDS)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
