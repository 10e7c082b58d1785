"""Hold a conversation: its lease is renewed in time, and who loses it is stopped at once."""

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
    """Renew the lease while the block runs; when it is lost, the block ends with `Fenced`."""
    running_worker = asyncio.current_task()
    renewing = asyncio.create_task(_renew(conversations, claim, clock), name="renew lease")
    inside = True

    def stop(renewed: asyncio.Task[None]) -> None:
        if _failed(renewed) and inside and running_worker is not None:
            running_worker.cancel()

    renewing.add_done_callback(stop)
    try:
        yield
    except asyncio.CancelledError:
        if running_worker is not None and _failed(renewing) and running_worker.uncancel() == 0:
            lost = renewing.exception()
            raise Fenced(f"the lease of {claim.conversation} was lost") from lost
        raise
    finally:
        inside = False
        renewing.cancel()


async def _renew(conversations: Conversations, claim: Claim, clock: Clock) -> None:
    while True:
        await clock.sleep(LEASE_SECONDS / 3)
        with contextlib.suppress(StoreError):  # should it last, `finish` finds out
            await conversations.renew(claim, LEASE_SECONDS)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
