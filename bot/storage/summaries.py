"""Summaries of conversations in SQL, with the number of turns that each covers.

Before each answer, a summary is checked against that number, which changes when a turn is removed;
changing a turn deletes the summaries that cover it (histories.py). A new summary is checked against
the full texts of its turns before it is stored.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import make_storable
from bot.chat.session import SessionTurns, StoredTurn, Summary
from bot.storage.database import Store, reading, transaction
from bot.storage.rows import decode, decode_all, to_turn
from bot.storage.statements import SQL, Unit


class SqlSummaries(Store):
    @reading
    def load_turns(self, conversation_key: str) -> Unit[SessionTurns]:
        """Return the whole session, with its summary if that is still valid."""
        found = yield from _load_turns(conversation_key)
        return replace(found, summary=None) if found.has_stale_summary else found

    @reading
    def current(self, conversation_key: str) -> Unit[Summary | None]:
        """Return the session's summary, after a cheap check that misses edits of equal length."""
        rows = yield SQL["current_summary"].query_alone(of=conversation_key)
        return decode(_to_summary, rows[0]) if rows else None

    @transaction
    def save(self, conversation_key: str, new: Summary) -> Unit[bool]:
        """Replace the summary; return False if the turns that it covers have changed."""
        yield SQL["locked_session"].query(
            of=conversation_key
        )  # else a turn may be changed meanwhile
        current = yield from _load_turns(conversation_key)
        if replace(current, summary=new).has_stale_summary:
            return False
        covered = {"in_session": new.session, "covers_to": new.covers_to}
        text = {"fingerprint": new.fingerprint, "text": make_storable(new.text)}
        yield SQL["save_summary"].query({"of": conversation_key, **covered, **text})
        return True


def _load_turns(conversation_key: str) -> Unit[SessionTurns]:
    of = {"of": conversation_key}
    rows = yield SQL["session"].query(of)
    session = rows[0][0] if rows else 1
    rows = yield SQL["turns_of_session"].query({**of, "in_session": session})
    turns = decode_all("turn", rows, lambda row: StoredTurn(row[0], to_turn(row[1:])))
    rows = yield SQL["summary"].query({**of, "in_session": session})
    summary = decode(_to_summary, rows[0]) if rows else None
    return SessionTurns(session, tuple(turns), summary)


def _to_summary(row: Sequence[Any]) -> Summary:
    return Summary(*row)
