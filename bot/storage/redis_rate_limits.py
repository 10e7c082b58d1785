"""Rate limits shared by all processes in Redis or Valkey.

Each call is an atomic script with the server's time. While the server is down or frozen, each
process applies its share of the limits: a limit divided by the number of recently active processes.
When the server responds again, this process reports refused calls and released slots to it.
"""

import asyncio
import contextlib
import itertools
import math
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from typing_extensions import override

from bot.chat.operation import BlockedCalls
from bot.chat.rate import Rate, RateLimitScope, WaitingProcess
from bot.ports import Clock, RateLimits
from bot.runtime.in_process import LEARNED_WINDOW_SECONDS, InProcessRateLimits, to_blocked_calls
from bot.storage.redis_client import open_client
from bot.storage.statements import read_sections

_log = structlog.get_logger(__name__)
_TIMEOUT_SECONDS = 0.3
_MAX_TIMER_DELAY_SECONDS = 0.1
"""If a timeout fires later than this, this process was slow, and the server perhaps was not."""
_PAUSE_SECONDS = 1.0
"""The pause after the server did not answer; each further failure doubles it."""
_MAX_PAUSE_SECONDS = 15.0
_SCAN_BATCH_SIZE = 1000
_MAX_LISTED_REFUSALS = 100

_NO_SLOT_LIMIT = 1_000_000
_MAX_UNREPORTED_RELEASES = 10_000
"""The maximum number of releases to report later; the earliest are kept."""
_RELEASE_BATCH_SIZE = 500
_SECONDS_BETWEEN_PROCESS_COUNTS = 20.0
_ACTIVE_SECONDS = 90.0  # a process counts as running this long after its last report


