"""Rate limits that the processes of an installation share in Redis or Valkey.

Each call is one script, so it is atomic; time is the server's. While the server is away or frozen,
each process limits what it does itself.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from typing_extensions import override

from bot.chat.rate import Rate
from bot.ports import Clock, RateLimits
from bot.runtime.rate_limits import InProcessRateLimits
from bot.storage.coordination.redis_signals import open_client

_log = structlog.get_logger(__name__)
_ANSWER_SECONDS = 0.3
_PAUSE_SECONDS = 15.0

_NOW = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
"""
# The generic cell rate algorithm, as InProcessRateLimits has it. A key holds the theoretical
# arrival of its next event and expires when that is past.
_TAKE = f"""{_NOW}
local begin = now
for index, key in ipairs(KEYS) do
    local tolerance = tonumber(ARGV[2 * index + 1])
    begin = math.max(begin, tonumber(redis.call('GET', key) or now) - tolerance)
end
local wait = begin - now
if wait <= tonumber(ARGV[1]) then
    for index, key in ipairs(KEYS) do
        local interval = tonumber(ARGV[2 * index])
        local arrival = math.max(tonumber(redis.call('GET', key) or now), begin) + interval
        local text = string.format('%.6f', arrival)
        redis.call('SET', key, text, 'PX', math.ceil((arrival - now) * 1000))
    end
end
return string.format('%.6f', wait)
"""
# A sorted set of holders by the end of their leases.
_ACQUIRE = f"""{_NOW}
local limit, holder, seconds = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local held = redis.call('ZSCORE', KEYS[1], holder)
if not held and redis.call('ZCARD', KEYS[1]) >= limit then
    return 0
end
redis.call('ZADD', KEYS[1], string.format('%.6f', now + seconds), holder)
redis.call('PEXPIRE', KEYS[1], math.ceil(seconds * 1000))
return 1
"""


class RedisRateLimits(RateLimits):
    """Counts in the server, and in this process while the server does not answer.

    Args:
        redis: the server.
        prefix: of all keys; installations that share a server have different ones.
        clock: time.
        answer_seconds: for which a call waits for the server.
    """

    def __init__(self, redis: Redis, prefix: str, clock: Clock, answer_seconds: float) -> None:
        self._redis = redis
        self._prefix = prefix
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._here = InProcessRateLimits(clock)
        self._paused_until = 0.0
        self._asking = asyncio.Lock()
        self._take = redis.register_script(_TAKE)
        self._acquire = redis.register_script(_ACQUIRE)

    @override
    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        keys = [f"{self._prefix}rate:{rate.key}" for rate in rates]
        given: list[str | int | float] = [max_wait_seconds]
        for rate in rates:
            given += [rate.interval, rate.tolerance]
        answer = await self._ask(lambda: self._take(keys, given))
        if answer is None:
            return await self._here.take(rates, max_wait_seconds)
        return float(answer)

    @override
    async def acquire(self, key: str, limit: int, holder: str, lease_seconds: float) -> bool:
        given: list[str | int | float] = [limit, holder, lease_seconds]
        answer = await self._ask(lambda: self._acquire([self._places(key)], given))
        if answer is None:
            return await self._here.acquire(key, limit, holder, lease_seconds)
        return bool(answer)

    @override
    async def release(self, key: str, holder: str) -> None:
        await self._here.release(key, holder)  # it may have been acquired during a pause
        await self._ask(lambda: self._redis.zrem(self._places(key), holder))

    def _places(self, key: str) -> str:
        return f"{self._prefix}places:{key}"

    async def _ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the server's answer; None while it has none.

        One call after the other over one connection: a script takes less than opening another one.
        """
        async with self._asking:
            if self._clock.monotonic() < self._paused_until:
                return None
            try:
                async with asyncio.timeout(self._answer_seconds):
                    return await call()
            except (TimeoutError, RedisError, OSError) as error:
                _log.warning("shared_limits_paused", reason=type(error).__name__)
                self._paused_until = self._clock.monotonic() + _PAUSE_SECONDS
                return None


@contextlib.asynccontextmanager
async def open_rate_limits(
    url: str, prefix: str, clock: Clock, answer_seconds: float = _ANSWER_SECONDS
) -> AsyncIterator[RedisRateLimits]:
    """Share rate limits over this server for the length of the block; it may be away.

    Raises:
        SettingsError: this is no address of a Redis.
    """
    redis = open_client(url)
    try:
        yield RedisRateLimits(redis, prefix, clock, answer_seconds)
    finally:
        await redis.aclose()
