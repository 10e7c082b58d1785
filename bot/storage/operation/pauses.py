"""Pauses of answering, and the notices about them, in SQL."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, insert, or_, select, update
from typing_extensions import override

from bot.chat.console.operation import Pause, WaitingMessage
from bot.chat.incoming import Address, Said
from bot.chat.outgoing import MessageContent, OutboxOperation
from bot.ports import Clock, Pauses
from bot.storage.decoding import decode_all
from bot.storage.engine.statements import Unit
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, inbox, is_unanswered, pause
from bot.storage.units import lanes
from bot.storage.units.dialects import clock
from bot.storage.units.events import decode_event
from bot.storage.units.message_columns import encode_content

_KEPT_SECONDS = 86_400.0
"""How long the end of a pause still matters to messages that waited for it."""
_COLUMNS = (pause.c.id, pause.c.scope, pause.c.by, pause.c.at, pause.c.ended_at)
_RECENT = (
    select(*_COLUMNS)
    .where(or_(pause.c.ended_at.is_(None), pause.c.ended_at > bindparam("moment")))
    .order_by(pause.c.id)
)
_CURRENT = select(*_COLUMNS).where(
    pause.c.scope == bindparam("of_scope"), pause.c.ended_at.is_(None)
)
_END = (
    update(pause)
    .where(pause.c.scope == bindparam("of_scope"), pause.c.ended_at.is_(None))
    .values(ended_at=bindparam("moment"))
)


class SqlPauses(Pauses):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def recent(self) -> Sequence[Pause]:
        asked = {"moment": self._clock.now() - _KEPT_SECONDS}
        rows = await self._database.read(lambda c: c.execute(_RECENT, asked).all())
        return [Pause(*row) for row in rows]

    @override
    async def begin(self, scope: str, by: str) -> bool:
        row = {"scope": scope, "by": by, "at": self._clock.now()}

        def unit(connection: Connection) -> bool:
            if connection.execute(_CURRENT, {"of_scope": scope}).first() is not None:
                return False
            connection.execute(insert(pause), row)
            return True

        return await self._database.write(unit)

    @override
    async def end(self, scope: str) -> bool:
        asked = {"of_scope": scope, "moment": self._clock.now()}
        return bool(await self._database.write(lambda c: c.execute(_END, asked).rowcount))

    @override
    async def waiting(self, after: int, limit: int) -> Sequence[WaitingMessage]:
        asked = {"now": self._clock.now()}
        is_held = (conversation.c.lease_until > clock(self._database.dialect)).label("is_held")
        query = (
            select(inbox.c.id, inbox.c.kind, inbox.c.payload, is_held)
            .join(conversation, conversation.c.key == inbox.c.conversation)
            .where(is_unanswered, inbox.c.kind == "said", inbox.c.id > after)
            .order_by(inbox.c.id)
            .limit(limit)
        )
        rows = await self._database.read(lambda c: c.execute(query, asked).all())
        events = decode_all("inbox", rows, lambda row: (row, decode_event(row.kind, row.payload)))
        return [
            WaitingMessage(row.id, said, bool(row.is_held))
            for row, said in events
            if isinstance(said, Said)
        ]

    @override
    async def queue_notice(
        self, name: str, address: Address, text: str, reply_to: str | None
    ) -> None:
        row = {
            "turn": name,
            "part": 0,
            "op": OutboxOperation.SEND,
            "platform": address.platform,
            "bot_id": address.bot_id,
            "chat": address.chat,
            "thread": address.thread,
            "lane": address.lane,
            **encode_content(MessageContent(text)),
            "reply_to": reply_to,
            "interaction": None,
            "file_name": None,
            "file_text": None,
        }
        now = self._clock.now()

        def unit() -> Unit[None]:
            yield from lanes.queue_once(row)
            yield from lanes.make_due(row, now)

        await self._database.run(unit)