class RedisRateLimits(RateLimits):
    """Counts calls on the server or, while the server does not respond in time, in this process."""

    def __init__(self, redis: Redis, prefix: str, clock: Clock, timeout_seconds: float) -> None:
        self._redis = redis
        self._prefix = prefix
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._own_limits = InProcessRateLimits(clock)
        self._paused_until = 0.0
        self._next_pause_seconds = _PAUSE_SECONDS
        self._unreported_refusals: dict[str, float] = {}  # when each ends, by scope
        self._unreported_releases: dict[tuple[str, str], None] = {}  # keys and holders
        self._server_lock = asyncio.Lock()
        self._processes_key = f"{prefix}limiting"
        self._process_name = secrets.token_hex(8)
        self._process_count = 1
        self._last_count_at = -math.inf
        script_sections = read_sections("rate_limits.lua").items()
        self._scripts = {name: redis.register_script(text) for name, text in script_sections}

    @override
    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        keys = [f"{self._prefix}rate:{rate.key}" for rate in rates]
        args: list[str | int | float] = [max_wait_seconds]
        for rate in rates:
            args += [rate.interval_seconds, rate.tolerance_seconds]
        response = await self._ask_server(lambda: self._scripts["take"](keys, args))
        if response is None:
            return await self._own_limits.take(rates, max_wait_seconds)
        return float(response)

    @override
    async def acquire_slot(
        self,
        key: str,
        limit: int,
        holder: str,
        lease_seconds: float,
        waiter: WaitingProcess | None = None,
    ) -> int:
        keys = [self._holders_key(key)]
        args: list[str | int | float] = [limit, holder, lease_seconds]
        if waiter is not None:
            keys += [f"{self._prefix}turns:{key}", f"{self._prefix}waiters:{key}"]
            args += [waiter.name, int(waiter.urgency), waiter.reserved_seconds]
        self._unreported_releases.pop((key, holder), None)  # reporting it would release this slot
        response = await self._ask_server(lambda: self._scripts["acquire"](keys, args))
        if response is None:
            quota = max(1, limit // self._process_count)
            return await self._own_limits.acquire_slot(key, quota, holder, lease_seconds, waiter)
        if response:  # also counted here, in case the server goes down
            await self._own_limits.acquire_slot(key, _NO_SLOT_LIMIT, holder, lease_seconds)
        return int(response)

    @override
    async def release_slot(self, key: str, holder: str) -> None:
        await self._own_limits.release_slot(key, holder)  # it may be counted here, too
        if len(self._unreported_releases) < _MAX_UNREPORTED_RELEASES:
            self._unreported_releases[key, holder] = None
        await self._ask_server(self._report_releases)

    @override
    async def take_call(self, scopes: Sequence[RateLimitScope]) -> float:
        keys, args = self._encode_scopes(scopes)
        response = await self._ask_server(lambda: self._scripts["take_call"](keys, args))
        if response is None:
            return await self._own_limits.take_call(self._divide_among_processes(scopes))
        if float(response) <= 0:  # also counted here, in case the server goes down
            await self._own_limits.take_call(scopes)
        return float(response)

    @override
    async def seconds_until_call(self, scopes: Sequence[RateLimitScope]) -> float:
        keys, args = self._encode_scopes(scopes)
        response = await self._ask_server(lambda: self._scripts["seconds_until_call"](keys, args))
        if response is None:
            return await self._own_limits.seconds_until_call(self._divide_among_processes(scopes))
        return max(0.0, float(response))

    def _divide_among_processes(self, scopes: Sequence[RateLimitScope]) -> list[RateLimitScope]:
        return [one.per_process_share(self._process_count) for one in scopes]

    def _encode_scopes(
        self, scopes: Sequence[RateLimitScope]
    ) -> tuple[list[str], list[str | int | float]]:
        """Return the Redis keys and arguments that the scripts need for these scopes."""
        keys = [key for scope in scopes for key in self._refusal_keys(scope.key)]
        args: list[str | int | float] = [len(scopes)]
        for scope in scopes:
            for window in scope.call_windows:
                keys.append(f"{self._prefix}calls:{window.seconds:g}:{scope.key}")
                learned_key = self._refusal_keys(scope.key)[1] if window.is_learned else ""
                allowed_count = window.count - window.reserved_count
                args += [allowed_count, window.count, window.seconds, learned_key]
        return keys, args

    @override
    async def block_calls(self, scope: str, seconds: float) -> None:
        await self._own_limits.block_calls(scope, seconds)
        self._unreported_refusals[scope] = self._clock.monotonic() + seconds
        await self._ask_server(self._report_refusals)

    @override
    async def blocked_calls(self) -> Sequence[BlockedCalls]:
        prefix = f"{self._prefix}refused:"

        async def read_blocked_seconds() -> dict[str, float]:
            seconds_by_scope: dict[str, float] = {}
            pattern = f"{_escape_wildcards(prefix)}*"
            async for key in self._redis.scan_iter(pattern, count=_SCAN_BATCH_SIZE):
                scope = key.decode().removeprefix(prefix)
                seconds_by_scope[scope] = max(0, await self._redis.pttl(key)) / 1000
                if len(seconds_by_scope) == _MAX_LISTED_REFUSALS:
                    break
            return seconds_by_scope

        waits = await self._ask_server(read_blocked_seconds)
        return await self._own_limits.blocked_calls() if waits is None else to_blocked_calls(waits)

    def _refusal_keys(self, scope: str) -> list[str]:
        return [f"{self._prefix}refused:{scope}", f"{self._prefix}learned:{scope}"]

    def _holders_key(self, key: str) -> str:
        return f"{self._prefix}places:{key}"

    async def _ask_server(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the server's response, or None while the server is down.

        Calls share one connection in sequence, because a script is faster than a new connection.
        """
        async with self._server_lock:
            if self._clock.monotonic() < self._paused_until:
                return None
            try:
                response = await self._ask_with_retry(call)
            except (TimeoutError, RedisError, OSError) as error:
                _log.warning("shared_limits_paused", reason=type(error).__name__)
                self._paused_until = self._clock.monotonic() + self._next_pause_seconds
                self._next_pause_seconds = min(self._next_pause_seconds * 2, _MAX_PAUSE_SECONDS)
                return None
            self._next_pause_seconds = _PAUSE_SECONDS
            return response

    async def _ask_with_retry(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the server's response; retry once if this process itself was too slow.

        A call whose response was lost is then counted twice, which is safe.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_seconds
        try:
            return await self._ask_once(call)
        except TimeoutError:
            if loop.time() < deadline + _MAX_TIMER_DELAY_SECONDS:
                raise
        return await self._ask_once(call)

    async def _ask_once(self, call: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(self._timeout_seconds):
            await self._count_processes_if_due()
            await self._report_refusals()
            await self._report_releases()
            return await call()

    async def _report_refusals(self) -> None:
        """Tell the server about refused calls that it does not know about yet."""
        for scope, until in list(self._unreported_refusals.items()):
            seconds_left = max(0.0, until - self._clock.monotonic())
            args = [math.ceil(seconds_left * 1000), int(LEARNED_WINDOW_SECONDS * 1000)]
            await self._scripts["block_calls"](self._refusal_keys(scope), args)
            if self._unreported_refusals.get(scope) == until:
                del self._unreported_refusals[scope]

    async def _report_releases(self) -> None:
        """Report released slots to the server, a limited number per call."""
        if not (batch := list(itertools.islice(self._unreported_releases, _RELEASE_BATCH_SIZE))):
            return
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key, holder in batch:
                pipeline.zrem(self._holders_key(key), holder)
            await pipeline.execute()
        for release in batch:
            self._unreported_releases.pop(release, None)

    async def _count_processes_if_due(self) -> None:
        """Report, at intervals, that this process is running, and count the processes."""
        now = self._clock.monotonic()
        if now - self._last_count_at >= _SECONDS_BETWEEN_PROCESS_COUNTS:
            args: list[str | float] = [self._process_name, _ACTIVE_SECONDS]
            count = await self._scripts["count_processes"]([self._processes_key], args)
            self._process_count = int(count)
            self._last_count_at = now

    async def report_shutdown(self) -> None:
        """Report that this process is shutting down."""
        await self._ask_server(lambda: self._redis.zrem(self._processes_key, self._process_name))


def _escape_wildcards(prefix: str) -> str:
    """Escape wildcards of Redis patterns in a prefix."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", prefix)


@contextlib.asynccontextmanager
async def open_rate_limits(
    url: str, prefix: str, clock: Clock, timeout_seconds: float = _TIMEOUT_SECONDS
) -> AsyncIterator[RedisRateLimits]:
    """Open rate limits shared through a server. Raises `SettingsError` for a bad address."""
    async with contextlib.aclosing(open_client(url)) as redis:
        limits = RedisRateLimits(redis, prefix, clock, timeout_seconds)
        try:
            yield limits
        finally:
            await limits.report_shutdown()
