"""Record up to which turn each conversation was searched for memories.

Turns have ascending ids. `memory_read_to` is the newest turn that was read; a change of an earlier
turn lowers it (histories.py), so that the change is read. `memory_asked_to` is the turn that was
newest when a model was last asked, even if that failed; it limits how often models are asked.
"""

import json
from collections.abc import Sequence
from operator import itemgetter

from bot.chat.memory import CheckedNote
from bot.chat.session import StoredTurn
from bot.storage import memories
from bot.storage.database import Store, run_readonly, transaction
from bot.storage.rows import decode_all, to_turn
from bot.storage.statements import SQL, Unit, to_dict
from bot.value_class import value_class


@value_class
class UnreadTurns:
    """A conversation's turns that were not searched for memories yet, oldest first."""

    turns: tuple[StoredTurn, ...]
    """The newest 100 questions and answers, and the newest 100 observed turns, in all sessions."""
    last_read_id: int
    newest_id_when_asked: int

    @property
    def exchange_count(self) -> int:
        """The number of questions answered since a model was last asked for memories."""
        exchange_count, has_question = 0, False
        for one in self.turns:
            if one.id <= self.newest_id_when_asked or one.turn.is_observed:
                continue
            if one.turn.role == "user":
                has_question = True
            elif has_question:
                exchange_count, has_question = exchange_count + 1, False
        return exchange_count


class SqlExtractions(Store):
    @run_readonly
    def load(self, conversation_key: str) -> Unit[UnreadTurns]:
        """Return the turns not searched for memories yet; empty if there is no conversation."""
        unsorted_rows = yield SQL["unread_turns"].query_alone(of=conversation_key)
        rows = sorted(unsorted_rows, key=itemgetter(0))
        turns = decode_all("turn", rows, lambda row: StoredTurn(row[0], to_turn(row[1:])))
        last_read_id, newest_id_when_asked = rows[0][-2:] if rows else (0, 0)
        return UnreadTurns(tuple(turns), last_read_id, newest_id_when_asked)

    @transaction
    def begin_extraction(self, conversation_key: str, unread_turns: UnreadTurns) -> Unit[bool]:
        """Record that a model is being asked; return False if another process already did so."""
        positions = {"known": unread_turns.newest_id_when_asked, "to": unread_turns.turns[-1].id}
        return bool((yield SQL["set_asked_to"].query_alone({"of": conversation_key, **positions})))

    @transaction
    def finish(
        self,
        conversation_key: str,
        unread_turns: UnreadTurns,
        last_read_id: int,
        notes: Sequence[CheckedNote] = (),
    ) -> Unit[None]:
        """Store notes, and record the turns up to `last_read_id` as read, in one transaction.

        If a turn was changed meanwhile, only the turns before it are recorded as read.
        """
        key_values = {"of": conversation_key}
        yield SQL["locked_session"].query(key_values)  # so that no turn can be changed meanwhile
        for note in notes:
            yield from memories.add(note.memory, [note.source], note.outdated_fact_vector)
        ids = json.dumps([one.id for one in unread_turns.turns if one.id <= last_read_id])
        new_texts = to_dict((yield SQL["texts_of_active_turns"].query({**key_values, "rows": ids})))
        for one in unread_turns.turns:
            if new_texts.get(one.id, one.turn.text) != one.turn.text:
                last_read_id = min(last_read_id, one.id - 1)
        yield SQL["set_read_to"].query(
            {**key_values, "known": unread_turns.last_read_id, "to": last_read_id}
        )
