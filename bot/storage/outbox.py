"""What is to be said, strictly in order within a lane; each change is fenced by its sender."""

from collections.abc import Collection, Mapping, Sequence, Set

from sqlalchemy import bindparam, select, update

from bot.chat.incoming import Address
from bot.chat.outgoing import OutboxRow, OutboxState
from bot.ports import Clock
from bot.storage import histories as history
from bot.storage import lanes
from bot.storage import lanes as lane_holds
from bot.storage.database import Database
from bot.storage.statements import clock_at, served_text
from bot.storage.tables import has_external_id, is_unsent, lane, outbox

_MAX_KNOWN_IDS = 1000  # of a chat: more messages of ours than a probe ever looks back over

_KNOWN_IDS = (
    select(outbox.c.external_id)
    .where(outbox.c.lane == bindparam("of"), has_external_id)
    .order_by(outbox.c.id.desc())
    .limit(_MAX_KNOWN_IDS)
)
_LATER = (
    select(outbox.c.id)
    .where(is_unsent, outbox.c.lane == bindparam("of"), outbox.c.id > bindparam("row"))
    .limit(1)
)
_LANES_OF = select(outbox.c.lane).where(
    is_unsent, outbox.c.state == OutboxState.SENDING, outbox.c.owner == bindparam("sender")
)


class SqlOutbox:
    def __init__(self, database: Database, clock: Clock, sender: lanes.SenderIdentity) -> None:
        self._database = database
        self._clock = clock
        self._sender = sender

    async def due_lanes(self, limit: int, sources: Collection[str]) -> Sequence[str]:
        """Return lanes whose first unsent row is due and held by nobody."""
        served, now = served_text(sources), self._clock.now()
        return await self._database.run(lambda: lanes.due(served, limit, now))

    async def take(self, keys: Sequence[str]) -> Sequence[OutboxRow]:
        """Take the first unsent row of each of these lanes that is due.

        A pending row is committed as being sent before it is given (its `state` still says
        pending); one with an unknown outcome is given as it is, to be reconciled. So is a row whose
        sender's lease has ended.
        """
        at, dialect = self._moment(), self._database.dialect
        return await self._database.run(lambda: lanes.take(keys, self._sender, at, dialect))

    async def mark_sent(self, row: OutboxRow, external_id: str | None) -> OutboxRow | None:
        """Note that it arrived, and take the next row of its lane.

        `external_id` is the message that it became, None for a change of one.
        """
        at, dialect = self._moment(), self._database.dialect
        return await self._database.run(
            lambda: lanes.sent(row, external_id, self._sender, at, dialect)
        )

    async def mark_dead(self, row: OutboxRow, reason: str) -> OutboxRow | None:
        """Note that the platform refused it for good, and take the next row of its lane."""
        at = self._moment()
        return await self._database.run(lambda: lanes.dead(row, reason[:500], self._sender, at))

    async def send_again(self, row: OutboxRow, reason: str, *, is_gone: bool) -> OutboxRow | None:
        """Give up an edit that was refused, and have its part sent anew as the edit says.

        Args:
            row: the edit.
            reason: why it was refused.
            is_gone: whether its message is gone; else the row of the part keeps that message's id,
                which it is to replace.

        Returns:
            The next row of its lane, which is that part unless it was deleted by us.
        """
        at = self._moment()
        return await self._database.run(
            lambda: lanes.send_again(row, reason[:500], self._sender, at, is_gone=is_gone)
        )

    async def set_aside(self, row: OutboxRow, reason: str, notice: str) -> OutboxRow | None:
        """Give up a row whose outcome stays unknown, queue a notice, take the lane's next row.

        A notice that cannot be delivered either is given up without another one.
        """
        at = self._moment()
        return await self._database.run(
            lambda: lanes.set_aside(row, reason[:500], notice, self._sender, at)
        )

    async def mark_unknown(self, row: OutboxRow, seconds: float) -> None:
        """Note that nobody knows whether it arrived: reconcile it after so long."""
        await self._later(row, OutboxState.UNKNOWN, seconds)

    async def reschedule(self, row: OutboxRow, seconds: float) -> None:
        """Note that nothing arrived for certain: send it after so long."""
        await self._later(row, OutboxState.PENDING, seconds)

    def _moment(self) -> lanes.Moment:
        return lanes.Moment(self._clock.now(), self._clock.monotonic())

    async def _later(self, row: OutboxRow, state: OutboxState, seconds: float) -> None:
        at = self._moment()
        await self._database.run(lambda: lanes.later(row, state, seconds, self._sender, at))

    async def release_all(self) -> None:
        """Release all leases left by a previous run of this sender."""
        now = clock_at(self._database.dialect, self._clock.now())
        held = update(lane).where(lane.c.key.in_(_LANES_OF), lane.c.due_at > now)
        asked = {"sender": self._sender.owner}
        await self._database.write(lambda c: c.execute(held.values(due_at=now), asked).rowcount)

    async def has_later(self, row: OutboxRow) -> bool:
        """Whether more is to be sent in the lane of a row after it."""
        asked = {"of": row.address.lane, "row": row.id}
        return await self._database.read(lambda c: c.execute(_LATER, asked).first() is not None)

    async def sent_ids(self, row_ids: Collection[int]) -> Mapping[int, str | None]:
        """The messages that rows became, by row, and None for one that never will.

        What is still to be sent is not in it.
        """
        return await self._database.run(lambda: lanes.sent_ids(row_ids))

    async def message_of(self, part: str) -> str | None:
        """The message that a part was sent as, by its name; None if there is none yet."""
        return (await self._database.run(lambda: history.find_parts([part]))).get(part)

    async def known_ids(self, address: Address) -> Set[str]:
        """The ids of the messages in this chat that are accounted for."""
        asked = {"of": address.lane}
        return set(
            await self._database.read(lambda c: c.execute(_KNOWN_IDS, asked).scalars().all())
        )

    async def hold_lane(self, lane: str) -> float | None:
        """Take a lane without a row for the length of a lease, so that nobody sends there.

        Returns:
            The end of the lease in Unix seconds, which `release_lane` takes; None where somebody
            sends, or the outcome of a row is unknown.
        """
        now = self._clock.now()
        return await self._database.run(lambda: lane_holds.hold(lane, now))

    async def release_lane(self, lane: str, held: float) -> None:
        """Let senders take a lane again that is still held until then; else change nothing."""
        now = self._clock.now()
        await self._database.run(lambda: lane_holds.release(lane, held, now))
