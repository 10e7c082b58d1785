"""Signals between processes, over the publish/subscribe of Redis or Valkey.

Nothing here is needed: a signal that is lost costs the time until the database is polled. Therefore
nobody ever waits for the server; while it is away or frozen, signals reach their own process only.
"""

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
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
_WRONG_SETTING = re.compile(r"DB index|AUTH|WRONGPASS", re.IGNORECASE)
_REFUSALS = (AuthenticationError, AuthorizationError, NoPermissionError)


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
        self._problem: str | None = None
        self._is_refused = False

    @property
    @override
    def refusal(self) -> str | None:
        return self._problem if self._is_refused else None

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
                self._set_problem(error)
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
                    self._clear_problem()
                    pause = _PAUSE_SECONDS
                    async for message in subscription.listen():
                        if message["type"] == "message":
                            self._receive(message["data"])
            except (TimeoutError, RedisError, OSError) as error:
                self._set_problem(error)
            finally:
                self.is_connected = False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def _set_problem(self, error: Exception) -> None:
        """Log what is wrong once, not at every try."""
        is_refused = is_refusal(error)
        if self._problem is None or is_refused != self._is_refused:
            self._problem = describe_redis_error(error, self._redis)
            self._is_refused = is_refused
            _log.warning("signals_interrupted", reason=self._problem)

    def _clear_problem(self) -> None:
        if self._problem is not None:
            _log.info("signals_resumed")
        self._problem, self._is_refused = None, False

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
    redis = open_client(url)
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
    redis = open_client(url)
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await redis.publish(_CHANNEL, _encode(_Message("check", [])))
    except (TimeoutError, RedisError, OSError) as error:
        raise SignalsUnavailable(describe_redis_error(error, redis)) from error
    finally:
        await redis.aclose()


async def publish_once(url: str, topic: str, keys: Sequence[str]) -> bool:
    """Tell all processes something from one that does nothing else; return whether it was sent.

    Raises:
        SettingsError: this is no address of a Redis.
    """
    redis = open_client(url)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            message = _Message(secrets.token_hex(8), [_Signal(topic, list(keys))])
            await redis.publish(_CHANNEL, _encode(message))
    except (TimeoutError, RedisError, OSError):
        return False  # they poll the database
    finally:
        await redis.aclose()
    return True


def is_refusal(error: Exception) -> bool:
    """Tell whether only the operator can mend this: a wrong password, a missing database."""
    error = _unwrap(error)
    return isinstance(error, _REFUSALS) or (
        isinstance(error, ResponseError) and _WRONG_SETTING.search(str(error)) is not None
    )


def _unwrap(error: Exception) -> Exception:
    """Return the refusal that redis-py hides in a `ConnectionError` on unix sockets."""
    chain = (error, error.__cause__, error.__context__, *error.args)
    return next((each for each in chain if isinstance(each, _REFUSALS)), error)


def describe_redis_error(error: Exception, redis: Redis) -> str:
    """Name the server, what is wrong and the remedy; without the password."""
    given = redis.connection_pool.connection_kwargs
    server = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
    match _unwrap(error):
        case NoPermissionError():
            what = f"forbids its user to publish; allow it the channel {_CHANNEL}"
        case AuthenticationError() | AuthorizationError() if given.get("password"):
            what = "refuses the name or the password; correct them in the address"
        case AuthenticationError() | AuthorizationError():
            what = "wants a password; put `:password@` in front of the host in the address"
        case ResponseError() if is_refusal(error):
            what = f"refuses the connection ({error}); correct the end of the address"
        case TimeoutError() | RedisTimeoutError():
            what = f"does not answer within {_ANSWER_SECONDS:g} s; is it running, and is TLS right?"
        case OSError() | RedisConnectionError():
            what = f"cannot be reached ({_reason(error)}); start it, or correct the address"
        case _:
            what = f"fails: {str(error) or type(error).__name__}"
    return f"TROUPE_REDIS_URL: Redis at {server} {what}"


def _reason(error: Exception) -> str:
    """Return the operating system's words, which redis-py hides among its own."""
    for found in (error, error.__cause__, error.__context__):
        if isinstance(found, OSError) and found.errno is not None:
            # a failed look-up of a name has a negative number and words of its own
            return os.strerror(found.errno) if found.errno > 0 else str(found.strerror)
    return str(error) or type(error).__name__


def open_client(url: str) -> Redis:
    try:
        return Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=_ANSWER_SECONDS,
            socket_timeout=None,  # redis-py's own makes it deaf to being cancelled (Python 3.11)
            health_check_interval=5,
        )
    except ValueError as error:
        raise SettingsError(
            f"TROUPE_REDIS_URL is not a Redis address: {error}; write redis://:password@host:6379,"
            " or embedded for the bundled Valkey"
        ) from None
