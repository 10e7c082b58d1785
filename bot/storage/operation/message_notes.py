"""Notes about messages in SQL, which every process reads and a restart leaves."""

from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, delete, insert, select
from typing_extensions import override

from bot.ports import Clock, MessageNotes
from bot.storage.sql.database import Database
from bot.storage.sql.tables import message_note

_NEWEST = (
    select(message_note.c.content)
    .where(message_note.c.key == bindparam("of"))
    .order_by(message_note.c.id.desc())
    .limit(bindparam("most"))
)
_FORGET = delete(message_note).where(message_note.c.key == bindparam("of"))


class SqlMessageNotes(MessageNotes):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def add(self, notes: Sequence[tuple[str, str]]) -> None:
        now = self._clock.now()
        rows = [{"key": key, "at": now, "content": content} for key, content in notes]
        await self._database.write(lambda c: c.execute(insert(message_note), rows).rowcount)

    @override
    async def newest(self, key: str, limit: int) -> Sequence[str]:
        asked: Mapping[str, object] = {"of": key, "most": limit}
        found = await self._database.read(lambda c: c.execute(_NEWEST, asked).scalars().all())
        return found[::-1]

    @override
    async def forget(self, key: str) -> None:
        await self._database.write(lambda c: c.execute(_FORGET, {"of": key}).rowcount)
