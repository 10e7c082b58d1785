"""Notes about messages in SQL, which every process reads and a restart leaves."""

from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, delete, insert, select
from typing_extensions import override

from bot.chat.message_note import MessageNote
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
_FORGET_PERSON = _FORGET.where(message_note.c.person == bindparam("by"))


class SqlMessageNotes(MessageNotes):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def add(self, notes: Sequence[MessageNote]) -> None:
        now = self._clock.now()
        rows = [
            {"key": one.key, "at": now, "content": one.content, "person": one.person}
            for one in notes
        ]
        await self._database.write(lambda c: c.execute(insert(message_note), rows).rowcount)

    @override
    async def newest(self, key: str, limit: int) -> Sequence[str]:
        asked: Mapping[str, object] = {"of": key, "most": limit}
        found = await self._database.read(lambda c: c.execute(_NEWEST, asked).scalars().all())
        return found[::-1]

    @override
    async def forget(self, key: str, person_id: str | None = None) -> None:
        statement = _FORGET if person_id is None else _FORGET_PERSON
        asked = {"of": key} if person_id is None else {"of": key, "by": person_id}
        await self._database.write(lambda c: c.execute(statement, asked).rowcount)
