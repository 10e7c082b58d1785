"""Summaries of conversations in SQL, with the number of turns that each covers.

Before each answer, a summary's number of turns is compared with the history, to detect removed
turns. When a turn is changed, the summaries that cover it are deleted. A new summary is stored only
if the full texts of its turns are still the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import to_storable_text
from bot.chat.session import SessionTurns, StoredTurn, Summary
from bot.storage.database import Store, run_readonly, transaction
from bot.storage.rows import decode, decode_all, to_turn
from bot.storage.statements import SQL, Unit


class SqlSummaries(Store):
    @run_readonly
    def load_whole_session(self, conversation_key: str) -> Unit[SessionTurns]:
        """Return the whole session, with its summary if the summary is still valid."""
        session = yield from _load_whole_session(conversation_key)
        return replace(session, summary=None) if session.has_stale_summary else session

    @run_readonly
    def current(self, conversation_key: str) -> Unit[Summary | None]:
        """Return the session's summary, unless the number of the turns it covers has changed."""
        rows = yield SQL["current_summary"].query_alone(of=conversation_key)
        return decode(_to_summary, rows[0]) if rows else None

    @run_readonly
    def load_turns_since(
        self, conversation_key: str, person: str, since: float | None
    ) -> Unit[tuple[float | None, Sequence[StoredTurn]]]:
        """Return the start time and the newest 400 turns of all sessions since then.

        Times are Unix seconds. If `since` is None, the start is the time of the person's last turn,
        or None if the person has written nothing here.
        """
        values, session, own_turn_id = {"of": conversation_key}, 0, 0
        if since is None:
            own_turn_rows = yield SQL["newest_own_turn"].query({**values, "person": person})
            if not own_turn_rows:
                return None, ()
            [(session, own_turn_id, since)] = own_turn_rows
        own_turn_values = {"in_session": session, "last_own": own_turn_id}
        rows = yield SQL["newest_turns_after"].query({**values, **own_turn_values})
        turns = decode_all("turn", rows, lambda row: StoredTurn(row[0], to_turn(row[1:])))
        return since, [one for one in reversed(turns) if one.turn.at.timestamp() >= since]

    @transaction
    def save(self, conversation_key: str, summary: Summary) -> Unit[bool]:
        """Replace the summary; return False if the turns that it covers have changed."""
        # Locked, so that no turn can be changed meanwhile.
        yield SQL["locked_session"].query(of=conversation_key)
        current = yield from _load_whole_session(conversation_key)
        if replace(current, summary=summary).has_stale_summary:
            return False
        covered_range = {"in_session": summary.session_number, "covers_to": summary.last_turn_id}
        text_values = {"fingerprint": summary.turns_hash, "text": to_storable_text(summary.text)}
        yield SQL["save_summary"].query({"of": conversation_key, **covered_range, **text_values})
        return True


def _load_whole_session(conversation_key: str) -> Unit[SessionTurns]:
    values = {"of": conversation_key}
    rows = yield SQL["session"].query(values)
    session = rows[0][0] if rows else 1
    rows = yield SQL["turns_of_session"].query({**values, "in_session": session})
    turns = decode_all("turn", rows, lambda row: StoredTurn(row[0], to_turn(row[1:])))
    rows = yield SQL["summary"].query({**values, "in_session": session})
    summary = decode(_to_summary, rows[0]) if rows else None
    return SessionTurns(session, tuple(turns), summary)


def _to_summary(row: Sequence[Any]) -> Summary:
    return Summary(*row)
