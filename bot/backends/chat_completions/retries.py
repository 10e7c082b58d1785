"""Decide whether to retry a failed request: backoff, retry budget, and circuit breaker."""

import email.utils
import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime

MAX_RETRIES = 2
MAX_RETRY_AFTER_SECONDS = 30.0
MAX_WAIT_BEFORE_FALLBACK_SECONDS = 1.0
"""The longest wait that a provider may request before its fallback is used instead."""
LASTING_ERROR_SKIP_SECONDS = 30.0
"""How long requests with a fallback skip a model after a lasting error."""
MAX_BREAKER_WAIT_SECONDS = 8.0
_MAX_REQUESTED_WAIT_SECONDS = 86_400.0
_FIRST_BACKOFF_SECONDS = 0.5
_MAX_BACKOFF_SECONDS = 8.0
_MAX_RETRY_BUDGET = 10.0  # retries
_BREAKER_WINDOW_CALLS = 20
_SECONDS_BETWEEN_TRIALS = 5.0
_MIN_DOWNTIME_CALL_COUNT = 3
_MIN_DOWNTIME_REQUEST_COUNT = 2
_MIN_UNIX_TIME = 10**9  # smaller numbers are seconds to wait
_MAX_ERROR_BYTES = 8192
_NUMBER_PATTERN = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_UNIT_PATTERN = r"(?:ms|milliseconds?|[smhd]|secs?|seconds?|mins?|minutes?|hours?|days?)"
_DURATION_PATTERN = rf"(?:{_NUMBER_PATTERN} ?{_UNIT_PATTERN} ?)+"
_RETRY_DELAY_FIELD_PATTERN = re.compile(
    r"(?:retry[-_]?after|retry[-_]?delay|ratelimit-reset)[\"' ]*[:=][\"' ]*([0-9][\w.:+-]*)"
)
_RETRY_DELAY_TEXT_PATTERN = re.compile(
    rf"(?:again|retry|wait|available)\b[^0-9\n]{{0,25}}({_DURATION_PATTERN})(?!\w)"
)


def max_backoff_seconds(retry_count: int) -> float:
    return min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0**retry_count)


def find_wait_seconds(headers: Mapping[str, str], body: bytes, now: float) -> float:
    """Return how many seconds the headers or body of a response ask to wait; 0 if they do not."""
    wait_seconds = parse_wait_seconds(headers.get("retry-after-ms"), now) / 1000
    wait_seconds = wait_seconds or parse_wait_seconds(headers.get("retry-after"), now)
    text = body[:_MAX_ERROR_BYTES].decode(errors="replace").lower()
    for pattern in (_RETRY_DELAY_FIELD_PATTERN, _RETRY_DELAY_TEXT_PATTERN):
        if not wait_seconds and (match := pattern.search(text)):
            wait_seconds = parse_wait_seconds(match[1], now)
    if wait_seconds:
        return wait_seconds
    seconds_until_reset = (
        parse_wait_seconds(value, now)
        for name, value in ((name.lower(), value) for name, value in headers.items())
        if "ratelimit" in name
        and "reset" in name
        # Several limits may each have a reset time; only a used-up one matters.
        and headers.get(name.replace("reset", "remaining"), "0").strip() == "0"
    )
    return max(seconds_until_reset, default=0)


def parse_wait_seconds(value: str | None, now: float) -> float:
    """Return the seconds to wait, at most a day, or 0 if the value is invalid.

    The value is in seconds, a duration (1m2.5s), a Unix time, or a date.
    """
    value = (value or "").strip()
    try:
        if re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
            seconds = float(value)
            if seconds > 1000 * _MIN_UNIX_TIME:
                seconds /= 1000
            seconds -= now if seconds > _MIN_UNIX_TIME else 0
        elif re.fullmatch(_DURATION_PATTERN, value):
            pairs = re.findall(rf"({_NUMBER_PATTERN}) ?({_UNIT_PATTERN})", value)
            seconds = sum(float(number) * _seconds_per_unit(unit) for number, unit in pairs)
        elif re.match(r"\d{4}-", value, re.ASCII):
            seconds = datetime.fromisoformat(value).timestamp() - now
        else:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
    except (ValueError, OverflowError):
        return 0
    return min(max(0.0, seconds), _MAX_REQUESTED_WAIT_SECONDS)


