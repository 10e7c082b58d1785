"""Share windows, which are the cached newest turns of sessions, between processes over Redis.

Windows may be lost. Saving a window never waits for the server. Finding one waits briefly; a server
that does not respond is not asked again for a while.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from typing_extensions import override

from bot.chat.session import Claim, Session, Turn
from bot.errors import StoreError
from bot.ports import Clock
from bot.runtime.tasks import cancel_and_wait
from bot.storage.codec import TextCodec
from bot.storage.redis_client import TIMEOUT_SECONDS, open_client
from bot.storage.session_windows import SessionWindow, SharedSessionWindows, create_window

_log = structlog.get_logger(__name__)
_WINDOW_EXPIRY_SECONDS = 600
_MAX_WINDOW_BYTES = 200_000
_MAX_QUEUED_WINDOWS = 1000
_FIND_WINDOW_TIMEOUT_SECONDS = 0.3  # reading the history from SQL would be faster
_PAUSE_SECONDS = 15.0
_SERVER_ERRORS = (TimeoutError, RedisError, OSError)


class _StoredWindow(msgspec.Struct, array_like=True):
    epoch: int
    session: int
    is_complete: bool
    turns: tuple[Turn, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredWindow).decode


class RedisSessionWindows(SharedSessionWindows):
    """Shares sessions' newest turns (windows), and writes queued ones in the background."""

    def __init__(self, redis: Redis, prefix: str, codec: TextCodec, clock: Clock) -> None:
        self._redis = redis
        self._prefix = f"{prefix}window:"
        self._codec = codec
        self._clock = clock
        self._queued_windows: dict[str, bytes] = {}
        self._wake_event = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._paused_until = 0.0

    @override
    def share(self, claim: Claim, window: SessionWindow) -> None:
        if self._is_paused or len(self._queued_windows) >= _MAX_QUEUED_WINDOWS:
            return
        stored_window = _StoredWindow(claim.epoch, window.session, window.is_complete, window.turns)
        encoded_window = self._codec.encode(_encode(stored_window))
        if encoded_window is not None and len(encoded_window) <= _MAX_WINDOW_BYTES:
            self._queued_windows[claim.conversation] = encoded_window
            self._wake_event.set()

    @override
    async def find(self, claim: Claim) -> SessionWindow | None:
        if self._is_paused:
            return None
        try:
            async with asyncio.timeout(_FIND_WINDOW_TIMEOUT_SECONDS):
                value = await self._redis.get(self._prefix + claim.conversation)
            decoded_value = self._codec.decode(value if isinstance(value, bytes) else None)
            window = _decode(decoded_value) if decoded_value else None
        except (msgspec.DecodeError, StoreError):  # another version of Troupe or encryption key
            return None
        except _SERVER_ERRORS as error:
            self._pause(error)
            return None
        if window is None or window.epoch != claim.epoch - 1:
            return None
        turn_count = len(window.turns)
        return create_window(Session(window.session, window.turns), turn_count + window.is_complete)

    @override
    async def drop(self, claim: Claim) -> None:
        self._queued_windows.pop(claim.conversation, None)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), self._write_lock:
                await self._redis.delete(self._prefix + claim.conversation)
        except _SERVER_ERRORS as error:
            self._pause(error)

    async def run(self) -> None:
        """Write queued windows until cancelled."""
        while True:
            await self._wake_event.wait()
            self._wake_event.clear()
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS), self._write_lock:
                    await self._write_queued_windows()
            except _SERVER_ERRORS as error:
                self._pause(error)

    async def _write_queued_windows(self) -> None:
        windows_by_key, self._queued_windows = self._queued_windows, {}
        async with self._redis.pipeline(transaction=False) as pipeline:
            for conversation, value in windows_by_key.items():
                pipeline.set(self._prefix + conversation, value, ex=_WINDOW_EXPIRY_SECONDS)
            await pipeline.execute()

    @property
    def _is_paused(self) -> bool:
        return self._clock.monotonic() < self._paused_until

    def _pause(self, error: Exception) -> None:
        _log.warning("shared_windows_paused", reason=type(error).__name__)
        self._paused_until = self._clock.monotonic() + _PAUSE_SECONDS
        self._queued_windows.clear()


@contextlib.asynccontextmanager
async def open_session_windows(
    url: str, prefix: str, codec: TextCodec, clock: Clock
) -> AsyncIterator[RedisSessionWindows]:
    """Open the session windows shared through Redis. Raises `SettingsError` for a bad address."""
    redis = open_client(url)
    windows = RedisSessionWindows(redis, prefix, codec, clock)
    task = asyncio.create_task(windows.run(), name="shared windows")
    try:
        yield windows
    finally:
        await cancel_and_wait([task])
        await redis.aclose()
