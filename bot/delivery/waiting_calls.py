"""How many calls of a bot wait here for its rate: no further rows of it are taken meanwhile.

A row that is taken to be told to wait costs several statements, and again each time. So the lanes
of a bot wait in memory, untaken: every other process may take them.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bot.ports import Clock

_MAX_ASKING = 32
"""As many as a pool claims together: what they are told says whether to take more."""
_MIN_SECONDS = 0.05
_MAX_SECONDS = 1.0
_MAX_HOLD_SECONDS = 5.0
"""Rows that are taken as soon as they are queued may wait without a pause; then others join in."""


class WaitingCalls:
    """The calls of each bot that ask for, or wait for, what its rate allows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asking = Counter[str]()  # by `Address.source`, as all below
        self._waiting = Counter[str]()
        self._ends_at: dict[str, float] = {}
        self._joins_at: dict[str, float] = {}
        self._joining = Counter[str]()

    @contextmanager
    def asking(self, source: str) -> Iterator[None]:
        """Count a call that asks whether it is allowed."""
        self._asking[source] += 1
        try:
            yield
        finally:
            self._asking[source] -= 1

    @contextmanager
    def waiting(self, source: str) -> Iterator[None]:
        """Count a call that the bot's rate does not allow yet."""
        self._waiting[source] += 1
        try:
            yield
        finally:
            self._waiting[source] -= 1

    def note_end(self, source: str, seconds: float) -> None:
        """Note that a bot may call nothing for so long."""
        self._ends_at[source] = self._clock.monotonic() + seconds

    def admit(self, source: str) -> float:
        """Return 0 if a row of a bot may be taken now, else after how many seconds to ask again."""
        now = self._clock.monotonic()
        ends_at = self._ends_at.get(source, now)
        is_limited = self._waiting[source] > 0 or ends_at > now
        if not is_limited and self._asking[source] < _MAX_ASKING:
            self._joins_at.pop(source, None)
            self._joining.pop(source, None)
            return 0.0
        if now >= self._joins_at.setdefault(source, now + _MAX_HOLD_SECONDS):
            self._joins_at[source] = now + _MAX_HOLD_SECONDS
            self._joining[source] = _MAX_ASKING
        if self._joining[source] > 0:
            self._joining[source] -= 1
            return 0.0
        return min(max(ends_at - now, _MIN_SECONDS), _MAX_SECONDS)
