"""Summaries of conversations in SQL, each with the number of turns that it covers.

Before each answer a summary is checked against that number, which a removed turn changes; whoever
changes a turn deletes the summaries that cover it (units/changes.py). Before a new summary is
written, it is checked against the full text of the turns.
"""

from dataclasses import replace

from sqlalchemy import Connection, bindparam, func, select

from bot.chat.session import SessionTurns, StoredTurn, Summary
from bot.chat.storable import make_storable
from bot.storage.database import Database
from bot.storage.rows import decode_all
from bot.storage.tables import conversation, summary, turn, upsert
from bot.storage.turn_rows import TURN_COLUMNS, to_turn

# Statements are built once: building one costs more than running it.
_SESSION_NUMBER = select(conversation.c.session).where(
    conversation.c.key == bindparam("conversation_key")
)
_LOCK = _SESSION_NUMBER.with_for_update()
_TURNS = (
    select(*TURN_COLUMNS, turn.c.id)
    .where(
        turn.c.conversation == bindparam("conversation_key"),
        turn.c.session == bindparam("session_number"),
        turn.c.active,
    )
    .order_by(turn.c.id)
)
_SUMMARY = select(summary.c.covers_to, summary.c.fingerprint, summary.c.text).where(
    summary.c.conversation == bindparam("conversation_key"),
    summary.c.session == bindparam("session_number"),
)
_COUNT = (
    select(func.count())
    .select_from(turn)
    .where(
        turn.c.conversation == bindparam("conversation_key"),
        turn.c.session == bindparam("session_number"),
    )
    .where(turn.c.id <= bindparam("last_turn_id"), turn.c.active)
)
_CURRENT = (
    select(summary.c.covers_to, summary.c.fingerprint, summary.c.text)
    .add_columns(summary.c.turns, summary.c.session)
    .join(
        conversation,
        (conversation.c.key == summary.c.conversation)
        & (conversation.c.session == summary.c.session),
    )
    .where(summary.c.conversation == bindparam("conversation_key"))
)
_SAVE = upsert(
    summary,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["conversation", "session"],
        set_={
            "covers_to": insert.excluded.covers_to,
            "fingerprint": insert.excluded.fingerprint,
            "text": insert.excluded.text,
            "turns": insert.excluded.turns,
        },
    ),
)


class SqlSummaries:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_turns(self, conversation_key: str) -> SessionTurns:
        """Return the whole session, with its summary if the covered turns are unchanged."""
        found = await self._database.read(lambda c: _load_turns(c, conversation_key))
        return replace(found, summary=None) if found.has_stale_summary else found

    async def current(self, conversation_key: str) -> Summary | None:
        """Return the summary of the session; a cheap check, which misses edits of equal length."""

        def unit(connection: Connection) -> Summary | None:
            values: dict[str, object] = {"conversation_key": conversation_key}
            row = connection.execute(_CURRENT, values).one_or_none()
            if row is None:
                return None
            values |= {"session_number": row.session, "last_turn_id": row.covers_to}
            if connection.execute(_COUNT, values).scalar() != row.turns:
                return None
            return Summary(row.session, row.covers_to, row.fingerprint, row.text)

        return await self._database.read(unit)

    async def save(self, conversation_key: str, new: Summary) -> bool:
        """Replace the summary; return False if turns that it covers were changed since."""
        row = {
            "conversation": conversation_key,
            "session": new.session,
            "covers_to": new.covers_to,
            "fingerprint": new.fingerprint,
            "text": make_storable(new.text),
        }
        values = {
            "conversation_key": conversation_key,
            "session_number": new.session,
            "last_turn_id": new.covers_to,
        }

        def unit(connection: Connection) -> bool:
            connection.execute(_LOCK, values)  # else a turn may be changed meanwhile
            current = _load_turns(connection, conversation_key)
            if replace(current, summary=new).has_stale_summary:
                return False
            counted = {**row, "turns": connection.execute(_COUNT, values).scalar()}
            connection.execute(_SAVE[connection.dialect.name], counted)
            return True

        return await self._database.write(unit)


def _load_turns(connection: Connection, conversation_key: str) -> SessionTurns:
    values: dict[str, object] = {"conversation_key": conversation_key}
    session = connection.execute(_SESSION_NUMBER, values).scalar() or 1
    values["session_number"] = session
    rows = connection.execute(_TURNS, values)
    turns = tuple(decode_all("turn", rows, lambda row: StoredTurn(row.id, to_turn(row))))
    row = connection.execute(_SUMMARY, values).one_or_none()
    return SessionTurns(session, turns, Summary(session, *row) if row else None)
