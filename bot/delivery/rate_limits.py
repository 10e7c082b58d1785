"""Keep calls within a platform's rate limits: one budget per chat, shared by messages and edits.

A platform that answers 429 is not called again in that chat before its `retry_after` has passed.
The documented rates are approximate, so an answer is held to them only in a chat where the platform
refused a call within the last hour; the live edits of a growing answer always keep to them.
"""

from collections.abc import Set

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, MessageContent, OutgoingMessage
from bot.errors import RateLimited
from bot.ports import Clock, Surface

_MAX_SLEEP_SECONDS = 2.0
"""A shorter wait is slept through, a longer one is raised, so that the outbox reschedules."""
_ENFORCED_SECONDS = 3600.0
"""How long the rate of a chat holds for every call after a refusal."""
_MAX_LANES = 10_000


class RateLimiter:
    """Say when each lane may be called next (generic cell rate algorithm; it reads no clock)."""

    def __init__(self) -> None:
        self._next_arrival: dict[str, float] = {}  # the theoretical arrival time of each lane
        self._blocked_until: dict[str, float] = {}
        self._enforced_until: dict[str, float] = {}

    def seconds_until_allowed(
        self, lane: str, limits: Limits, now: float, *, reserve: int
    ) -> float:
        """Return how long to wait for a call that leaves `reserve` further ones free; 0: none."""
        blocked = self.seconds_blocked(lane, now)
        enforced = reserve > 0 or self._enforced_until.get(lane, now) > now
        if limits.calls_per_minute is None or not enforced:
            return blocked
        tolerance = (limits.burst - 1 - reserve) * 60 / limits.calls_per_minute
        return max(blocked, self._next_arrival.get(lane, now) - tolerance - now)

    def seconds_blocked(self, lane: str, now: float) -> float:
        """Return how long the platform refuses every call for this lane."""
        return max(0.0, self._blocked_until.get(lane, now) - now)

    def record_call(self, lane: str, limits: Limits, now: float) -> None:
        """Count a call that is made now."""
        if limits.calls_per_minute is None:
            return
        self._next_arrival[lane] = (
            max(self._next_arrival.get(lane, now), now) + 60 / limits.calls_per_minute
        )
        if len(self._next_arrival) > _MAX_LANES:
            self._next_arrival = {key: at for key, at in self._next_arrival.items() if at > now}

    def block(self, lane: str, now: float, seconds: float) -> None:
        """Allow no call for so long, and enforce the rate for a while after."""
        self._blocked_until = {key: at for key, at in self._blocked_until.items() if at > now}
        self._blocked_until[lane] = max(self._blocked_until.get(lane, now), now + seconds)
        self._enforced_until = {key: at for key, at in self._enforced_until.items() if at > now}
        self._enforced_until[lane] = now + _ENFORCED_SECONDS


class RateLimitedSurface(Surface):
    """A surface whose calls wait until the rate limiter allows them.

    With `best_effort`, for live edits, a call never waits and leaves one call to the outbox.
    """

    def __init__(
        self, surface: Surface, limiter: RateLimiter, clock: Clock, *, best_effort: bool = False
    ) -> None:
        self._surface = surface
        self._limiter = limiter
        self._clock = clock
        self._best_effort = best_effort

    @override
    def limits(self, address: Address) -> Limits:
        return self._surface.limits(address)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        await self._wait(message.address)
        try:
            return await self._surface.send(message)
        except RateLimited as error:
            raise self._block(message.address, error) from None

    @override
    async def edit(self, address: Address, message_id: str, content: MessageContent) -> None:
        await self._wait(address)
        try:
            await self._surface.edit(address, message_id, content)
        except RateLimited as error:
            raise self._block(address, error) from None

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        await self._wait(address)
        try:
            await self._surface.delete(address, message_id)
        except RateLimited as error:
            raise self._block(address, error) from None

    @override
    async def typing(self, address: Address) -> None:
        blocked = self._limiter.seconds_blocked(address.lane, self._clock.monotonic())
        if blocked > 0:
            raise RateLimited(blocked)
        await self._surface.typing(address)

    @override
    async def find(
        self, message: OutgoingMessage, *, after: str | None, known: Set[str]
    ) -> str | None:
        await self._wait(message.address)
        try:
            return await self._surface.find(message, after=after, known=known)
        except RateLimited as error:
            raise self._block(message.address, error) from None

    async def _wait(self, address: Address) -> None:
        """Wait until a call is allowed; raise `RateLimited` if that takes too long."""
        limits = self._surface.limits(address)
        while True:
            wait = self._limiter.seconds_until_allowed(
                address.lane, limits, self._clock.monotonic(), reserve=int(self._best_effort)
            )
            if wait <= 0:
                self._limiter.record_call(address.lane, limits, self._clock.monotonic())
                return
            if self._best_effort or wait > _MAX_SLEEP_SECONDS:
                raise RateLimited(wait)
            await self._clock.sleep(wait)

    def _block(self, address: Address, error: RateLimited) -> RateLimited:
        self._limiter.block(address.lane, self._clock.monotonic(), error.retry_after_seconds)
        return error
