"""Track Discord's rate limits: buckets, and the global limit.

See https://discord.com/developers/docs/topics/rate-limits.
"""

import math
from collections import deque
from collections.abc import Mapping

from bot.errors import RefusedScope

_MAX_BUCKETS = 1000
_MAX_SENT = 100
_LIMIT, _REMAINING = "x-ratelimit-limit", "x-ratelimit-remaining"
_RESET_AFTER, _BUCKET = "x-ratelimit-reset-after", "x-ratelimit-bucket"


class RateLimitBucket:
    """The requests that Discord accepts in a time window.

    A window's start is known only up to a response's latency, so requests are kept below the limit
    in any period of the window's length.
    """

    __slots__ = ("_left", "_limit", "_resets_at", "_sent", "_window_seconds")

    def __init__(self) -> None:
        self._limit = self._left = math.inf
        self._resets_at = -math.inf
        self._window_seconds = 0.0  # the longest seen
        self._sent: deque[float] = deque(maxlen=_MAX_SENT)  # when, oldest first

    def seconds_until_free(self, now: float) -> float:
        """Return the seconds until a request is allowed; 0 if now."""
        wait = 0.0 if self._left > 0 else self._resets_at - now
        if len(self._sent) >= self._limit:
            wait = max(wait, self._sent[-int(self._limit)] + self._window_seconds - now)
        return max(0.0, wait)

    def take(self, now: float) -> None:
        """Count a request sent now; the first request starts a window."""
        if now >= self._resets_at and self._window_seconds:
            self._left, self._resets_at = self._limit, now + self._window_seconds
        self._left -= 1
        self._sent.append(now)

    def update(self, limit: float, remaining: float, reset_after: float, now: float) -> None:
        """Apply a response's headers, which may be late or not count requests in flight."""
        is_same_window = now < self._resets_at
        self._left = min(self._left, remaining) if is_same_window else remaining
        self._limit = limit
        self._resets_at = max(self._resets_at, now + reset_after)
        self._window_seconds = max(self._window_seconds, reset_after)

    def block(self, until: float) -> None:
        """Allow no requests before this time."""
        self._left, self._resets_at = 0, max(self._resets_at, until)

    def is_reset(self, now: float) -> bool:
        """Return whether all known limits of the bucket have expired."""
        return now >= self._resets_at


class BucketLimits:
    """The buckets of all endpoints; several endpoints may share a bucket."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by endpoint: the name from Discord
        self._buckets: dict[tuple[str, str], RateLimitBucket] = {}
        self._blocked_until = -math.inf

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, endpoint: str, resource: str, now: float) -> RateLimitBucket:
        """Return an endpoint's bucket for one channel, guild or webhook."""
        key = (self._names.get(endpoint, endpoint), resource)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                kept = {key: one for key, one in self._buckets.items() if not one.is_reset(now)}
                self._buckets = kept
            bucket = self._buckets[key] = RateLimitBucket()
        return bucket

    def seconds_until_free(self, bucket: RateLimitBucket, now: float) -> float:
        """Return the seconds until a request of the bucket is allowed; 0 if now."""
        return max(bucket.seconds_until_free(now), self._blocked_until - now, 0.0)

    def refused_scope(self, bucket: RateLimitBucket, now: float) -> RefusedScope:
        """Return the scope blocked the longest: a bucket, or all of the bot's requests."""
        return "bot" if self._blocked_until - now >= bucket.seconds_until_free(now) else "route"

    def block_all(self, until: float) -> None:
        """Allow no requests at all before this time."""
        self._blocked_until = max(self._blocked_until, until)

    def update(
        self,
        bucket: RateLimitBucket,
        endpoint: str,
        resource: str,
        headers: Mapping[str, str],
        now: float,
    ) -> None:
        """Apply a response's rate limit headers, if present."""
        name = headers.get(_BUCKET)
        if name is not None and self._names.get(endpoint) != name:
            self._rename(endpoint, name)
            bucket = self._buckets.setdefault((name, resource), bucket)
        try:
            bucket.update(
                float(headers[_LIMIT]),
                float(headers[_REMAINING]),
                float(headers[_RESET_AFTER]),
                now,
            )
        except (KeyError, ValueError):
            return

    def _rename(self, endpoint: str, name: str) -> None:
        """Rename an endpoint's buckets to Discord's name; earlier requests still count."""
        old = self._names.get(endpoint, endpoint)
        self._names[endpoint] = name
        for (of, resource), bucket in list(self._buckets.items()):
            if of == old:
                self._buckets.setdefault((name, resource), bucket)
