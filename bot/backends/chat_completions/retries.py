"""When another try is worth it: few, spread out, and none while a provider is down."""

from collections import deque

MAX_RETRIES = 2
MAX_PAUSE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 8.0


def backoff_ceiling(retries: int) -> float:
    """The most seconds to wait before the next retry; full jitter picks a time below it."""
    return min(_LONGEST_BACKOFF_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**retries)


class RetryBudget:
    """At most a tenth of all calls are retries, so that ours do not bury a struggling provider."""

    def __init__(self, share: float = 0.1, at_first: float = 3, at_most: float = 10) -> None:
        self._share = share
        self._tokens = at_first
        self._at_most = at_most

    def call(self) -> None:
        """Note that a call was made, not counting its retries."""
        self._tokens = min(self._at_most, self._tokens + self._share)

    def take(self) -> bool:
        """Take one retry, if there is one."""
        # The sum of ten tenths is a little less than one.
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True


class CircuitBreaker:
    """Stop asking a provider that mostly fails; then let single calls find out whether it lives.

    Every `now` is in monotonic seconds.
    """

    def __init__(self, calls: int = 20, share: float = 0.5, open_seconds: float = 15) -> None:
        self._outcomes: deque[bool] = deque(maxlen=calls)
        self._share = share
        self._open_seconds = open_seconds
        self._opened_at: float | None = None

    def admits(self, now: float) -> bool:
        """Whether a call may be made; while open, one each `open_seconds` may."""
        if self._opened_at is None:
            return True
        if now - self._opened_at < self._open_seconds:
            return False
        self._opened_at = now  # the next trial, if this one is never heard of again
        return True

    def record(self, now: float, *, well: bool) -> None:
        if self._opened_at is not None:
            self._opened_at = None if well else now
            self._outcomes.clear()
            return
        self._outcomes.append(well)
        failed = self._outcomes.count(False)
        full = len(self._outcomes) == self._outcomes.maxlen
        if full and failed >= self._share * len(self._outcomes):
            self._opened_at = now
