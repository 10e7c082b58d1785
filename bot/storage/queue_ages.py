"""How long the oldest of each queue waits, by two index look-ups.

Nothing is counted: a backlog of a million messages costs no more than an empty one.
"""

from sqlalchemy import Connection, func, select

from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, is_ready, is_waiting, lane
from bot.storage.units.dialects import clock_at

_OLDEST_CONVERSATION = select(func.min(conversation.c.ready_since)).where(is_ready)
_OLDEST_LANE = select(func.min(lane.c.due_at)).where(is_waiting)


@frozen_dataclass
class QueueAges:
    """Seconds; 0 where nothing waits."""

    conversations: float
    """Since the oldest unanswered message was received."""
    lanes: float
    """Since the oldest unsent row was due."""


class SqlQueueAges:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def read(self) -> QueueAges:
        """Read them; raises `StoreError`."""
        here = self._clock.now()

        def unit(connection: Connection) -> QueueAges:
            now = connection.execute(select(clock_at(connection.dialect.name, here))).scalar_one()
            ready = connection.execute(_OLDEST_CONVERSATION).scalar_one()
            due = connection.execute(_OLDEST_LANE).scalar_one()
            return QueueAges(
                0.0 if ready is None else max(0.0, now - ready),
                0.0 if due is None else max(0.0, now - due),
            )

        return await self._database.read(unit)
