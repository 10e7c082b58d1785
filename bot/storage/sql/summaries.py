"""Summaries of conversations, each with what it was made of.

Whether a summary still holds is looked at before each answer by the number and the length of the
turns under it, and by every letter of them whenever summaries are made.
"""

from sqlalchemy import Connection, bindparam, func, select
from typing_extensions import override

from bot.chat.session import SessionTurns, StoredTurn, Summary
from bot.chat.storable import make_storable
from bot.ports import Summaries
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, summary, turn
from bot.storage.sql.turns import COLUMNS, to_turn
from bot.storage.sql.upserts import upsert

# Statements are made once: making one costs more than running it.
_SESSION = select(conversation.c.session).where(conversation.c.key == bindparam("held"))
_TURNS = (
    select(*COLUMNS, turn.c.id)
    .where(turn.c.conversation == bindparam("held"), turn.c.session == bindparam("of"))
    .order_by(turn.c.id)
)
_SUMMARY = select(summary.c.covers_to, summary.c.fingerprint, summary.c.text).where(
    summary.c.conversation == bindparam("held"), summary.c.session == bindparam("of")
)
_MEASURE = (
    select(func.count(turn.c.id), func.coalesce(func.sum(func.length(turn.c.text)), 0))
    .where(turn.c.conversation == bindparam("held"), turn.c.session == bindparam("of"))
    .where(turn.c.id <= bindparam("last"))
)
_CURRENT = (
    select(summary.c.covers_to, summary.c.fingerprint, summary.c.text)
    .add_columns(summary.c.turns, summary.c.chars, summary.c.session)
    .join(
        conversation,
        (conversation.c.key == summary.c.conversation)
        & (conversation.c.session == summary.c.session),
    )
    .where(summary.c.conversation == bindparam("held"))
)
_KEEP = upsert(
    summary,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["conversation", "session"],
        set_={
            "covers_to": insert.excluded.covers_to,
            "fingerprint": insert.excluded.fingerprint,
            "text": insert.excluded.text,
            "turns": insert.excluded.turns,
            "chars": insert.excluded.chars,
        },
    ),
)


class SqlSummaries(Summaries):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def load_turns(self, conversation_key: str) -> SessionTurns:
        found = await self._database.read(lambda c: _sources(c, conversation_key))
        return found if found.hold else SessionTurns(found.session, found.turns, None)

    @override
    async def current(self, conversation_key: str) -> Summary | None:
        def unit(connection: Connection) -> Summary | None:
            held = {"held": conversation_key}
            row = connection.execute(_CURRENT, held).one_or_none()
            if row is None:
                return None
            asked = {**held, "of": row.session, "last": row.covers_to}
            if tuple(connection.execute(_MEASURE, asked).one()) != (row.turns, row.chars):
                return None
            return Summary(row.session, row.covers_to, row.fingerprint, row.text)

        return await self._database.read(unit)

    @override
    async def save(self, conversation_key: str, made: Summary) -> bool:
        row = {
            "conversation": conversation_key,
            "session": made.session,
            "covers_to": made.covers_to,
            "fingerprint": made.fingerprint,
            "text": make_storable(made.text),
        }
        asked = {"held": conversation_key, "of": made.session, "last": made.covers_to}

        def unit(connection: Connection) -> bool:
            now = _sources(connection, conversation_key)
            if not SessionTurns(now.session, now.turns, made).hold:
                return False
            turns, chars = connection.execute(_MEASURE, asked).one()
            measured = {**row, "turns": turns, "chars": chars}
            connection.execute(_KEEP[connection.dialect.name], measured)
            return True

        return await self._database.write(unit)


def _sources(connection: Connection, conversation_key: str) -> SessionTurns:
    held = {"held": conversation_key}
    session = connection.execute(_SESSION, held).scalar() or 1
    asked = {**held, "of": session}
    turns = tuple(StoredTurn(row.id, to_turn(row)) for row in connection.execute(_TURNS, asked))
    row = connection.execute(_SUMMARY, asked).one_or_none()
    return SessionTurns(session, turns, Summary(session, *row) if row else None)
