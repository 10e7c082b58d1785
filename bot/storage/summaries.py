"""Summaries of conversations in SQL, each with the number of turns that it covers.

Before each answer a summary is checked against that number, which a removed turn changes; changing
a turn deletes the summaries that cover it (histories.py). Before a new summary is
written, it is checked against the full text of the turns.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import make_storable
from bot.chat.session import SessionTurns, StoredTurn, Summary
from bot.storage.database import Database, reading, transaction
from bot.storage.rows import TURN_COLUMNS, decode, decode_all, to_turn
from bot.storage.statements import Statement, Unit

_SESSION_NUMBER = "SELECT session FROM conversation WHERE key = :of"
_SESSION = Statement(_SESSION_NUMBER)
_LOCK = Statement(f"{_SESSION_NUMBER} FOR UPDATE")
_HERE = "WHERE conversation = :of AND session = :in_session"
_TURNS = Statement(f"""
SELECT id, {", ".join(TURN_COLUMNS)} FROM turn {_HERE} AND active ORDER BY id
""")
_COUNT = f"SELECT count(*) FROM turn {_HERE} AND id <= :covers_to AND active"
_SUMMARY = Statement(f"SELECT session, covers_to, fingerprint, text FROM summary {_HERE}")
_CURRENT = Statement(f"""
SELECT session, covers_to, fingerprint, text FROM summary
WHERE conversation = :of AND session = ({_SESSION_NUMBER}) AND turns = (
    SELECT count(*) FROM turn
    WHERE turn.conversation = summary.conversation AND turn.session = summary.session
        AND turn.id <= summary.covers_to AND turn.active
)
""")
_SAVE = Statement(f"""
INSERT INTO summary (conversation, session, covers_to, fingerprint, text, turns)
VALUES (:of, :in_session, :covers_to, :fingerprint, :text, ({_COUNT}))
ON CONFLICT (conversation, session) DO UPDATE SET covers_to = excluded.covers_to,
    fingerprint = excluded.fingerprint, text = excluded.text, turns = excluded.turns
""")


class SqlSummaries:
    def __init__(self, database: Database) -> None:
        self._database = database

    @reading
    def load_turns(self, conversation_key: str) -> Unit[SessionTurns]:
        """Return the whole session, with its summary if the covered turns are unchanged."""
        found = yield from _load_turns(conversation_key)
        return replace(found, summary=None) if found.has_stale_summary else found

    @reading
    def current(self, conversation_key: str) -> Unit[Summary | None]:
        """Return the summary of the session; a cheap check, which misses edits of equal length."""
        rows = yield _CURRENT.query_alone({"of": conversation_key})
        return decode(_to_summary, rows[0]) if rows else None

    @transaction
    def save(self, conversation_key: str, new: Summary) -> Unit[bool]:
        """Replace the summary; return False if turns that it covers were changed since."""
        yield _LOCK.query({"of": conversation_key})  # else a turn may be changed meanwhile
        current = yield from _load_turns(conversation_key)
        if replace(current, summary=new).has_stale_summary:
            return False
        covered = {"in_session": new.session, "covers_to": new.covers_to}
        text = {"fingerprint": new.fingerprint, "text": make_storable(new.text)}
        yield _SAVE.query({"of": conversation_key, **covered, **text})
        return True


def _load_turns(conversation_key: str) -> Unit[SessionTurns]:
    of = {"of": conversation_key}
    rows = yield _SESSION.query(of)
    session = rows[0][0] if rows else 1
    rows = yield _TURNS.query({**of, "in_session": session})
    turns = decode_all("turn", rows, lambda row: StoredTurn(row[0], to_turn(row[1:])))
    rows = yield _SUMMARY.query({**of, "in_session": session})
    summary = decode(_to_summary, rows[0]) if rows else None
    return SessionTurns(session, tuple(turns), summary)


def _to_summary(row: Sequence[Any]) -> Summary:
    return Summary(*row)
