"""Decide whether a failed request is retried: backoff, retry budget and circuit breaker."""

import email.utils
import re
from collections import deque
from collections.abc import Sequence

MAX_RETRIES = 2
MAX_RETRY_AFTER_SECONDS = 30.0
MAX_SECONDS_BEFORE_FALLBACK = 1.0
"""The longest wait that a provider may ask for where another model can answer meanwhile."""
LASTING_ERROR_SECONDS = 30.0
"""For how long a wrong key, a used-up account, an unknown or a silent model is not tried again
where another model can answer."""
MAX_BREAKER_WAIT_SECONDS = 8.0
"""How long a request waits behind an open breaker: until a trial request is due, and for it."""
MAX_RETRY_AFTER = 86_400.0
_FIRST_BACKOFF_SECONDS = 0.5
_MAX_BACKOFF_SECONDS = 8.0


def max_backoff_seconds(retries: int) -> float:
    """Return the longest wait before the next retry; full jitter picks a time below it."""
    return min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0**retries)


def retry_after(value: str | None, now: float) -> float:
    """Return the seconds of a Retry-After header, which may hold a date (RFC 9110, 10.2.3).

    A wait of more than a day is taken for a day.
    """
    if not value:
        return 0
    if re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
        return min(float(value), MAX_RETRY_AFTER)
    try:
        seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
    except (ValueError, OverflowError):
        return 0
    return min(max(0.0, seconds), MAX_RETRY_AFTER)


class RetryBudget:
    """Limit retries to a tenth of all calls, so that they do not overload a struggling provider."""

    def __init__(self, share: float = 0.1, initial: float = 3, maximum: float = 10) -> None:
        self._share = share
        self._tokens = initial
        self._maximum = maximum

    def record_call(self) -> None:
        """Count one call; its retries are not counted."""
        self._tokens = min(self._maximum, self._tokens + self._share)

    def take(self) -> bool:
        """Take one retry from the budget; False when there is none."""
        # The sum of ten tenths is a little less than one.
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True


class CircuitBreaker:
    """Block calls to a provider that mostly fails, and let single trial calls through.

    Every `now` is in monotonic seconds.
    """

    def __init__(self, calls: int = 20, share: float = 0.5, open_seconds: float = 5) -> None:
        self._outcomes: deque[bool] = deque(maxlen=calls)
        self._share = share
        self._open_seconds = open_seconds
        self._opened_at: float | None = None
        self.failed_trials = 0
        """How many trial calls have failed so far."""

    @property
    def is_open(self) -> bool:
        """Whether only trial calls are let through."""
        return self._opened_at is not None

    @property
    def outcomes(self) -> Sequence[bool]:
        """Whether each of the newest calls succeeded."""
        return tuple(self._outcomes)

    def allows(self, now: float) -> bool:
        """Return whether a call may be made; while open, one each `open_seconds` may."""
        if self._opened_at is None:
            return True
        if now - self._opened_at < self._open_seconds:
            return False
        self._opened_at = now  # when the next trial is due should this one never be recorded
        return True

    def record(self, now: float, *, success: bool) -> None:
        """Count the outcome of a call; a successful trial call closes the breaker."""
        if self._opened_at is not None:
            self._opened_at = None if success else now
            self.failed_trials += not success
            self._outcomes.clear()
            return
        self._outcomes.append(success)
        failed = self._outcomes.count(False)
        full = len(self._outcomes) == self._outcomes.maxlen
        if full and failed >= self._share * len(self._outcomes):
            self._opened_at = now
