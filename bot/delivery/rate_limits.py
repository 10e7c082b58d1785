"""Keep to what a platform allows: one clock per chat, shared by messages and edits.

A platform that says 429 is not asked again in that chat before its time is up. The rates of a
platform are folklore, so an answer waits for them only in a chat where the platform has refused one
lately; the edits of an answer in the making always keep to them.
"""

from collections.abc import Set

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, OutgoingMessage
from bot.errors import RateLimited
from bot.ports import Clock, Surface

_PATIENCE_SECONDS = 2.0  # a wait up to this long is slept through; for more the outbox is told
_CAREFUL_SECONDS = 3600.0  # after a refusal a chat's rate holds for everything
_FORGET_AFTER = 10_000  # lanes whose clocks are kept at most


class RateLimiter:
    """When each lane may be written to next (the generic cell rate algorithm, without a clock)."""

    def __init__(self) -> None:
        self._earliest: dict[str, float] = {}  # the theoretical arrival time of each lane
        self._blocked_until: dict[str, float] = {}
        self._careful_until: dict[str, float] = {}

    def seconds_until_free(self, lane: str, limits: Limits, now: float, *, reserve: int) -> float:
        """How long to wait for a call that leaves `reserve` further ones free; 0: go ahead."""
        blocked = self.seconds_blocked(lane, now)
        careful = reserve > 0 or self._careful_until.get(lane, now) > now
        if limits.calls_per_minute is None or not careful:
            return blocked
        tolerance = (limits.burst - 1 - reserve) * 60 / limits.calls_per_minute
        return max(blocked, self._earliest.get(lane, now) - tolerance - now)

    def seconds_blocked(self, lane: str, now: float) -> float:
        """How long the platform wants to hear nothing at all from there."""
        return max(0.0, self._blocked_until.get(lane, now) - now)

    def count(self, lane: str, limits: Limits, now: float) -> None:
        """Note a call that goes out now."""
        if limits.calls_per_minute is None:
            return
        self._earliest[lane] = (
            max(self._earliest.get(lane, now), now) + 60 / limits.calls_per_minute
        )
        if len(self._earliest) > _FORGET_AFTER:
            self._earliest = {key: at for key, at in self._earliest.items() if at > now}

    def block(self, lane: str, now: float, seconds: float) -> None:
        """Keep away for so long, and to the rate for a while after."""
        self._blocked_until = {key: at for key, at in self._blocked_until.items() if at > now}
        self._blocked_until[lane] = max(self._blocked_until.get(lane, now), now + seconds)
        self._careful_until = {key: at for key, at in self._careful_until.items() if at > now}
        self._careful_until[lane] = now + _CAREFUL_SECONDS


class RateLimitedSurface(Surface):
    """A surface that waits for its turn. As a `courtesy` it never waits and leaves one call free.

    The edits of an answer in the making are a courtesy; what the outbox sends is not.
    """

    def __init__(
        self, surface: Surface, pace: RateLimiter, clock: Clock, *, courtesy: bool = False
    ) -> None:
        self._surface = surface
        self._pace = pace
        self._clock = clock
        self._courtesy = courtesy

    @override
    def limits(self, address: Address) -> Limits:
        return self._surface.limits(address)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        await self._turn(message.address)
        try:
            return await self._surface.send(message)
        except RateLimited as error:
            raise self._blocked(message.address, error) from None

    @override
    async def edit(self, address: Address, message_id: str, text: str) -> None:
        await self._turn(address)
        try:
            await self._surface.edit(address, message_id, text)
        except RateLimited as error:
            raise self._blocked(address, error) from None

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        await self._turn(address)
        try:
            await self._surface.delete(address, message_id)
        except RateLimited as error:
            raise self._blocked(address, error) from None

    @override
    async def typing(self, address: Address) -> None:
        blocked = self._pace.seconds_blocked(address.lane, self._clock.monotonic())
        if blocked > 0:
            raise RateLimited(blocked)
        await self._surface.typing(address)

    @override
    async def find(
        self, message: OutgoingMessage, *, after: str | None, known: Set[str]
    ) -> str | None:
        await self._turn(message.address)
        try:
            return await self._surface.find(message, after=after, known=known)
        except RateLimited as error:
            raise self._blocked(message.address, error) from None

    async def _turn(self, address: Address) -> None:
        limits = self._surface.limits(address)
        while True:
            wait = self._pace.seconds_until_free(
                address.lane, limits, self._clock.monotonic(), reserve=int(self._courtesy)
            )
            if wait <= 0:
                self._pace.count(address.lane, limits, self._clock.monotonic())
                return
            if self._courtesy or wait > _PATIENCE_SECONDS:
                raise RateLimited(wait)
            await self._clock.sleep(wait)

    def _blocked(self, address: Address, error: RateLimited) -> RateLimited:
        self._pace.block(address.lane, self._clock.monotonic(), error.retry_after_seconds)
        return error
