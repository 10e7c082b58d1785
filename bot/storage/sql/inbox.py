"""Messages from people that are not answered yet."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from typing_extensions import override

from bot.chat.incoming import Address, Incoming
from bot.ports import Clock, Inbox
from bot.storage.sql.database import Database
from bot.storage.sql.tables import cursor, inbox, is_unanswered
from bot.storage.units import conversations as units
from bot.storage.units.events import decode_event, encode_event, event_kind


class SqlInbox(Inbox):
    """Stores messages, makes their conversations ready and advances cursors, all in one unit."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        now = self._clock.now()
        rows = [
            {
                "platform": message.address.platform,
                "bot_id": message.address.bot_id,
                "external_key": message.external_key,
                "conversation": message.address.conversation,
                "kind": event_kind(message),
                "payload": encode_event(message),
                "received_at": now,
            }
            for message in messages
        ]
        await self._database.run(lambda: units.receive(rows, cursors, now, self._database.dialect))

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        query = select(cursor.c.name, cursor.c.value).where(
            cursor.c.name.startswith(prefix, autoescape=True)
        )
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row.name: row.value for row in rows}

    @override
    async def find_unanswered(self, address: Address, external_key: str) -> Incoming | None:
        query = select(inbox.c.kind, inbox.c.payload).where(
            inbox.c.platform == address.platform,
            inbox.c.bot_id == address.bot_id,
            inbox.c.external_key == external_key,
            inbox.c.payload.is_not(None),
        )
        row = await self._database.read(lambda c: c.execute(query).first())
        return decode_event(row.kind, row.payload) if row is not None else None

    @override
    async def waiting(self, conversations: Collection[str], limit: int) -> Sequence[Incoming]:
        query = (
            select(inbox.c.kind, inbox.c.payload)
            .where(is_unanswered, inbox.c.conversation.in_(conversations))
            .order_by(inbox.c.id.desc())
            .limit(limit)
        )
        rows = await self._database.read(lambda c: c.execute(query).all())
        return [decode_event(row.kind, row.payload) for row in rows if row.payload is not None]
