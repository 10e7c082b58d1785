"""The inbox in SQL: received messages until they are answered, and the platforms' cursors."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import Connection, bindparam, func, select
from typing_extensions import override

from bot.chat.incoming import Incoming
from bot.ports import Clock, Inbox
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, cursor, inbox, is_unanswered, upsert

decode = msgspec.json.Decoder(Incoming).decode
_encode = msgspec.json.Encoder().encode

_INSERT = upsert(inbox, lambda insert: insert.on_conflict_do_nothing())
_SET_CURSORS = upsert(
    cursor,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["name"], set_={"value": insert.excluded.value}
    ),
)
_IS_LEASED = conversation.c.lease_until > bindparam("now")
_PENDING = (
    select(inbox.c.conversation)
    .outerjoin(conversation, conversation.c.key == inbox.c.conversation)
    .where(is_unanswered, ~func.coalesce(_IS_LEASED, False))
    .group_by(inbox.c.conversation)
    # A conversation is on one platform. As a condition of the rows, SQLite would choose the index
    # of platforms, which holds every message ever received.
    .having(func.min(inbox.c.platform).in_(bindparam("platforms", expanding=True)))
    .order_by(func.min(inbox.c.id))
    .limit(bindparam("max_conversations"))
)


class SqlInbox(Inbox):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        now = self._clock.now()
        rows = [
            {
                "platform": one.address.platform,
                "external_key": one.external_key,
                "conversation": one.address.conversation,
                "payload": _encode(one),
                "received_at": now,
            }
            for one in messages
        ]
        cursor_rows = [{"name": name, "value": value} for name, value in cursors.items()]

        def unit(connection: Connection) -> None:
            if rows:
                connection.execute(_INSERT[connection.dialect.name], rows)
            if cursor_rows:
                connection.execute(_SET_CURSORS[connection.dialect.name], cursor_rows)

        await self._database.write(unit)

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        query = select(cursor.c.name, cursor.c.value).where(
            cursor.c.name.startswith(prefix, autoescape=True)
        )
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row.name: row.value for row in rows}

    @override
    async def pending_conversations(self, limit: int, platforms: Collection[str]) -> Sequence[str]:
        values = {
            "now": self._clock.now(),
            "max_conversations": limit,
            "platforms": list(platforms),
        }
        return await self._database.read(lambda c: c.execute(_PENDING, values).scalars().all())
