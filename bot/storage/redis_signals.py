"""Signals between processes, over Redis or Valkey publish/subscribe.

Signals are optional: a lost signal only delays work until the database is polled. So no caller
waits for the server. While the server is down or frozen, signals reach only their own process.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError
from typing_extensions import override

from bot.errors import TroupeError
from bot.runtime.in_process import InProcessSignals
from bot.runtime.tasks import cancel_and_wait
from bot.storage.redis_client import (
    SIGNALS_CHANNEL,
    TIMEOUT_SECONDS,
    describe_redis_error,
    open_client,
)

_log = structlog.get_logger(__name__)
_MAX_QUEUED_SIGNALS = 10_000
_MAX_SIGNALS_PER_MESSAGE = 500
_CHECK_TIMEOUT_SECONDS = 1.2
_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 15.0
_HEARTBEAT_SECONDS = 2.0


_Signal: TypeAlias = tuple[str, list[str]]
"""A topic and its keys."""


class _SignalMessage(msgspec.Struct, array_like=True):
    sender_id: str
    signals: list[_Signal]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_SignalMessage).decode


class RedisSignals(InProcessSignals):
    """Calls subscribers in this process directly, and in other processes through the server."""

    def __init__(self, redis: Redis, heartbeat_seconds: float) -> None:
        super().__init__()
        self._redis = redis
        self._heartbeat_seconds = heartbeat_seconds
        self._sender_id = secrets.token_hex(8)
        self._queue: asyncio.Queue[_Signal] = asyncio.Queue(_MAX_QUEUED_SIGNALS)
        self.is_connected = False
        self._can_send = True  # assumed until a failure
        self._problems: list[str] = []  # distinct problems since the last success

    @property
    @override
    def is_cross_process(self) -> bool:
        return self.is_connected and self._can_send

    @override
    async def find_problem(self) -> str | None:
        if not self._problems:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await self._redis.ping()
            except (TimeoutError, RedisError, OSError) as error:
                self._log_problem(error)
        return self._problems[-1] if self._problems else None

    @override
    def publish(self, topic: str, keys: Sequence[str]) -> None:
        super().publish(topic, keys)
        with contextlib.suppress(asyncio.QueueFull):  # the server is down, and other processes poll
            self._queue.put_nowait((topic, list(keys)))

    async def run(self) -> None:
        """Send and receive until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_queued_signals(), name="signals: send")
            group.create_task(self._receive_all(), name="signals: receive")

    async def _send_queued_signals(self) -> None:
        pause_seconds = _PAUSE_SECONDS
        while True:
            signals = await self._wait_for_signals()
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await self._redis.publish(
                        SIGNALS_CHANNEL, _encode(_SignalMessage(self._sender_id, signals))
                    )
            except (TimeoutError, RedisError, OSError) as error:
                self._can_send = False
                self._log_problem(error)
                await asyncio.sleep(pause_seconds)
                self._take_queued_signals(_MAX_QUEUED_SIGNALS)  # other processes have polled by now
                pause_seconds = min(pause_seconds * 2, _MAX_PAUSE_SECONDS)
            else:
                self._can_send = True
                self._clear_problems()
                pause_seconds = _PAUSE_SECONDS

    async def _wait_for_signals(self) -> list[_Signal]:
        """Return the queued signals; empty if none arrives within `heartbeat_seconds`."""
        try:
            async with asyncio.timeout(self._heartbeat_seconds):
                signals = [await self._queue.get()]
        except TimeoutError:
            return []
        return signals + self._take_queued_signals(_MAX_SIGNALS_PER_MESSAGE - 1)

    def _take_queued_signals(self, limit: int) -> list[_Signal]:
        return [self._queue.get_nowait() for _ in range(min(limit, self._queue.qsize()))]

    async def _receive_all(self) -> None:
        pause_seconds = _PAUSE_SECONDS
        while True:
            try:
                async with self._redis.pubsub() as subscription:
                    async with asyncio.timeout(TIMEOUT_SECONDS):
                        await subscription.subscribe(SIGNALS_CHANNEL)
                    self.is_connected = True
                    self._clear_problems()
                    pause_seconds = _PAUSE_SECONDS
                    await self._receive_until_silent(subscription)
            except (TimeoutError, RedisError, OSError) as error:
                self._log_problem(error)
            finally:
                self.is_connected = False
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _MAX_PAUSE_SECONDS)

    async def _receive_until_silent(self, subscription: PubSub) -> None:
        """Receive until the connection ends; raises `TimeoutError` after a long silence."""
        get_loop_time = asyncio.get_running_loop().time
        silence_seconds = self._heartbeat_seconds + 2 * TIMEOUT_SECONDS
        async with asyncio.timeout(silence_seconds) as silence_timeout:
            async for message in subscription.listen():
                silence_timeout.reschedule(get_loop_time() + silence_seconds)
                if message["type"] == "message":
                    self._receive_message(message["data"])

    def _log_problem(self, error: Exception) -> None:
        """Log a problem, unless it was already logged."""
        problem = describe_redis_error(error, self._redis)
        if problem not in self._problems:
            self._problems.append(problem)
            _log.warning("signals_interrupted", reason=problem)

    def _clear_problems(self) -> None:
        """Clear the problems if sending and receiving work again."""
        if self.is_cross_process and self._problems:
            _log.info("signals_resumed")
            self._problems.clear()

    def _receive_message(self, data: bytes) -> None:
        try:
            message = _decode(data)
        except msgspec.DecodeError:
            _log.warning("signal_not_understood")
            return
        if message.sender_id != self._sender_id:
            for topic, keys in message.signals:
                self.receive(topic, keys)


@contextlib.asynccontextmanager
async def open_signals(
    url: str, heartbeat_seconds: float = _HEARTBEAT_SECONDS
) -> AsyncIterator[RedisSignals]:
    """Connect to the server that exchanges signals. Raises `SettingsError` for a bad address."""
    async with contextlib.aclosing(open_client(url)) as redis:
        signals = RedisSignals(redis, heartbeat_seconds)
        task = asyncio.create_task(signals.run(), name="signals")
        try:
            yield signals
        finally:
            await cancel_and_wait([task])


async def check_redis(url: str) -> None:
    """Check that the server responds; raises `TroupeError` with the reason if it does not."""
    async with contextlib.aclosing(open_client(url)) as redis:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_SECONDS):
                await redis.publish(SIGNALS_CHANNEL, _encode(_SignalMessage("check", [])))
        except (TimeoutError, RedisError, OSError) as error:
            raise TroupeError(describe_redis_error(error, redis)) from error


async def publish_signal(url: str, topic: str, keys: Sequence[str]) -> None:
    """Publish a signal and close the connection; ignore a server that is down."""
    message = _SignalMessage(secrets.token_hex(8), [(topic, list(keys))])
    async with contextlib.aclosing(open_client(url)) as redis:
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await redis.publish(SIGNALS_CHANNEL, _encode(message))
