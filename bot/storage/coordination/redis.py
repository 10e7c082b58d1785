"""Queues of ready keys with leases, as Lua scripts in Redis or Valkey.

Each queue has `ready` (sorted set, key -> ready since), `lease` (key -> expiry), `owner` (hash),
`dirty` (keys that became ready again while leased) and `signal` (a list to wait on). Every script
may run twice without harm, because redis-py repeats a command whose response was lost; a lost
response to `claim` only delays a key until its lease ends. Times are the server's own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from typing_extensions import override

from bot.errors import CoordinatorUnavailable, SettingsError
from bot.ports import Coordinator

_RESPONSE_TIMEOUT_SECONDS = 10.0  # longer than any wait of `claim`
_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"

# KEYS: ready lease owner dirty signal
_NOTIFY = (
    _NOW
    + """
for _, key in ipairs(ARGV) do
  if redis.call('ZSCORE', KEYS[2], key) then redis.call('SADD', KEYS[4], key)
  else redis.call('ZADD', KEYS[1], 'NX', now, key) end
end
redis.call('LPUSH', KEYS[5], 1)
redis.call('LTRIM', KEYS[5], 0, 31)
return 1
"""
)
_CLAIM = (
    _NOW
    + """
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[2])
local keys = {}
for i = 1, #popped, 2 do
  redis.call('ZADD', KEYS[2], now + ARGV[3], popped[i])
  redis.call('HSET', KEYS[3], popped[i], ARGV[1])
  keys[#keys + 1] = popped[i]
end
-- nothing else is ready, so earlier signals have been handled
if #popped < 2 * ARGV[2] then redis.call('DEL', KEYS[5]) end
return keys
"""
)
_RENEW = (
    _NOW
    + """
for i = 3, #ARGV do
  if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[1] then
    redis.call('ZADD', KEYS[2], 'XX', now + ARGV[2], ARGV[i])
  end
end
return 1
"""
)
_RELEASE = (
    _NOW
    + """
if redis.call('HGET', KEYS[3], ARGV[2]) ~= ARGV[1] then return 0 end
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2])
if redis.call('SREM', KEYS[4], ARGV[2]) == 1 then
  redis.call('ZADD', KEYS[1], 'NX', now, ARGV[2])
  redis.call('LPUSH', KEYS[5], 1)
  redis.call('LTRIM', KEYS[5], 0, 31)
end
return 1
"""
)
_RELEASE_EXPIRED = (
    _NOW
    + """
local dead = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)
for _, key in ipairs(dead) do
  redis.call('ZREM', KEYS[2], key)
  redis.call('HDEL', KEYS[3], key)
  redis.call('SREM', KEYS[4], key)
  redis.call('ZADD', KEYS[1], 'NX', now, key)
end
if #dead > 0 then redis.call('LPUSH', KEYS[5], 1) end
return #dead
"""
)


class RedisCoordinator(Coordinator):
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._empty_queues: set[str] = set()  # their last claim left nothing: wait for a signal
        self._notify_script = redis.register_script(_NOTIFY)
        self._claim_script = redis.register_script(_CLAIM)
        self._renew_script = redis.register_script(_RENEW)
        self._release_script = redis.register_script(_RELEASE)
        self._release_expired_script = redis.register_script(_RELEASE_EXPIRED)

    @override
    async def notify(self, queue: str, keys: Sequence[str]) -> None:
        if keys:
            await _wait_for(self._notify_script(keys=_key_names(queue), args=list(keys)))

    @override
    async def claim(
        self, queue: str, owner: str, *, limit: int, lease_seconds: float, wait_seconds: float
    ) -> Sequence[str]:
        arguments: list[str | int] = [owner, limit, int(lease_seconds * 1000)]
        claimed: list[str] = []
        if wait_seconds <= 0 or queue not in self._empty_queues:
            claimed = await self._claim_ready(queue, limit, arguments)
        if not claimed and wait_seconds > 0:
            signal = _key_names(queue)[-1]
            await _wait_for(self._redis.blpop([signal], timeout=wait_seconds))
            claimed = await self._claim_ready(queue, limit, arguments)
        return claimed

    async def _claim_ready(self, queue: str, limit: int, arguments: list[str | int]) -> list[str]:
        claimed = await _wait_for(self._claim_script(keys=_key_names(queue), args=arguments))
        if len(claimed) < limit:
            self._empty_queues.add(queue)
        else:
            self._empty_queues.discard(queue)
        return cast("list[str]", claimed)

    @override
    async def renew(
        self, queue: str, keys: Sequence[str], owner: str, lease_seconds: float
    ) -> None:
        arguments: list[str | int] = [owner, int(lease_seconds * 1000), *keys]
        await _wait_for(self._renew_script(keys=_key_names(queue), args=arguments))

    @override
    async def release(self, queue: str, key: str, owner: str) -> None:
        await _wait_for(self._release_script(keys=_key_names(queue), args=[owner, key]))

    @override
    async def release_expired(self, queue: str) -> int:
        return int(await _wait_for(self._release_expired_script(keys=_key_names(queue), args=[])))


@contextlib.asynccontextmanager
async def open_coordinator(url: str) -> AsyncIterator[RedisCoordinator]:
    """Connect until the block ends; an unreachable server is no error until it is used."""
    try:
        redis = Redis.from_url(
            url,
            decode_responses=True,
            retry=Retry(NoBackoff(), 1),
            socket_connect_timeout=2,
            socket_timeout=None,  # redis-py's own swallows cancellations (Python 3.11)
        )
    except ValueError as error:
        raise SettingsError(f"TROUPE_REDIS_URL is not a Redis URL: {error}") from None
    try:
        yield RedisCoordinator(redis)
    finally:
        await redis.aclose()


def _key_names(queue: str) -> list[str]:
    # The braces give all keys of a queue one hash slot, so that the scripts run on a cluster.
    return [f"{{troupe:{queue}}}:{name}" for name in ("ready", "lease", "owner", "dirty", "signal")]


async def _wait_for(response: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(_RESPONSE_TIMEOUT_SECONDS):
            return await response
    except (TimeoutError, RedisError, OSError) as error:
        raise CoordinatorUnavailable(f"Redis is unavailable: {type(error).__name__}") from error
