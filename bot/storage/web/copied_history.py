"""Copy what was said in a conversation, so that it can be tried out in a web channel."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.engine import Connection
from typing_extensions import override

from bot.chat.playground.web_channel import WEB_PLATFORM
from bot.chat.session import Claim, Turn
from bot.ports import Conversations, HistoryCopies
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, turn

_MAX_TURNS = 400
_NEWEST = func.max(turn.c.id)
_RECENT = (
    select(turn.c.conversation)
    .group_by(turn.c.conversation)
    .order_by(_NEWEST.desc())
    .limit(bindparam("most"))
)
_KNOWN = select(conversation.c.key).where(conversation.c.key == bindparam("of"))


class SqlHistoryCopies(HistoryCopies):
    def __init__(self, database: Database, conversations: Conversations) -> None:
        self._database = database
        self._conversations = conversations

    @override
    async def recent(self, limit: int) -> Sequence[str]:
        rows = await self._database.read(lambda c: c.execute(_RECENT, {"most": limit}).all())
        return [row.conversation for row in rows]

    @override
    async def copy(self, source: str, target: str) -> Sequence[Turn]:
        session = await self._conversations.load_session(Claim(source, 0, ""), _MAX_TURNS)
        turns = [replace(one, message_id=f"copy-{at}") for at, one in enumerate(session.turns)]

        def unit(connection: Connection) -> bool:
            if connection.execute(_KNOWN, {"of": target}).scalar() is not None:
                return False
            connection.execute(insert(conversation), {"key": target, "platform": WEB_PLATFORM})
            parent: int | None = None
            for one in turns:
                added = insert(turn).values(_to_row(one, target, parent)).returning(turn.c.id)
                parent = connection.execute(added).scalar_one()
            return True

        return turns if await self._database.write(unit) else ()


def _to_row(one: Turn, target: str, parent: int | None) -> dict[str, object]:
    is_person = one.speaker is not None
    return {
        "conversation": target,
        "session": 1,
        "role": one.role,
        "speaker_id": one.speaker.id if one.speaker else None,
        "speaker_name": one.speaker.name if one.speaker else None,
        "text": one.text,
        "at": one.at.timestamp(),
        "preset": one.preset,
        "preset_version": one.preset_version,
        "parent": parent,
        "message_id": one.message_id if is_person else None,
        "observed": one.observed,
    }
