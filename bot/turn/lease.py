"""Renew the leases of all conversations in progress together; stop those that were lost."""

import asyncio
import contextlib
from collections.abc import Collection, Iterator

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
        self._held_since: dict[Claim, float] = {}  # the newest proof, by the monotonic clock
        self._lost: set[Claim] = set()

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        while True:
            await self._clock.sleep(LEASE_SECONDS / 3)
            with contextlib.suppress(StoreError):  # if it lasts, `finish` raises it
                await self._renew()

    def note(self, claims: Collection[Claim], asked_at: float) -> None:
        """Note that claims were held at some moment of the monotonic clock, or later."""
        self._held_since.update(dict.fromkeys(claims, asked_at))

    def is_certain(self, claim: Claim) -> bool:
        """Return whether a request that leaves now arrives before anybody else can hold a claim.

        A worker that stood still has to ask before it changes what people see.
        """
        since = self._held_since.get(claim)
        return since is not None and self._clock.monotonic() < since + LEASE_SECONDS / 2

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
            self._held_since.pop(claim, None)
            self._lost.discard(claim)

    async def _renew(self) -> None:
        held = [claim for claim in self._workers if claim not in self._lost]
        if not held:
            return
        asked_at = self._clock.monotonic()
        lost = await self._conversations.renew(held, LEASE_SECONDS)
        self.note([one for one in held if one in self._workers and one not in lost], asked_at)
        for claim in lost:
            worker = self._workers.get(claim)
            if worker is not None:  # its block has not ended meanwhile
                self._lost.add(claim)
                worker.cancel()
