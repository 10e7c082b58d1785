"""Rate limits inside one process (generic cell rate algorithm)."""

from collections import defaultdict
from collections.abc import Sequence

from typing_extensions import override

from bot.chat.rate import Rate
from bot.ports import Clock, RateLimits

_MAX_KEYS = 10_000


class InProcessRateLimits(RateLimits):
    """Keeps the next theoretical arrival of every key, and who holds its places, in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_arrival: dict[str, float] = {}
        self._holders: defaultdict[str, dict[str, float]] = defaultdict(dict)

    @override
    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        now = self._clock.monotonic()
        arrivals = [self._next_arrival.get(rate.key, now) for rate in rates]
        due = [at - rate.tolerance for rate, at in zip(rates, arrivals, strict=True)]
        begin = max([now, *due])
        if begin - now <= max_wait_seconds:
            for rate, at in zip(rates, arrivals, strict=True):
                self._next_arrival[rate.key] = max(at, begin) + rate.interval
            self._forget_past(now)
        return begin - now

    @override
    async def acquire(self, key: str, limit: int, holder: str, lease_seconds: float) -> bool:
        now = self._clock.monotonic()
        holders = self._holders[key]
        for one in [one for one, until in holders.items() if until <= now]:
            del holders[one]
        if holder not in holders and len(holders) >= limit:
            return False
        holders[holder] = now + lease_seconds
        return True

    @override
    async def release(self, key: str, holder: str) -> None:
        self._holders[key].pop(holder, None)
        if not self._holders[key]:
            del self._holders[key]

    def _forget_past(self, now: float) -> None:
        if len(self._next_arrival) > _MAX_KEYS:
            self._next_arrival = {key: at for key, at in self._next_arrival.items() if at > now}