def _seconds_per_unit(unit: str) -> float:
    if unit.startswith(("ms", "mil")):
        return 0.001
    return {"s": 1, "m": 60, "h": 3600, "d": 86_400}[unit[0]]


class RetryBudget:
    """Limits retries to a tenth of all calls, so as not to overload a struggling provider."""

    def __init__(self) -> None:
        self._retries_left = 3.0

    def record_call(self) -> None:
        self._retries_left = min(_MAX_RETRY_BUDGET, self._retries_left + 0.1)

    def try_spend_retry(self) -> bool:
        # In floating point, ten times 0.1 adds up to slightly less than 1.
        if self._retries_left < 1 - 1e-9:
            return False
        self._retries_left -= 1
        return True


class CircuitBreaker:
    """Blocks calls to a provider while most of them fail, except for single trial calls.

    It opens for five seconds if `failure_share` of the last twenty calls failed, or if several
    calls in a row, over `min_down_seconds`, found the service down; `now` is monotonic seconds.
    """

    def __init__(self, failure_share: float = 0.5, min_down_seconds: float = 1) -> None:
        self._outcomes: deque[bool] = deque(maxlen=_BREAKER_WINDOW_CALLS)
        self._failure_share = failure_share
        self._min_down_seconds = min_down_seconds
        self._down_since: float | None = None
        self._downtime_call_count = 0
        self._downtime_request_count = 0
        self._opened_at: float | None = None
        self.failed_trial_count = 0

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None

    @property
    def outcomes(self) -> Sequence[bool]:
        return tuple(self._outcomes)

    def allows_call(self, now: float) -> bool:
        """Return whether a call may be made now; an open breaker allows one every five seconds."""
        if self._opened_at is None:
            return True
        if now - self._opened_at < _SECONDS_BETWEEN_TRIALS:
            return False
        self._opened_at = now  # if this trial is never recorded, another one is allowed later
        return True

    def record_outcome(
        self,
        now: float,
        *,
        succeeded: bool,
        is_service_down: bool = False,
        is_retry: bool = False,
        is_trial: bool = True,
    ) -> None:
        """Record a call's outcome; `is_service_down` means that the service was down.

        Retries alone never open the breaker.
        """
        if self._opened_at is not None:
            if succeeded:
                self._opened_at = None
            elif is_trial:
                self._opened_at = now
                self.failed_trial_count += 1
            self._outcomes.clear()
            self._forget_downtime()
            return
        self._outcomes.append(succeeded)
        failure_count = self._outcomes.count(False)
        is_window_full = len(self._outcomes) == self._outcomes.maxlen
        is_failing = is_window_full and failure_count >= self._failure_share * len(self._outcomes)
        if is_failing or self._record_downtime(
            now, is_service_down=is_service_down, is_retry=is_retry
        ):
            self._opened_at = now

    def _record_downtime(self, now: float, *, is_service_down: bool, is_retry: bool) -> bool:
        if not is_service_down:
            self._forget_downtime()
            return False
        if self._down_since is None:
            self._down_since = now
        self._downtime_call_count += 1
        self._downtime_request_count += not is_retry
        return (
            self._downtime_call_count >= _MIN_DOWNTIME_CALL_COUNT
            and self._downtime_request_count >= _MIN_DOWNTIME_REQUEST_COUNT
            and now - self._down_since >= self._min_down_seconds
        )

    def _forget_downtime(self) -> None:
        self._down_since = None
        self._downtime_call_count = self._downtime_request_count = 0
