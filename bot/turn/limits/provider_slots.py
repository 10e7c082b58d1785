"""Keep the requests that are in flight at a provider within its limit, over all processes."""

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping

from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.ports import Clock, RateLimits
from bot.replying.stop_flag import StopFlag
from bot.texts.text import translatable

_POLL_SECONDS = 0.1
_MAX_WAIT_SECONDS = 60.0
_BUSY = translatable("Too many people are asking at once. Please try again in a minute.")


class ProviderSlots:
    """Makes requests wait, in their order, while as many as allowed are in flight.

    Args:
        rates: what is held.
        clock: time.
        limits: the most requests at once, by provider; those without one are not limited.
        lease_seconds: after which the request of a process that died is not counted any more.
    """

    def __init__(
        self, rates: RateLimits, clock: Clock, limits: Mapping[str, int], lease_seconds: float
    ) -> None:
        self._rates = rates
        self._clock = clock
        self._limits = limits
        self._lease_seconds = lease_seconds
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: defaultdict[str, int] = defaultdict(int)

    def waiting(self, provider: str) -> int:
        """Return how many requests of this process wait for a slot."""
        return self._waiting[provider]

    @contextlib.asynccontextmanager
    async def hold(
        self, provider: str, stop: StopFlag, show_position: Callable[[QueuePosition], None]
    ) -> AsyncIterator[None]:
        """Hold a slot of a provider during the block; a stop ends the wait for it.

        Raises:
            BackendUnavailable: none became free in a minute; another model may answer.
        """
        limit = self._limits.get(provider)
        if limit is None:
            yield
            return
        holder = secrets.token_hex(8)
        try:
            if not stop.requested:
                with stop.ends_block():
                    await self._acquire(provider, limit, holder, show_position)
            yield
        finally:
            await self._rates.release(provider, holder)

    async def _acquire(
        self,
        provider: str,
        limit: int,
        holder: str,
        show_position: Callable[[QueuePosition], None],
    ) -> None:
        give_up_at = self._clock.monotonic() + _MAX_WAIT_SECONDS
        self._waiting[provider] += 1
        try:
            if self._turns[provider].locked():
                show_position(QueuePosition(self._waiting[provider], None))
            async with self._turns[provider]:
                while not await self._rates.acquire(provider, limit, holder, self._lease_seconds):
                    if self._clock.monotonic() >= give_up_at:
                        raise BackendUnavailable(
                            f"provider {provider!r} has {limit} requests in flight; set"
                            f" TROUPE_PROVIDERS__{provider.upper()}__MAX_IN_FLIGHT higher",
                            _BUSY,
                        )
                    await self._clock.sleep(_POLL_SECONDS)
        finally:
            self._waiting[provider] -= 1
