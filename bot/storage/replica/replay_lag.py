"""How far a standby of PostgreSQL is behind, from positions in the primary's write-ahead log.

The server's own measures mislead: `replay_lag` of pg_stat_replication is NULL on an idle primary
and keeps its last value while replay stands still, and the age of `pg_last_xact_replay_timestamp`
grows while nobody writes. Positions with the times at which they were read need no other clock.
"""

from collections import deque

from sqlalchemy import text

from bot.frozen_dataclass import frozen_dataclass

_MAX_SAMPLES = 3600
"""At one a second, a lag of more than an hour is told as an hour."""

PRIMARY_POSITION = text("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
"""What a standby can have at most, in bytes."""


@frozen_dataclass
class Lag:
    """Seconds."""

    at_least: float
    """Since when something is missing that the primary had; 0: nothing is known to be."""
    at_most: float
    """The age of the newest state of the primary that is known to be complete."""


class ReplayLag:
    """Remembers where the primary was, and when."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)

    def note_primary(self, at: float, position: int) -> None:
        """Note where the primary was.

        Args:
            at: a moment before the position was read, in seconds of any clock.
            position: in bytes.
        """
        if self._samples and position < self._samples[-1][1]:  # the database was restored
            self._samples.clear()
        self._samples.append((at, position))

    def measure(self, now: float, replayed: int) -> Lag | None:
        """Return the lag of a standby that has replayed so much; None: nothing is known.

        Of several standbys, the slowest one is asked about; what it has replayed is forgotten.
        """
        while len(self._samples) > 1 and self._samples[1][1] <= replayed:
            self._samples.popleft()
        if not self._samples:
            return None
        first, first_position = self._samples[0]
        if first_position > replayed:  # it is further behind than is remembered
            return Lag(now - first, float("inf"))
        missing = self._samples[1][0] if len(self._samples) > 1 else now
        return Lag(now - missing, now - first)
