"""Calls of a bot that wait for its rate: whoever waits longest goes first.

A row that is taken to be told to wait costs several statements, and again each time. So most lanes
of a bot wait in memory, untaken: every other process may take them. A lane keeps its place among
those that wait until its call is made, also while its row is put back.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from bot.ports import Clock

_MAX_ASKING = 32
"""As many as a pool claims together: what they are told says whether to take more."""
_MIN_SECONDS = 0.05
_MAX_SECONDS = 1.0
_MAX_HOLD_SECONDS = 5.0
"""Rows that are taken as soon as they are queued may wait without a pause; then others join in."""
_MAX_PLACE_SECONDS = 60.0
"""A lane that has not asked for so long was sent by another process."""
_MAX_PLACES = 10_000


class WaitingCalls:
    """The calls of each bot that ask for, or wait for, what its rate allows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asking = Counter[str]()  # by `Address.source`, as all below
        self._waiting: defaultdict[str, dict[str, asyncio.Event]] = defaultdict(dict)
        """By lane: the calls that wait here, and what says that one comes first."""
        self._ends_at: dict[str, float] = {}
        self._joins_at: dict[str, float] = {}
        self._joining = Counter[str]()
        self._places: dict[str, tuple[float, float]] = {}
        """By lane: since when it waits, and when it has asked last."""

    @contextmanager
    def asking(self, source: str) -> Iterator[None]:
        """Count a call that asks whether it is allowed."""
        self._asking[source] += 1
        try:
            yield
        finally:
            self._asking[source] -= 1

    def are_waiting(self, source: str) -> bool:
        """Return whether calls of a bot wait here for its rate."""
        return bool(self._waiting[source])

    @contextmanager
    def waiting(self, source: str, lane: str) -> Iterator[asyncio.Event]:
        """Let a call wait in its place; the event is set when it comes first."""
        self._place(lane)
        waiting = self._waiting[source]
        waiting[lane] = changed = asyncio.Event()
        try:
            yield changed
        finally:
            if waiting.get(lane) is changed:
                del waiting[lane]
            if waiting:
                waiting[min(waiting, key=self._since)].set()

    def is_first(self, source: str, lane: str) -> bool:
        """Return whether no other call that waits here has waited longer."""
        return min(self._waiting[source], key=self._since) == lane

    def end(self, lane: str) -> None:
        """Give up the place of a lane whose call is made, or waits for something else."""
        self._places.pop(lane, None)

    def note_end(self, source: str, seconds: float) -> None:
        """Note that a bot may call nothing for so long."""
        self._ends_at[source] = self._clock.monotonic() + seconds

    def admit(self, source: str, lane: str) -> float:
        """Return 0 if a row of a lane may be taken now, else after how many seconds to ask again.

        A lane whose place is before that of a call that waits here joins in.
        """
        now = self._clock.monotonic()
        ends_at = self._ends_at.get(source, now)
        is_limited = self.are_waiting(source) or ends_at > now
        if not is_limited and self._asking[source] < _MAX_ASKING:
            self._joins_at.pop(source, None)
            self._joining.pop(source, None)
            return 0.0
        since = self._place(lane)
        places = [self._since(one) for one in self._waiting[source]]
        if since < max(places, default=0.0) and sum(one < since for one in places) < _MAX_ASKING:
            return 0.0
        if now >= self._joins_at.setdefault(source, now + _MAX_HOLD_SECONDS):
            self._joins_at[source] = now + _MAX_HOLD_SECONDS
            self._joining[source] = _MAX_ASKING
        if self._joining[source] > 0:
            self._joining[source] -= 1
            return 0.0
        return min(max(ends_at - now, _MIN_SECONDS), _MAX_SECONDS)

    def _since(self, lane: str) -> float:
        return self._places[lane][0] if lane in self._places else self._clock.monotonic()

    def _place(self, lane: str) -> float:
        """Return since when a lane waits; it has a place from now on."""
        now = self._clock.monotonic()
        since, asked_at = self._places.get(lane, (now, now))
        if asked_at < now - _MAX_PLACE_SECONDS:
            since = now
        self._places[lane] = since, now
        if len(self._places) > _MAX_PLACES:
            latest = now - _MAX_PLACE_SECONDS
            self._places = {key: one for key, one in self._places.items() if one[1] >= latest}
        return since
