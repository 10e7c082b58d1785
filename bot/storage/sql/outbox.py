"""The outbox in SQL: what is to be sent, strictly in order within a lane."""

from collections.abc import Sequence, Set

from sqlalchemy import Connection, Executable, Row, and_, bindparam, func, select, update
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, OutboxOperation, OutboxRow, OutboxState
from bot.errors import Refused
from bot.ports import Clock, Outbox
from bot.storage.sql.database import Database
from bot.storage.sql.tables import is_unsent, outbox

_MAX_KNOWN_IDS = 1000
"""Of one chat: more messages than a search for a lost one ever looks back over."""
_MAX_ERROR_CHARS = 500

# Statements are built once: building one costs more than running it.
_HEAD_IDS = select(func.min(outbox.c.id)).where(is_unsent).group_by(outbox.c.lane)
_DUE_LANES = (
    select(outbox.c.lane)
    .where(outbox.c.id.in_(_HEAD_IDS.scalar_subquery()), outbox.c.not_before <= bindparam("now"))
    .where(outbox.c.state != OutboxState.SENDING)
    .order_by(outbox.c.id)
    .limit(bindparam("max_lanes"))
)
_opening = outbox.alias("opening")  # the send whose message an edit or a deletion changes
_HEAD = (
    select(outbox, _opening.c.external_id.label("target_id"))
    .outerjoin(
        _opening,
        and_(
            _opening.c.turn == outbox.c.turn,
            _opening.c.part == outbox.c.part,
            _opening.c.op == OutboxOperation.SEND,
        ),
    )
    .where(is_unsent, outbox.c.lane == bindparam("lane_key"))
    .order_by(outbox.c.id)
    .limit(1)
)
_UPDATE_ROW = update(outbox).where(outbox.c.id == bindparam("row_id"))
_START_SENDING = _UPDATE_ROW.where(outbox.c.state == OutboxState.PENDING).values(
    state=OutboxState.SENDING, started_at=bindparam("now"), attempts=outbox.c.attempts + 1
)
_NO_FILE = {"file_name": None, "file_text": None}
# The text stands in the history; of a sent row only the message's id is still needed.
_MARK_SENT = _UPDATE_ROW.values(
    state=OutboxState.SENT, external_id=bindparam("message_id"), text="", **_NO_FILE
)
_RESCHEDULE = _UPDATE_ROW.values(state=bindparam("new_state"), not_before=bindparam("due"))
_MARK_DEAD = _UPDATE_ROW.values(state=OutboxState.DEAD, error=bindparam("reason"), **_NO_FILE)
_EXTERNAL_ID = select(outbox.c.external_id, outbox.c.state, outbox.c.error).where(
    outbox.c.id == bindparam("row_id")
)
_KNOWN_IDS = (
    select(outbox.c.external_id)
    .where(outbox.c.lane == bindparam("lane_key"), outbox.c.external_id.is_not(None))
    .order_by(outbox.c.id.desc())
    .limit(_MAX_KNOWN_IDS)
)
_EXPIRE_SENDING = (
    update(outbox)
    .where(is_unsent, outbox.c.state == OutboxState.SENDING)
    .where(outbox.c.started_at <= bindparam("started_before"))
    .values(state=OutboxState.UNKNOWN, not_before=outbox.c.started_at + bindparam("settle_seconds"))
)


class SqlOutbox(Outbox):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def due_lanes(self, limit: int) -> Sequence[str]:
        values = {"now": self._clock.now(), "max_lanes": limit}
        return await self._database.read(lambda c: c.execute(_DUE_LANES, values).scalars().all())

    @override
    async def take(self, lane: str) -> OutboxRow | None:
        now = self._clock.now()

        def unit(connection: Connection) -> OutboxRow | None:
            row = connection.execute(_HEAD, {"lane_key": lane}).one_or_none()
            if row is None or row.not_before > now or row.state == OutboxState.SENDING:
                return None
            if row.state == OutboxState.PENDING:
                started = connection.execute(_START_SENDING, {"row_id": row.id, "now": now})
                if started.rowcount == 0:  # another sender was faster
                    return None
            return _to_outbox_row(row)

        return await self._database.write(unit)

    @override
    async def mark_sent(self, row: OutboxRow, external_id: str | None) -> None:
        await self._update(row, _MARK_SENT, message_id=external_id)

    @override
    async def mark_unknown(self, row: OutboxRow, not_before: float) -> None:
        await self._update(row, _RESCHEDULE, new_state=OutboxState.UNKNOWN, due=not_before)

    @override
    async def reschedule(self, row: OutboxRow, not_before: float) -> None:
        await self._update(row, _RESCHEDULE, new_state=OutboxState.PENDING, due=not_before)

    @override
    async def mark_dead(self, row: OutboxRow, reason: str) -> None:
        await self._update(row, _MARK_DEAD, reason=reason[:_MAX_ERROR_CHARS])

    @override
    async def external_id(self, row_id: int) -> str | None:
        values = {"row_id": row_id}
        row = await self._database.read(lambda c: c.execute(_EXTERNAL_ID, values).one())
        if row.state == OutboxState.DEAD:
            raise Refused(row.error)
        external_id: str | None = row.external_id
        return external_id

    @override
    async def known_ids(self, address: Address) -> Set[str]:
        values = {"lane_key": address.lane}
        ids = await self._database.read(lambda c: c.execute(_KNOWN_IDS, values).scalars().all())
        return set(ids)

    @override
    async def expire_sending(self, *, older_than_seconds: float, settle_seconds: float) -> int:
        values = {
            "started_before": self._clock.now() - older_than_seconds,
            "settle_seconds": settle_seconds,
        }
        return await self._database.write(lambda c: c.execute(_EXPIRE_SENDING, values).rowcount)

    async def _update(self, row: OutboxRow, change: Executable, **values: object) -> None:
        all_values = {"row_id": row.id, **values}

        def unit(connection: Connection) -> None:
            connection.execute(change, all_values)

        await self._database.write(unit)


def _to_outbox_row(row: Row[*tuple[object, ...]]) -> OutboxRow:
    return OutboxRow(
        id=row.id,
        turn=row.turn,
        address=Address(row.platform, row.chat, row.thread),
        part=row.part,
        op=OutboxOperation(row.op),
        text=row.text,
        reply_to=row.reply_to,
        interaction=row.interaction,
        state=OutboxState(row.state),
        attempts=row.attempts,
        external_id=row.target_id,
        not_before=row.not_before,
        file=None if row.file_name is None else Attachment(row.file_name, row.file_text),
    )
