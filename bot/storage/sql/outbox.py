"""What is to be said, strictly in order within a lane."""

from collections.abc import Sequence, Set

from sqlalchemy import Connection, Executable, Row, and_, bindparam, func, select, update
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, OutboxOperation, OutboxRow, OutboxState
from bot.errors import Refused
from bot.ports import Clock, Outbox
from bot.storage.sql.database import Database
from bot.storage.sql.tables import is_unsent, outbox

_IDS_REMEMBERED = 1000  # of a chat: more messages of ours than a probe ever looks back over

# Statements are made once: making one costs more than running it.
_HEADS = select(func.min(outbox.c.id)).where(is_unsent).group_by(outbox.c.lane).scalar_subquery()
_DUE = (
    select(outbox.c.lane)
    .where(outbox.c.id.in_(_HEADS), outbox.c.not_before <= bindparam("now"))
    .where(outbox.c.state != OutboxState.SENDING)
    .order_by(outbox.c.id)
    .limit(bindparam("most"))
)
_opened = outbox.alias("opened")  # the message that an edit or a deletion is about
_HEAD = (
    select(outbox, _opened.c.external_id.label("target"))
    .outerjoin(
        _opened,
        and_(
            _opened.c.turn == outbox.c.turn,
            _opened.c.part == outbox.c.part,
            _opened.c.op == OutboxOperation.SEND,
        ),
    )
    .where(is_unsent, outbox.c.lane == bindparam("of"))
    .order_by(outbox.c.id)
    .limit(1)
)
_THIS = update(outbox).where(outbox.c.id == bindparam("row"))
_BEGIN = _THIS.where(outbox.c.state == OutboxState.PENDING).values(
    state=OutboxState.SENDING, started_at=bindparam("now"), attempts=outbox.c.attempts + 1
)
_NO_FILE = {"file_name": None, "file_text": None}
# What was said stands in the history; here only its id is still needed.
_SENT = _THIS.values(state=OutboxState.SENT, external_id=bindparam("id_there"), text="", **_NO_FILE)
_LATER = _THIS.values(state=bindparam("now_is"), not_before=bindparam("due"))
_DEAD = _THIS.values(state=OutboxState.DEAD, error=bindparam("why"), **_NO_FILE)
_EXTERNAL_ID = select(outbox.c.external_id, outbox.c.state, outbox.c.error).where(
    outbox.c.id == bindparam("row")
)
_KNOWN_IDS = (
    select(outbox.c.external_id)
    .where(outbox.c.lane == bindparam("of"), outbox.c.external_id.is_not(None))
    .order_by(outbox.c.id.desc())
    .limit(_IDS_REMEMBERED)
)
_GIVE_UP = (
    update(outbox)
    .where(is_unsent, outbox.c.state == OutboxState.SENDING)
    .where(outbox.c.started_at <= bindparam("long_ago"))
    .values(state=OutboxState.UNKNOWN, not_before=outbox.c.started_at + bindparam("settle_seconds"))
)


class SqlOutbox(Outbox):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def due_lanes(self, limit: int) -> Sequence[str]:
        asked = {"now": self._clock.now(), "most": limit}
        return await self._database.read(lambda c: c.execute(_DUE, asked).scalars().all())

    @override
    async def take(self, lane: str) -> OutboxRow | None:
        now = self._clock.now()

        def unit(connection: Connection) -> OutboxRow | None:
            row = connection.execute(_HEAD, {"of": lane}).one_or_none()
            if row is None or row.not_before > now or row.state == OutboxState.SENDING:
                return None
            if row.state == OutboxState.PENDING:
                begun = connection.execute(_BEGIN, {"row": row.id, "now": now})
                if begun.rowcount == 0:  # another sender was faster
                    return None
            return _to_row(row)

        return await self._database.write(unit)

    @override
    async def mark_sent(self, row: OutboxRow, external_id: str | None) -> None:
        await self._set(row, _SENT, id_there=external_id)

    @override
    async def mark_unknown(self, row: OutboxRow, not_before: float) -> None:
        await self._set(row, _LATER, now_is=OutboxState.UNKNOWN, due=not_before)

    @override
    async def reschedule(self, row: OutboxRow, not_before: float) -> None:
        await self._set(row, _LATER, now_is=OutboxState.PENDING, due=not_before)

    @override
    async def mark_dead(self, row: OutboxRow, why: str) -> None:
        await self._set(row, _DEAD, why=why[:500])

    @override
    async def external_id(self, row_id: int) -> str | None:
        asked = {"row": row_id}
        row = await self._database.read(lambda c: c.execute(_EXTERNAL_ID, asked).one())
        if row.state == OutboxState.DEAD:
            raise Refused(row.error)
        external_id: str | None = row.external_id
        return external_id

    @override
    async def known_ids(self, address: Address) -> Set[str]:
        asked = {"of": address.lane}
        return set(
            await self._database.read(lambda c: c.execute(_KNOWN_IDS, asked).scalars().all())
        )

    @override
    async def expire_sending(self, *, older_than_seconds: float, settle_seconds: float) -> int:
        told = {
            "long_ago": self._clock.now() - older_than_seconds,
            "settle_seconds": settle_seconds,
        }
        return await self._database.write(lambda c: c.execute(_GIVE_UP, told).rowcount)

    async def _set(self, row: OutboxRow, change: Executable, **values: object) -> None:
        told = {"row": row.id, **values}

        def unit(connection: Connection) -> None:
            connection.execute(change, told)

        await self._database.write(unit)


def _to_row(row: Row[*tuple[object, ...]]) -> OutboxRow:
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
        external_id=row.target,
        not_before=row.not_before,
        file=None if row.file_name is None else Attachment(row.file_name, row.file_text),
    )
