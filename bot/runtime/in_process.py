"""In-memory signals and rate limits for a service without Redis, and a bounded dictionary."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from typing_extensions import override

from bot.chat.operation import BlockedCalls
from bot.chat.rate import CallWindow, Rate, RateLimitScope, WaitingProcess
from bot.ports import Clock, KeysHandler, RateLimits, Signals

LEARNED_WINDOW_SECONDS = 3600.0
"""How long learned (estimated) windows apply after a refused call."""
_MAX_TRACKED_KEYS = 10_000
_MAX_LISTED_REFUSALS = 100


class InProcessRateLimits(RateLimits):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_arrivals: dict[str, float] = {}
        self._holders: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._waiters: defaultdict[str, dict[str, tuple[int, float, float]]] = defaultdict(dict)
        """By limit key and waiter name: urgency, start of the wait, and when the waiter expires."""
        self._calls: dict[tuple[str, float], deque[float]] = {}  # by scope and window seconds
        self._refused_until: dict[str, float] = {}
        self._learned_window_ends: dict[str, float] = {}

    @override
    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        now = self._clock.monotonic()
        arrivals = [self._next_arrivals.get(rate.key, now) for rate in rates]
        due_times = [
            arrival - rate.tolerance_seconds for rate, arrival in zip(rates, arrivals, strict=True)
        ]
        allowed_at = max([now, *due_times])
        if allowed_at - now <= max_wait_seconds:
            for rate, arrival in zip(rates, arrivals, strict=True):
                self._next_arrivals[rate.key] = max(arrival, allowed_at) + rate.interval_seconds
            self._drop_expired(now)
        return allowed_at - now

    @override
    async def acquire_slot(
        self,
        key: str,
        limit: int,
        holder: str,
        lease_seconds: float,
        waiter: WaitingProcess | None = None,
    ) -> int:
        now = self._clock.monotonic()
        holders = self._holders[key]
        for expired_holder in [name for name, end in holders.items() if end <= now]:
            del holders[expired_holder]
        if holder not in holders and not self._admits(key, limit - len(holders), waiter, now):
            return 0
        holders[holder] = now + lease_seconds
        return len(holders)

    def _admits(self, key: str, free_slots: int, waiter: WaitingProcess | None, now: float) -> bool:
        """Return whether a waiter gets one of the free slots; if not, queue the waiter.

        Without a waiter, return whether any slot is free.
        """
        if waiter is None:
            return free_slots > 0
        waiters = self._waiters[key]
        for expired_waiter in [name for name, (_, _, end) in waiters.items() if end <= now]:
            del waiters[expired_waiter]
        _, waiting_since, _ = waiters.pop(waiter.name, (0, now, now))
        own_rank = waiter.urgency, waiting_since
        if sum(other[:2] < own_rank for other in waiters.values()) < free_slots:
            return True
        waiters[waiter.name] = *own_rank, now + waiter.reserved_seconds
        return False

    @override
    async def release_slot(self, key: str, holder: str) -> None:
        self._holders[key].pop(holder, None)
        if not self._holders[key]:
            del self._holders[key]

    @override
    async def take_call(self, scopes: Sequence[RateLimitScope]) -> float:
        now = self._clock.monotonic()
        if (seconds := self._seconds_until_allowed(scopes, now)) > 0:
            return seconds
        for scope in scopes:
            for window in scope.call_windows:
                calls = self._calls.get((scope.key, window.seconds))
                if calls is None or calls.maxlen != window.count:
                    calls = deque(calls or (), window.count)
                    self._calls[scope.key, window.seconds] = calls
                calls.append(now)
        self._drop_expired(now)
        return 0.0

    @override
    async def seconds_until_call(self, scopes: Sequence[RateLimitScope]) -> float:
        return self._seconds_until_allowed(scopes, self._clock.monotonic())

    @override
    async def block_calls(self, scope: str, seconds: float) -> None:
        now = self._clock.monotonic()
        self._refused_until[scope] = max(self._refused_until.get(scope, now), now + seconds)
        self._learned_window_ends[scope] = now + LEARNED_WINDOW_SECONDS
        self._drop_expired(now)

    @override
    async def blocked_calls(self) -> Sequence[BlockedCalls]:
        now = self._clock.monotonic()
        wait_seconds = {scope: end - now for scope, end in self._refused_until.items() if end > now}
        return to_blocked_calls(wait_seconds)

    def _seconds_until_allowed(self, scopes: Sequence[RateLimitScope], now: float) -> float:
        seconds = 0.0
        for scope in scopes:
            seconds = max(seconds, self._refused_until.get(scope.key, now) - now)
            for window in scope.call_windows:
                seconds = max(seconds, self._seconds_until_window_allows(scope.key, window, now))
        return seconds

    def _seconds_until_window_allows(self, key: str, window: CallWindow, now: float) -> float:
        """Return the seconds until enough calls have left the sliding window to allow another."""
        if window.is_learned and self._learned_window_ends.get(key, now) <= now:
            return 0.0
        calls = self._calls.get((key, window.seconds), ())
        allowed_count = window.count - window.reserved_count
        return 0.0 if len(calls) < allowed_count else calls[-allowed_count] + window.seconds - now

    def _drop_expired(self, now: float) -> None:
        if len(self._next_arrivals) > _MAX_TRACKED_KEYS:
            self._next_arrivals = {key: at for key, at in self._next_arrivals.items() if at > now}
        for end_times in (self._refused_until, self._learned_window_ends):
            if len(end_times) > _MAX_TRACKED_KEYS:
                for key in [key for key, at in end_times.items() if at <= now]:
                    del end_times[key]
        if len(self._calls) > _MAX_TRACKED_KEYS:
            for call_key, calls in list(self._calls.items()):
                if calls[-1] + call_key[1] <= now:
                    del self._calls[call_key]


def to_blocked_calls(wait_seconds: Mapping[str, float]) -> Sequence[BlockedCalls]:
    longest_waits = sorted(wait_seconds.items(), key=lambda wait: -wait[1])[:_MAX_LISTED_REFUSALS]
    return [BlockedCalls(scope, seconds) for scope, seconds in longest_waits]


class InProcessSignals(Signals):
    """Calls a topic's subscribers; subclasses call `receive` for signals from other processes."""

    def __init__(self) -> None:
        self._handlers: defaultdict[str, list[tuple[KeysHandler, KeysHandler]]]
        self._handlers = defaultdict(list)  # for this process's signals, and for other processes'

    @override
    def subscribe(
        self, topic: str, handler: KeysHandler, remote_handler: KeysHandler | None = None
    ) -> Callable[[], None]:
        handlers = self._handlers[topic]
        local_and_remote_handlers = handler, remote_handler or handler
        handlers.append(local_and_remote_handlers)
        return lambda: handlers.remove(local_and_remote_handlers)

    @override
    def publish(self, topic: str, keys: Sequence[str]) -> None:
        for handler, _ in list(self._handlers[topic]):
            handler(keys)

    def receive(self, topic: str, keys: Sequence[str]) -> None:
        """Call a topic's subscribers with the keys of a signal from another process."""
        for _, handler in list(self._handlers[topic]):
            handler(keys)

    @property
    @override
    def is_cross_process(self) -> bool:
        return True

    @override
    async def find_problem(self) -> str | None:
        return None


K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dictionary that drops its oldest entry when it grows beyond `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    @override
    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_entries:
            self.popitem(last=False)
