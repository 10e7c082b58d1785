"""Renew the leases of all conversations in progress together; stop those that were lost."""

import asyncio
import contextlib
from collections.abc import Iterator

from bot.chat.session import Claim
from bot.errors import Fenced, StoreError
from bot.ports import Clock, Conversations

LEASE_SECONDS = 15.0


class LeaseKeeper:
    """Renews every claim that is held here: one unit of work for all, every third of a lease."""

    def __init__(self, conversations: Conversations, clock: Clock) -> None:
        self._conversations = conversations
        self._clock = clock
        self._workers: dict[Claim, asyncio.Task[object]] = {}
        self._lost: set[Claim] = set()

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        while True:
            await self._clock.sleep(LEASE_SECONDS / 3)
            with contextlib.suppress(StoreError):  # if it lasts, `finish` raises it
                await self._renew()

    @contextlib.contextmanager
    def hold(self, claim: Claim) -> Iterator[None]:
        """Hold a claim while the block runs; if it is lost, cancel the block and raise `Fenced`."""
        worker = asyncio.current_task()
        assert worker is not None  # noqa: S101 -- claims are worked on by tasks
        self._workers[claim] = worker
        try:
            yield
        except asyncio.CancelledError:
            if claim in self._lost and worker.uncancel() == 0:
                raise Fenced(f"the lease of {claim.conversation} was lost") from None
            raise
        finally:
            del self._workers[claim]
            self._lost.discard(claim)

    async def _renew(self) -> None:
        held = [claim for claim in self._workers if claim not in self._lost]
        if not held:
            return
        for claim in await self._conversations.renew(held, LEASE_SECONDS):
            worker = self._workers.get(claim)
            if worker is not None:  # its block has not ended meanwhile
                self._lost.add(claim)
                worker.cancel()
