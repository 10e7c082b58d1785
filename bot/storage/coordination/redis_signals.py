"""Signals between processes, over the publish/subscribe of Redis or Valkey.

Nothing here is needed: a signal that is lost costs the time until the database is polled. Therefore
nobody ever waits for the server; while it is away or frozen, signals reach their own process only.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from typing_extensions import override

from bot.errors import SettingsError, SignalsUnavailable
from bot.ports import Signals
from bot.runtime.signals import InProcessSignals
from bot.runtime.tasks import cancel_and_wait

_log = structlog.get_logger(__name__)
_CHANNEL = "troupe:signals"
_MAX_QUEUED = 10_000
_MAX_SIGNALS_IN_A_MESSAGE = 500
_ANSWER_SECONDS = 1.0
_CHECK_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 15.0


class _Signal(msgspec.Struct, array_like=True):
    topic: str
    keys: list[str]


class _Message(msgspec.Struct, array_like=True):
    sender: str
    signals: list[_Signal]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Message).decode


class RedisSignals(Signals):
    """Calls the subscribers here at once, and those in other processes through the server."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._here = InProcessSignals()
        self._id = secrets.token_hex(8)
        self._queued: asyncio.Queue[_Signal] = asyncio.Queue(_MAX_QUEUED)
        self.is_connected = False

    @override
    def subscribe(self, topic: str, handler: Callable[[Sequence[str]], None]) -> None:
        self._here.subscribe(topic, handler)

    @override
    def publish(self, topic: str, keys: Sequence[str]) -> None:
        self._here.publish(topic, keys)
        with contextlib.suppress(asyncio.QueueFull):  # the server is away: others poll
            self._queued.put_nowait(_Signal(topic, list(keys)))

    async def run(self) -> None:
        """Send and receive until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_queued(), name="signals: send")
            group.create_task(self._receive_all(), name="signals: receive")

    async def _send_queued(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            signals = [await self._queued.get()]
            while not self._queued.empty() and len(signals) < _MAX_SIGNALS_IN_A_MESSAGE:
                signals.append(self._queued.get_nowait())
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._redis.publish(_CHANNEL, _encode(_Message(self._id, signals)))
            except (TimeoutError, RedisError, OSError) as error:
                _log.warning("signals_not_sent", reason=type(error).__name__)
                await asyncio.sleep(pause)
                self._drop_queued()  # by now the database was polled
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)
            else:
                pause = _PAUSE_SECONDS

    def _drop_queued(self) -> None:
        while not self._queued.empty():
            self._queued.get_nowait()

    async def _receive_all(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            try:
                async with self._redis.pubsub() as subscription:
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        await subscription.subscribe(_CHANNEL)
                    self.is_connected = True
                    pause = _PAUSE_SECONDS
                    async for message in subscription.listen():
                        if message["type"] == "message":
                            self._receive(message["data"])
            except (TimeoutError, RedisError, OSError) as error:
                _log.warning("signals_not_received", reason=type(error).__name__)
            finally:
                self.is_connected = False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def _receive(self, data: bytes) -> None:
        try:
            message = _decode(data)
        except msgspec.DecodeError:
            _log.warning("signal_not_understood")
            return
        if message.sender != self._id:
            for signal in message.signals:
                self._here.publish(signal.topic, signal.keys)


@contextlib.asynccontextmanager
async def open_signals(url: str) -> AsyncIterator[RedisSignals]:
    """Exchange signals over this server for the length of the block.

    A server that is away is no error: it is tried again.

    Raises:
        SettingsError: this is no address of a Redis.
    """
    redis = _client(url)
    signals = RedisSignals(redis)
    running = asyncio.create_task(signals.run(), name="signals")
    try:
        yield signals
    finally:
        await cancel_and_wait([running])
        await redis.aclose()


async def check_redis(url: str) -> None:
    """Ask the server whether it is there.

    Raises:
        SettingsError: this is no address of a Redis.
        SignalsUnavailable: it does not answer, or refuses us; the text says why.
    """
    redis = _client(url)
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await redis.publish(_CHANNEL, _encode(_Message("check", [])))
    except (TimeoutError, RedisError, OSError) as error:
        raise SignalsUnavailable(
            f"TROUPE_REDIS_URL: Redis does not answer: {str(error) or type(error).__name__}"
        ) from error
    finally:
        await redis.aclose()


def _client(url: str) -> Redis:
    try:
        return Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=_ANSWER_SECONDS,
            socket_timeout=None,  # redis-py's own makes it deaf to being cancelled (Python 3.11)
            health_check_interval=5,
        )
    except ValueError as error:
        raise SettingsError(f"TROUPE_REDIS_URL is not a Redis address: {error}") from None
