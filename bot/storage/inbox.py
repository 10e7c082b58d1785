"""Everything heard and not yet answered."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import Connection, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.schema import Table
from typing_extensions import override

from bot.chat.incoming import Incoming
from bot.ports import Clock, Inbox
from bot.storage.database import Database
from bot.storage.tables import conversation, cursor, inbox

_decode = msgspec.json.Decoder(Incoming).decode
_encode = msgspec.json.Encoder().encode


def insert(connection: Connection, table: Table) -> SqliteInsert | PostgresInsert:
    """Give an INSERT that knows ON CONFLICT, which both databases spell alike."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def load(payload: bytes) -> Incoming:
    return _decode(payload)


class SqlInbox(Inbox):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def hear(self, heard: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
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
                connection.execute(insert(connection, inbox).on_conflict_do_nothing(), rows)
            if positions:
                upsert = insert(connection, cursor)
                upsert = upsert.on_conflict_do_update(
                    index_elements=["name"], set_={"value": upsert.excluded.value}
                )
                connection.execute(upsert, positions)

        await self._database.write(unit)

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        query = select(cursor.c.name, cursor.c.value).where(
            cursor.c.name.startswith(prefix, autoescape=True)
        )
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row.name: row.value for row in rows}

    @override
    async def waiting(self, limit: int, platforms: Collection[str]) -> Sequence[str]:
        held = conversation.c.lease_until > self._clock.now()
        query = (
            select(inbox.c.conversation)
            .outerjoin(conversation, conversation.c.key == inbox.c.conversation)
            .where(inbox.c.state == "new", ~func.coalesce(held, False))
            .where(inbox.c.platform.in_(platforms))
            .group_by(inbox.c.conversation)
            .order_by(func.min(inbox.c.id))
            .limit(limit)
        )
        return await self._database.read(lambda c: c.execute(query).scalars().all())
