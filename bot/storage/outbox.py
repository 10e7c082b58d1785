"""What is to be said, strictly in order within a lane."""

from collections.abc import Sequence, Set

from sqlalchemy import Connection, Row, Update, and_, func, select, update
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Op, OutboxRow, Sending
from bot.errors import Refused
from bot.ports import Clock, Outbox
from bot.storage.database import Database
from bot.storage.tables import outbox

_UNSENT = outbox.c.state.not_in([Sending.SENT, Sending.DEAD])
_IDS_REMEMBERED = 1000  # of a chat: more messages of ours than a probe ever looks back over


class SqlOutbox(Outbox):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def lanes(self, limit: int) -> Sequence[str]:
        heads = (
            select(func.min(outbox.c.id)).where(_UNSENT).group_by(outbox.c.lane).scalar_subquery()
        )
        due = (
            select(outbox.c.lane)
            .where(outbox.c.id.in_(heads), outbox.c.not_before <= self._clock.now())
            .where(outbox.c.state != Sending.SENDING)
            .order_by(outbox.c.id)
            .limit(limit)
        )
        return await self._database.read(lambda c: c.execute(due).scalars().all())

    @override
    async def take(self, lane: str) -> OutboxRow | None:
        now = self._clock.now()
        opened = outbox.alias("opened")  # the message that an edit or a deletion is about
        same_part = and_(
            opened.c.turn == outbox.c.turn,
            opened.c.part == outbox.c.part,
            opened.c.op == Op.SEND,
        )
        head = (
            select(outbox, opened.c.external_id.label("target"))
            .outerjoin(opened, same_part)
            .where(_UNSENT, outbox.c.lane == lane)
            .order_by(outbox.c.id)
            .limit(1)
        )

        def unit(connection: Connection) -> OutboxRow | None:
            row = connection.execute(head).one_or_none()
            if row is None or row.not_before > now or row.state == Sending.SENDING:
                return None
            if row.state == Sending.PENDING:
                begun = (
                    update(outbox)
                    .where(outbox.c.id == row.id, outbox.c.state == Sending.PENDING)
                    .values(state=Sending.SENDING, started_at=now, attempts=outbox.c.attempts + 1)
                )
                if _count(connection, begun) == 0:  # another sender was faster
                    return None
            return _to_row(row)

        return await self._database.write(unit)

    @override
    async def sent(self, row: OutboxRow, external_id: str | None) -> None:
        # what was said stands in the history; here only its id is still needed
        await self._set(row, state=Sending.SENT, external_id=external_id, text="")

    @override
    async def unknown(self, row: OutboxRow, not_before: float) -> None:
        await self._set(row, state=Sending.UNKNOWN, not_before=not_before)

    @override
    async def again(self, row: OutboxRow, not_before: float) -> None:
        await self._set(row, state=Sending.PENDING, not_before=not_before)

    @override
    async def dead(self, row: OutboxRow, why: str) -> None:
        await self._set(row, state=Sending.DEAD, error=why[:500])

    @override
    async def external_id(self, row_id: int) -> str | None:
        query = select(outbox.c.external_id, outbox.c.state, outbox.c.error)
        query = query.where(outbox.c.id == row_id)
        row = await self._database.read(lambda c: c.execute(query).one())
        if row.state == Sending.DEAD:
            raise Refused(row.error)
        external_id: str | None = row.external_id
        return external_id

    @override
    async def known_ids(self, address: Address) -> Set[str]:
        query = (
            select(outbox.c.external_id)
            .where(outbox.c.lane == address.lane, outbox.c.external_id.is_not(None))
            .order_by(outbox.c.id.desc())
            .limit(_IDS_REMEMBERED)
        )
        return set(await self._database.read(lambda c: c.execute(query).scalars().all()))

    @override
    async def give_up(self, *, older_than_seconds: float, settle_seconds: float) -> int:
        long_ago = self._clock.now() - older_than_seconds
        lost = (
            update(outbox)
            .where(outbox.c.state == Sending.SENDING, outbox.c.started_at <= long_ago)
            .values(state=Sending.UNKNOWN, not_before=outbox.c.started_at + settle_seconds)
        )
        return await self._database.write(lambda c: _count(c, lost))

    async def _set(self, row: OutboxRow, **values: object) -> None:
        change = update(outbox).where(outbox.c.id == row.id).values(values)
        await self._database.write(lambda c: _count(c, change))


def _count(connection: Connection, change: Update) -> int:
    return connection.execute(change).rowcount


def _to_row(row: Row[*tuple[object, ...]]) -> OutboxRow:
    return OutboxRow(
        id=row.id,
        turn=row.turn,
        address=Address(row.platform, row.chat, row.thread),
        part=row.part,
        op=Op(row.op),
        text=row.text,
        reply_to=row.reply_to,
        interaction=row.interaction,
        state=Sending(row.state),
        attempts=row.attempts,
        external_id=row.target,
        not_before=row.not_before,
    )
