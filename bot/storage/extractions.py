"""Record up to which turn each conversation was searched for memories.

Turns have ascending ids. `memory_read_to` is the newest turn that was read; a change of an earlier
turn lowers it (histories.py), so that the change is read. `memory_asked_to` was the newest turn
when a model was last asked, even without success; it limits how often models are asked.
"""

import json
from collections.abc import Sequence
from operator import itemgetter

from bot.chat.memory import CheckedNote
from bot.chat.session import StoredTurn
from bot.storage import memories
from bot.storage.database import Store, readonly, transaction
from bot.storage.rows import decode_all, to_turn
from bot.storage.statements import SQL, Unit, to_dict
from bot.value_class import value_class


@value_class
class UnreadTurns:
    """A conversation's turns that were not searched for memories yet, oldest first."""

    turns: tuple[StoredTurn, ...]
    """The newest 100 questions and answers, and the newest 100 observed turns, in all sessions."""
    read_up_to: int
    asked_up_to: int

    @property
    def exchanges(self) -> int:
        """The number of questions answered since a model was last asked for memories."""
        count, is_asked = 0, False
        for one in self.turns:
            if one.id <= self.asked_up_to or one.turn.observed:
                continue
            if one.turn.role == "user":
                is_asked = True
            elif is_asked:
                count, is_asked = count + 1, False
        return count


class SqlExtractions(Store):
    @readonly
    def load(self, conversation_key: str) -> Unit[UnreadTurns]:
        """Return the turns not searched for memories yet; none if the conversation is missing."""
        found = yield SQL["unread_turns"].query_alone(of=conversation_key)
        rows = sorted(found, key=itemgetter(0))
        turns = decode_all("turn", rows, lambda row: StoredTurn(row[0], to_turn(row[1:])))
        read_up_to, asked_up_to = rows[0][-2:] if rows else (0, 0)
        return UnreadTurns(tuple(turns), read_up_to, asked_up_to)

    @transaction
    def begin(self, conversation_key: str, unread: UnreadTurns) -> Unit[bool]:
        """Record that a model is being asked; return False if another process already did so."""
        moved = {"known": unread.asked_up_to, "to": unread.turns[-1].id}
        return bool((yield SQL["set_asked_to"].query_alone({"of": conversation_key, **moved})))

    @transaction
    def finish(
        self,
        conversation_key: str,
        unread: UnreadTurns,
        read_up_to: int,
        notes: Sequence[CheckedNote] = (),
    ) -> Unit[None]:
        """Store notes, and record the turns up to `read_up_to` as read, in one transaction.

        If a turn was changed meanwhile, only the turns before it are recorded as read.
        """
        of = {"of": conversation_key}
        yield SQL["locked_session"].query(of)  # so that no turn can be changed meanwhile
        for one in notes:
            yield from memories.add(one.memory, [one.source], one.outdated_fact_vector)
        ids = json.dumps([one.id for one in unread.turns if one.id <= read_up_to])
        now = to_dict((yield SQL["texts_of_active_turns"].query({**of, "rows": ids})))
        same = (now.get(one.id, one.turn.text) == one.turn.text for one in unread.turns)
        changed = [one.id for one, is_same in zip(unread.turns, same, strict=True) if not is_same]
        moved = {"known": unread.read_up_to, "to": min([read_up_to, *(one - 1 for one in changed)])}
        yield SQL["set_read_to"].query({**of, **moved})
