"""How long the oldest of each queue waits, and how far replicas are behind: two index look-ups.

Nothing is counted: a backlog of a million messages costs no more than an empty one.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select, text

from bot.ports import Clock
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, is_ready, is_waiting, lane

_OLDEST_CONVERSATION = select(func.min(conversation.c.ready_since)).where(is_ready)
_OLDEST_LANE = select(func.min(lane.c.due_at)).where(is_waiting)
# Without the role pg_monitor the lag of others' connections is NULL.
_LAG = text("SELECT max(extract(epoch FROM replay_lag)) FROM pg_stat_replication")


@dataclass(frozen=True, slots=True)
class QueueAges:
    """Seconds; 0 where nothing waits."""

    conversations: float
    """Since the oldest unanswered message was received."""
    lanes: float
    """Since the oldest unsent row was due."""
    replication_lag: float | None
    """Of the slowest replica; None: there is none, or it may not be seen."""


class SqlQueueAges:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def read(self) -> QueueAges:
        """Read them; raises `StoreError`."""
        now = self._clock.now()
        has_replicas = not self._database.is_sqlite

        def unit(connection: Connection) -> QueueAges:
            ready = connection.execute(_OLDEST_CONVERSATION).scalar_one()
            due = connection.execute(_OLDEST_LANE).scalar_one()
            lag = connection.execute(_LAG).scalar_one() if has_replicas else None
            return QueueAges(
                0.0 if ready is None else max(0.0, now - ready),
                0.0 if due is None else max(0.0, now - due),
                None if lag is None else float(lag),
            )

        return await self._database.read(unit)
