"""How long the oldest of each queue waits, by two index look-ups.

Nothing is counted: a backlog of a million messages costs no more than an empty one. Only what is
paused is passed over row by row, where not everything is.
"""

from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, or_, select

from bot.chat.console.operation import EVERYWHERE
from bot.chat.incoming import HISTORY_MARK
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, is_ready, is_waiting, lane, pause
from bot.storage.units.dialects import clock_at

_IS_CURRENT = pause.c.ended_at.is_(None)


def _is_covered(key: ColumnElement[str], scope: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that a pause of this scope covers a conversation: `Pause.covers`."""
    following = func.substr(key, func.length(scope) + 1, 1)
    mark = case((scope.contains(":"), HISTORY_MARK), else_="@")
    begins = func.substr(key, 1, func.length(scope)) == scope
    return or_(scope == EVERYWHERE, and_(begins, following.in_(["", ":", mark])))


_PAUSED = select(pause.c.scope).where(_IS_CURRENT)
_OLDEST_CONVERSATION = select(func.min(conversation.c.ready_since)).where(is_ready)
# In the order of the index: it ends at the first one.
_OLDEST_NOT_PAUSED = (
    select(conversation.c.ready_since)
    .where(is_ready, ~exists().where(_IS_CURRENT, _is_covered(conversation.c.key, pause.c.scope)))
    .order_by(conversation.c.ready_since)
    .limit(1)
)
_OLDEST_LANE = select(func.min(lane.c.due_at)).where(is_waiting)


@frozen_dataclass
class QueueAges:
    """Seconds; 0 where nothing waits."""

    conversations: float
    """Since the oldest unanswered message was received that no pause of answering holds back."""
    lanes: float
    """Since the oldest unsent row was due."""


def _oldest_ready(connection: Connection) -> float | None:
    """Return since when the oldest conversation is ready, in Unix seconds, outside of the pauses.

    More workers are of no use to what is paused, and nobody is to be called for it.
    """
    paused = connection.execute(_PAUSED).scalars().all()
    if EVERYWHERE in paused:
        return None
    oldest = _OLDEST_NOT_PAUSED if paused else _OLDEST_CONVERSATION
    since: float | None = connection.execute(oldest).scalar()
    return since


class SqlQueueAges:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def read(self) -> QueueAges:
        """Read them; raises `StoreError`."""
        here = self._clock.now()

        def unit(connection: Connection) -> QueueAges:
            now = connection.execute(select(clock_at(connection.dialect.name, here))).scalar_one()
            ready = _oldest_ready(connection)
            due = connection.execute(_OLDEST_LANE).scalar_one()
            return QueueAges(
                0.0 if ready is None else max(0.0, now - ready),
                0.0 if due is None else max(0.0, now - due),
            )

        return await self._database.read(unit)
