"""Sessions, people and turns of a conversation in SQL, for people to look at."""

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select
from typing_extensions import override

from bot.chat.console.operation import KnownSession
from bot.chat.incoming import Person
from bot.chat.session import Turn
from bot.ports import ChannelHistories
from bot.storage.decoding import decode_all
from bot.storage.sql.database import Database
from bot.storage.sql.tables import turn
from bot.storage.units.turn_rows import TURN_COLUMNS, to_turn

_IS_HERE = turn.c.conversation == bindparam("of_conversation")
_SESSIONS = (
    select(turn.c.session, func.count(), func.min(turn.c.at), func.max(turn.c.at))
    .where(_IS_HERE, turn.c.active)
    .group_by(turn.c.session)
    .order_by(turn.c.session.desc())
    .limit(bindparam("most"))
)
_NEWEST_OF_PEOPLE = (
    select(func.max(turn.c.id))
    .where(_IS_HERE, turn.c.speaker_id.is_not(None))
    .group_by(turn.c.speaker_id)
)
_PEOPLE = (
    select(turn.c.speaker_id, turn.c.speaker_name)
    .where(turn.c.id.in_(_NEWEST_OF_PEOPLE))
    .order_by(turn.c.id.desc())
    .limit(bindparam("most"))
)
_TURNS = select(*TURN_COLUMNS, turn.c.session).where(_IS_HERE, turn.c.active).order_by(turn.c.id)


class SqlChannelHistories(ChannelHistories):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def sessions(self, conversation: str, limit: int) -> Sequence[KnownSession]:
        asked = {"of_conversation": conversation, "most": limit}
        rows = await self._database.read(lambda c: c.execute(_SESSIONS, asked).all())
        return [KnownSession(*row) for row in rows]

    @override
    async def people(self, conversation: str, limit: int) -> Sequence[Person]:
        asked = {"of_conversation": conversation, "most": limit}
        rows = await self._database.read(lambda c: c.execute(_PEOPLE, asked).all())
        return [Person(row.speaker_id, row.speaker_name) for row in rows]

    @override
    async def turns(self, conversation: str) -> Sequence[tuple[int, Turn]]:
        asked = {"of_conversation": conversation}
        rows = await self._database.read(lambda c: c.execute(_TURNS, asked).all())
        return decode_all("turn", rows, lambda row: (row.session, to_turn(row)))
