"""What is to be said, strictly in order within a lane; each change is fenced by its sender."""

from collections.abc import Collection, Mapping, Sequence, Set

from sqlalchemy import bindparam, select, update
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import OutboxRow, OutboxState
from bot.ports import Clock, Outbox
from bot.storage import histories, lanes
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


class SqlOutbox(Outbox):
    def __init__(self, database: Database, clock: Clock, sender: lanes.SenderIdentity) -> None:
        self._database = database
        self._clock = clock
        self._sender = sender

    @override
    async def due_lanes(self, limit: int, sources: Collection[str]) -> Sequence[str]:
        served, now = served_text(sources), self._clock.now()
        return await self._database.run(lambda: lanes.due(served, limit, now))

    @override
    async def take(self, keys: Sequence[str]) -> Sequence[OutboxRow]:
        at, dialect = self._moment(), self._database.dialect
        return await self._database.run(lambda: lanes.take(keys, self._sender, at, dialect))

    @override
    async def mark_sent(self, row: OutboxRow, external_id: str | None) -> OutboxRow | None:
        at, dialect = self._moment(), self._database.dialect
        return await self._database.run(
            lambda: lanes.sent(row, external_id, self._sender, at, dialect)
        )

    @override
    async def mark_dead(self, row: OutboxRow, reason: str) -> OutboxRow | None:
        at = self._moment()
        return await self._database.run(lambda: lanes.dead(row, reason[:500], self._sender, at))

    @override
    async def send_again(self, row: OutboxRow, reason: str, *, is_gone: bool) -> OutboxRow | None:
        at = self._moment()
        return await self._database.run(
            lambda: lanes.send_again(row, reason[:500], self._sender, at, is_gone=is_gone)
        )

    @override
    async def set_aside(self, row: OutboxRow, reason: str, notice: str) -> OutboxRow | None:
        at = self._moment()
        return await self._database.run(
            lambda: lanes.set_aside(row, reason[:500], notice, self._sender, at)
        )

    @override
    async def mark_unknown(self, row: OutboxRow, seconds: float) -> None:
        await self._later(row, OutboxState.UNKNOWN, seconds)

    @override
    async def reschedule(self, row: OutboxRow, seconds: float) -> None:
        await self._later(row, OutboxState.PENDING, seconds)

    def _moment(self) -> lanes.Moment:
        return lanes.Moment(self._clock.now(), self._clock.monotonic())

    async def _later(self, row: OutboxRow, state: OutboxState, seconds: float) -> None:
        at = self._moment()
        await self._database.run(lambda: lanes.later(row, state, seconds, self._sender, at))

    @override
    async def release_all(self) -> None:
        now = clock_at(self._database.dialect, self._clock.now())
        held = update(lane).where(lane.c.key.in_(_LANES_OF), lane.c.due_at > now)
        asked = {"sender": self._sender.owner}
        await self._database.write(lambda c: c.execute(held.values(due_at=now), asked).rowcount)

    @override
    async def has_later(self, row: OutboxRow) -> bool:
        asked = {"of": row.address.lane, "row": row.id}
        return await self._database.read(lambda c: c.execute(_LATER, asked).first() is not None)

    @override
    async def sent_ids(self, row_ids: Collection[int]) -> Mapping[int, str | None]:
        return await self._database.run(lambda: lanes.sent_ids(row_ids))

    @override
    async def message_of(self, part: str) -> str | None:
        return (await self._database.run(lambda: histories.find_parts([part]))).get(part)

    @override
    async def known_ids(self, address: Address) -> Set[str]:
        asked = {"of": address.lane}
        return set(
            await self._database.read(lambda c: c.execute(_KNOWN_IDS, asked).scalars().all())
        )

    @override
    async def hold_lane(self, lane: str) -> float | None:
        now = self._clock.now()
        return await self._database.run(lambda: lanes.hold(lane, now))

    @override
    async def release_lane(self, lane: str, held: float) -> None:
        now = self._clock.now()
        await self._database.run(lambda: lanes.release(lane, held, now))
