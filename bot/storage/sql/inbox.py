"""Everything heard and not yet answered."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import Connection, bindparam, func, select
from typing_extensions import override

from bot.chat.incoming import Incoming
from bot.ports import Clock, Inbox
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, cursor, inbox, is_unanswered
from bot.storage.sql.upserts import upsert

_decode = msgspec.json.Decoder(Incoming).decode
_encode = msgspec.json.Encoder().encode


_STORE = upsert(inbox, lambda insert: insert.on_conflict_do_nothing())
_ADVANCE = upsert(
    cursor,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["name"], set_={"value": insert.excluded.value}
    ),
)
_HELD = conversation.c.lease_until > bindparam("now")
_WAITING = (
    select(inbox.c.conversation)
    .outerjoin(conversation, conversation.c.key == inbox.c.conversation)
    .where(is_unanswered, ~func.coalesce(_HELD, False))
    .group_by(inbox.c.conversation)
    # A conversation is on one platform. As a condition of the rows, SQLite would prefer the index
    # of platforms, in which everything ever heard stands.
    .having(func.min(inbox.c.platform).in_(bindparam("platforms", expanding=True)))
    .order_by(func.min(inbox.c.id))
    .limit(bindparam("most"))
)


def load(payload: bytes) -> Incoming:
    return _decode(payload)


class SqlInbox(Inbox):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def receive(self, heard: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        now = self._clock.now()
        rows = [
            {
                "platform": one.address.platform,
                "external_key": one.external_key,
                "conversation": one.address.conversation,
                "payload": _encode(one),
                "received_at": now,
            }
            for one in heard
        ]
        positions = [{"name": name, "value": value} for name, value in cursors.items()]

        def unit(connection: Connection) -> None:
            if rows:
                connection.execute(_STORE[connection.dialect.name], rows)
            if positions:
                connection.execute(_ADVANCE[connection.dialect.name], positions)

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
        asked = {"now": self._clock.now(), "most": limit, "platforms": list(platforms)}
        return await self._database.read(lambda c: c.execute(_WAITING, asked).scalars().all())
