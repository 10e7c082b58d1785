"""Values that one process leaves for the others in Redis or Valkey; any of them may be lost.

Nobody waits for the server to keep a value. Whoever looks one up waits for a moment at most, and
not again for a while once the server did not answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from typing_extensions import override

from bot.ports import Clock, SharedValues
from bot.runtime.tasks import cancel_and_wait
from bot.storage.redis_client import open_client

_log = structlog.get_logger(__name__)
_SECONDS_KEPT = 600
_MAX_WAITING = 1000
_FIND_SECONDS = 0.3
_ANSWER_SECONDS = 1.0
_PAUSE_SECONDS = 15.0


class RedisValues(SharedValues):
    """Writes in the background, whatever has come together in one round trip.

    Args:
        redis: the server.
        prefix: of all keys; installations that share a server have different ones.
    """

    def __init__(self, redis: Redis, prefix: str, clock: Clock) -> None:
        self._redis = redis
        self._prefix = prefix
        self._clock = clock
        self._waiting: dict[str, bytes] = {}
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._paused_until = 0.0

    @override
    def keep(self, key: str, value: bytes) -> None:
        if not self._is_paused and len(self._waiting) < _MAX_WAITING:
            self._waiting[key] = value
            self._wake.set()

    @override
    async def find(self, key: str) -> bytes | None:
        if self._is_paused:
            return None
        try:
            async with asyncio.timeout(_FIND_SECONDS):
                found = await self._redis.get(self._prefix + key)
        except (TimeoutError, RedisError, OSError) as error:
            self._pause(error)
            return None
        return found if isinstance(found, bytes) else None

    @override
    async def drop(self, key: str) -> bool:
        self._waiting.pop(key, None)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), self._writing:
                await self._redis.delete(self._prefix + key)
        except (TimeoutError, RedisError, OSError) as error:
            self._pause(error)
            return False
        return True

    async def run(self) -> None:
        """Write what is to be kept until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                async with asyncio.timeout(_ANSWER_SECONDS), self._writing:
                    await self._write()
            except (TimeoutError, RedisError, OSError) as error:
                self._pause(error)

    async def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key, value in waiting.items():
                pipeline.set(self._prefix + key, value, ex=_SECONDS_KEPT)
            await pipeline.execute()

    @property
    def _is_paused(self) -> bool:
        return self._clock.monotonic() < self._paused_until

    def _pause(self, error: Exception) -> None:
        _log.warning("shared_values_paused", reason=type(error).__name__)
        self._paused_until = self._clock.monotonic() + _PAUSE_SECONDS
        self._waiting.clear()


@contextlib.asynccontextmanager
async def open_values(url: str, prefix: str, clock: Clock) -> AsyncIterator[RedisValues]:
    """Share values over this server for the length of the block; it may be away.

    Raises:
        SettingsError: this is no address of a Redis.
    """
    redis = open_client(url)
    values = RedisValues(redis, prefix, clock)
    running = asyncio.create_task(values.run(), name="shared values")
    try:
        yield values
    finally:
        await cancel_and_wait([running])
        await redis.aclose()
