"""How long the oldest of each queue waits, by two index look-ups, and how far replicas are behind.

Nothing is counted: a backlog of a million messages costs no more than an empty one.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, func, not_, or_, select, text

from bot.chat.console.operation import EVERYWHERE
from bot.chat.incoming import HISTORY_MARK
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock
from bot.storage.replica.replay_lag import PRIMARY_POSITION, ReplayLag
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, is_ready, is_waiting, lane, pause

_OLDEST_CONVERSATION = select(func.min(conversation.c.ready_since)).where(is_ready)
_PAUSED = select(pause.c.scope).where(pause.c.ended_at.is_(None))
_OLDEST_LANE = select(func.min(lane.c.due_at)).where(is_waiting)
# Without the role pg_monitor the state of others' connections is NULL.
_REPLICAS = text(
    "SELECT count(*), min(replay_lsn) - '0/0'::pg_lsn, max(extract(epoch FROM replay_lag))"
    " FROM pg_stat_replication WHERE state IN ('streaming', 'catchup')"
)


@frozen_dataclass
class QueueAges:
    """Seconds; 0 where nothing waits."""

    conversations: float
    """Since the oldest unanswered message was received that no pause of answering holds back."""
    lanes: float
    """Since the oldest unsent row was due."""
    replicas: int = 0
    """How many are connected to the database, as far as they may be seen."""
    replication_lag: float = 0.0
    """Of the slowest of them."""


def _oldest_ready(connection: Connection, paused: Collection[str]) -> float | None:
    """Return since when the oldest conversation is ready, in Unix seconds, outside of the pauses.

    More workers are of no use to what is paused, and nobody is to be called for it.
    """
    if EVERYWHERE in paused:
        return None
    query = _OLDEST_CONVERSATION
    if paused:
        query = query.where(not_(or_(*map(_is_in, paused))))
    oldest: float | None = connection.execute(query).scalar_one()
    return oldest


def _is_in(scope: str) -> ColumnElement[bool]:
    """Return the condition that a pause of this scope covers a conversation: `Pause.covers`."""
    key, marks = conversation.c.key, (":", HISTORY_MARK) if ":" in scope else (":", "@")
    inside = (key.startswith(f"{scope}{mark}", autoescape=True) for mark in marks)
    return or_(key == scope, *inside)


class SqlQueueAges:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._lag = ReplayLag()

    async def read(self) -> QueueAges:
        """Read them; raises `StoreError`."""
        now, started = self._clock.now(), self._clock.monotonic()

        def unit(connection: Connection) -> tuple[float, float]:
            paused = connection.execute(_PAUSED).scalars().all()
            ready = _oldest_ready(connection, paused)
            due = connection.execute(_OLDEST_LANE).scalar_one()
            return (
                0.0 if ready is None else max(0.0, now - ready),
                0.0 if due is None else max(0.0, now - due),
            )

        ages = await self._database.read(unit)
        if self._database.is_sqlite:
            return QueueAges(*ages)
        replicas, replayed, replay_lag = await self._database.read(
            lambda c: c.execute(_REPLICAS).one()
        )
        position = await self._database.read(lambda c: c.execute(PRIMARY_POSITION).scalar_one())
        self._lag.note_primary(started, int(position))
        if replayed is None or replayed >= position:
            return QueueAges(*ages, replicas)
        lag = self._lag.measure(self._clock.monotonic(), int(replayed))
        missing = lag.at_least if lag is not None else 0.0
        return QueueAges(*ages, replicas, max(missing, float(replay_lag or 0)))
