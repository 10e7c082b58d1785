"""Stored turns: find them by the platform's messages, change and delete them."""

import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from bot.chat.incoming import address_of, make_storable
from bot.chat.session import Claim, Exchange, HistoryChange, InboxMessage, Session, StoredTurn
from bot.storage.database import Database, transaction
from bot.storage.rows import (
    TURN_COLUMNS,
    decode_all,
    encode_files,
    encode_parts,
    to_turn,
    to_turn_row,
)
from bot.storage.statements import Rows, Statement, Unit

_MAX_LATER_TURNS = 400
_MAX_FAILED = 100  # the commands that people chose from menus since are among them
_COLUMNS = ", ".join(f"turn.{name}" for name in ("id", *TURN_COLUMNS))
_SELECT = f"SELECT {_COLUMNS} FROM turn WHERE turn.conversation = :of"
_IDS = "SELECT value FROM jsonb_array_elements_text(:ids)"
_SAID = Statement(f"{_SELECT} AND turn.message_id IN ({_IDS})")
PARTS = Statement(f"""
SELECT turn, part FROM outbox
WHERE lane = :of_lane AND external_id IS NOT NULL AND external_id IN ({_IDS}) AND op = 'send'
UNION ALL
SELECT turn, part FROM sent_message WHERE conversation = :of_channel AND external_id IN ({_IDS})
""")
_ANSWERS = Statement(f"{_SELECT} AND strpos(turn.sent_as, :part) > 0")
_SELECT_WITH_SESSIONS = f"""
SELECT {_COLUMNS}, turn.session, conversation.session, turn.active
FROM turn JOIN conversation ON conversation.key = turn.conversation
WHERE turn.conversation = :of
"""
_QUESTIONS = f"{_SELECT_WITH_SESSIONS} AND turn.role = 'user' AND turn.active"
_NEWEST = "ORDER BY turn.id DESC LIMIT 1"
_QUESTION = Statement(f"{_QUESTIONS} AND turn.message_id = :message {_NEWEST}")
_QUESTION_BEFORE = Statement(
    f"{_QUESTIONS} AND turn.session = :in_session AND turn.id < :answer {_NEWEST}"
)
# What was sent as a part: an answer, its versions, or the question that it says was not answered.
_SENT_AS = Statement(f"""
{_SELECT_WITH_SESSIONS} AND strpos(turn.sent_as, :part) > 0
ORDER BY turn.active DESC, turn.id DESC LIMIT 1
""")
# What was gathered with a question whose answer failed.
_GATHERED = Statement(f"""
{_SELECT} AND turn.session = :in_session AND turn.id < :question AND turn.sent_as = :sent_as
ORDER BY turn.id
""")
_VERSIONS = Statement(f"""
SELECT {_COLUMNS} FROM turn, turn AS answer
WHERE answer.id = :answer AND turn.conversation = answer.conversation
    AND turn.session = answer.session AND turn.parent IS NOT DISTINCT FROM answer.parent
    AND turn.role = 'assistant'
ORDER BY turn.at, turn.id
""")
_IN_SESSION = f"{_SELECT} AND turn.session = :in_session AND turn.active"
_BEFORE = Statement(f"{_IN_SESSION} AND turn.id < :question ORDER BY turn.id DESC LIMIT :most")
_AFTER = Statement(
    f"{_IN_SESSION} AND turn.id > :question ORDER BY turn.id LIMIT {_MAX_LATER_TURNS}"
)
_NAMES = "SELECT value FROM jsonb_array_elements_text(:names)"
_SENDS = Statement(f"""
SELECT turn, part, external_id FROM outbox
WHERE turn IN ({_NAMES}) AND op = 'send' AND state <> 'dead'
""")
_KEPT_IDS = Statement(f"SELECT turn, part, external_id FROM sent_message WHERE turn IN ({_NAMES})")
_CURRENT = "(SELECT session FROM conversation WHERE key = :of)"
# Since what was said or answered in the history; lines that were only observed do not count.
_FAILED = Statement(f"""
{_SELECT} AND turn.session = {_CURRENT} AND NOT turn.active AND turn.role = 'user'
    AND turn.sent_as IS NOT NULL AND turn.id > coalesce((
        SELECT later.id FROM turn AS later
        WHERE later.conversation = :of AND later.session = {_CURRENT}
            AND later.active AND (later.role = 'assistant' OR NOT later.observed)
        ORDER BY later.id DESC LIMIT 1
    ), 0)
ORDER BY turn.id DESC LIMIT {_MAX_FAILED}
""")
_ALL = Statement("SELECT id FROM turn WHERE conversation = :of")
_SAID_BY = Statement("SELECT id FROM turn WHERE conversation = :of AND speaker_id = :person")
_SAID_BY_US = Statement("""
SELECT id, parent FROM turn
WHERE conversation = :of AND speaker_id IS NULL AND parent IS NOT NULL
ORDER BY id
""")
_SAID_BY_OTHERS = Statement("""
SELECT id FROM turn
WHERE conversation = :of AND speaker_id IS NOT NULL AND speaker_id <> :person LIMIT 1
""")


class StoredTurns:
    """Finds turns by the messages that people see."""

    _database: Database

    @transaction
    def find_turns(self, claim: Claim, message_ids: Collection[str]) -> Unit[Sequence[StoredTurn]]:
        """Return the turns of these messages of the platform, oldest first, in all sessions.

        A person's message is one turn; an answer is found by any message that it was sent as.
        Inactive versions are found as well.
        """
        asked = {"of": claim.conversation, "ids": json.dumps(list(message_ids))}
        rows = list((yield _SAID.query(asked)))
        address = address_of(claim.conversation)
        channel = {"of_lane": address.lane, "of_channel": address.channel}
        for name, part in (yield PARTS.query({"ids": asked["ids"], **channel})):
            wanted = encode_parts((f"{name}/{part}",))
            rows += yield _ANSWERS.query({"of": claim.conversation, "part": wanted})
        by_id = {row[0]: row for row in rows}
        return _read_turns(by_id[number] for number in sorted(by_id))

    @transaction
    def load_exchange(self, claim: Claim, message_id: str, max_turns: int) -> Unit[Exchange | None]:
        """Return a person's message, its answers and up to `max_turns` earlier turns."""
        found = yield _QUESTION.query({"of": claim.conversation, "message": message_id})
        return (yield from _load_exchange(claim.conversation, found, max_turns))

    @transaction
    def load_answered(
        self, conversation_key: str, part: str, max_turns: int
    ) -> Unit[Exchange | None]:
        """Return the exchange whose answer was sent as this part.

        An exchange without answers: the part says that the answer failed, and the question is not
        in the history; before it is what was gathered with it. None: unknown, or answered since.
        """
        of = {"of": conversation_key}
        rows = yield _SENT_AS.query({**of, "part": encode_parts((part,))})
        found = decode_all("turn", rows, _with_session)
        if not found:
            return None
        [(sent, (session, current, is_active))] = found
        if sent.turn.role == "user":
            return (yield from _load_unanswered(conversation_key, sent, session, current))
        before = {**of, "in_session": session, "answer": sent.id}
        questions = (yield _QUESTION_BEFORE.query(before)) if is_active else ()
        return (yield from _load_exchange(conversation_key, questions, max_turns))

    @transaction
    def load_failed(self, claim: Claim) -> Unit[Sequence[StoredTurn]]:
        """Return the questions whose answers failed since the newest answer, newest first.

        What was gathered with a question precedes it in the history and has the same parts.
        Commands whose menus were sent are among them.
        """
        return [_to_stored(row) for row in (yield _FAILED.query({"of": claim.conversation}))]

    @transaction
    def find_said_by(self, claim: Claim, person_id: str) -> Unit[Sequence[int]]:
        """Return the ids of a person's turns in a conversation, and of the answers to them.

        If nobody else has said anything, these are all turns.
        """
        asked = {"of": claim.conversation, "person": person_id}
        if not (yield _SAID_BY_OTHERS.query(asked)):
            return [row[0] for row in (yield _ALL.query(asked))]
        # An answer follows the question, or another answer to it; versions follow the same turn.
        gone = {row[0] for row in (yield _SAID_BY.query(asked))}
        if gone:
            for id_, parent in (yield _SAID_BY_US.query(asked)):
                if parent in gone:
                    gone.add(id_)
        return sorted(gone)

    @transaction
    def opened_parts(self, message: InboxMessage) -> Unit[Sequence[int]]:
        """Return the numbers of a message's parts that were opened, in earlier attempts too."""
        rows = yield _SENDS.query({"names": json.dumps([message.turn])})
        return sorted(part for _, part, _ in rows)


def _load_unanswered(
    conversation: str, question: StoredTurn, session: int, current: int
) -> Unit[Exchange | None]:
    """Return a question whose answer failed; None if it was asked again, and is in the history."""
    if question.turn.message_id is not None:
        again = {"of": conversation, "message": question.turn.message_id}
        if (yield _QUESTION.query(again)):
            return None
    known = yield from find_parts(question.turn.sent_as)
    parts = tuple(name for name in question.turn.sent_as if name in known)
    sent_as = encode_parts(question.turn.sent_as)
    asked = {"of": conversation, "in_session": session, "question": question.id}
    rows = yield _GATHERED.query({**asked, "sent_as": sent_as})
    earlier = tuple(_to_stored(one).turn for one in rows)
    return Exchange(question, (), Session(session, earlier), session == current, parts)


def _load_exchange(conversation: str, rows: Rows, max_turns: int) -> Unit[Exchange | None]:
    found = decode_all("turn", rows, _with_session)
    if not found:
        return None
    [(question, (session, current, _))] = found
    asked = {"of": conversation, "in_session": session, "question": question.id}
    before = yield _BEFORE.query({**asked, "most": max_turns})
    later = _read_turns((yield _AFTER.query(asked)))
    answers = tuple(itertools.takewhile(lambda one: one.turn.role == "assistant", later))
    rest = later[len(answers) :]
    is_newest = session == current and all(one.turn.role == "user" for one in rest)
    names = [name for one in answers for name in one.turn.sent_as]
    known = (yield from find_parts(names)) if names else {}
    versions = []
    for one in answers:
        rows = yield _VERSIONS.query({"answer": one.id})
        versions.append(tuple(_read_turns(rows)))
    return Exchange(
        question,
        answers,
        Session(session, tuple(one.turn for one in _read_turns(reversed(before)))),
        is_newest,
        tuple(name for name in names if name in known),
        tuple(versions),
    )


def resolve_parts(names: Sequence[str]) -> Unit[list[dict[str, object]]]:
    """Return the columns by which an outbox row names the messages of these parts to change."""
    known = yield from find_parts(names)
    targets: list[dict[str, object]] = []
    for name in names:
        turn_name, _, part = name.rpartition("/")
        target = {"target_turn": turn_name, "target_part": int(part)}
        targets.append({**target, "external_id": known.get(name)})
    return targets


def find_parts(names: Sequence[str]) -> Unit[dict[str, str | None]]:
    """Return the platform's ids of parts; None of one that was not sent yet."""
    asked = {"names": json.dumps(sorted({name.rpartition("/")[0] for name in names}))}
    rows = [*(yield _KEPT_IDS.query(asked)), *(yield _SENDS.query(asked))]
    return {f"{name}/{part}": external_id for name, part, external_id in rows}


def _to_stored(row: Sequence[Any]) -> StoredTurn:
    """Read a row that starts with `id` and `TURN_COLUMNS`; further columns are ignored."""
    return StoredTurn(row[0], to_turn(row[1:]))


def _with_session(row: Sequence[Any]) -> tuple[StoredTurn, Sequence[Any]]:
    """Read a turn and the columns that follow it."""
    return _to_stored(row), row[1 + len(TURN_COLUMNS) :]


def _read_turns(rows: Iterable[Sequence[Any]]) -> list[StoredTurn]:
    return decode_all("turn", rows, _to_stored)


_SET_TEXT = Statement("UPDATE turn SET text = :text WHERE id = :row")
_SET_OBSERVED = Statement("UPDATE turn SET observed = :observed WHERE id = :row")
_SET_FILES = Statement("UPDATE turn SET files = :files WHERE id = :row")
_COPIED = """
conversation, session, role, speaker_id, speaker_name, text, at, preset, preset_version, parent,
message_id, sent_as, observed
"""
# The place of a turn keeps its id: the version that leaves it is copied to the end.
_KEEP_VERSION = Statement(f"""
INSERT INTO turn ({_COPIED}, active) SELECT {_COPIED}, false FROM turn WHERE id = :row
""")
_SET_VERSION = Statement("""
UPDATE turn SET text = :text, at = :at, preset = :preset, preset_version = :preset_version,
    sent_as = :sent_as
WHERE id = :row
""")
_IS_LISTED = "id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows))"
_SUPERSEDE = Statement(f"UPDATE turn SET active = false WHERE {_IS_LISTED}")
_FIRST = Statement(f"SELECT min(at), min(id) FROM turn WHERE {_IS_LISTED}")
_DELETE = Statement(f"DELETE FROM turn WHERE {_IS_LISTED}")
_SENT_PARTS = Statement(f"SELECT sent_as FROM turn WHERE {_IS_LISTED} AND sent_as IS NOT NULL")
# What was sent has no text any more; what never could be sent would keep it for days.
_EMPTY_UNSENT = Statement(f"""
UPDATE outbox SET text = '', file_text = NULL, error = NULL
WHERE turn IN ({_NAMES}) AND state = 'dead'
""")
# A channel is read until the first answer in its first session: what was deleted must not come
# back. So the rest of that session becomes the next one.
_MOVE_UNANSWERED = Statement("""
UPDATE turn SET session = 2
WHERE conversation = :of AND session = 1
    AND EXISTS (SELECT 1 FROM conversation WHERE key = :of AND session = 1)
    AND NOT EXISTS (
        SELECT 1 FROM turn AS question, turn AS answer
        WHERE question.conversation = :of AND question.session = 1 AND question.role = 'user'
            AND NOT question.observed AND answer.conversation = :of AND answer.session = 1
            AND answer.role = 'assistant' AND answer.id > question.id
    )
""")
_END_EMPTY_SESSION = Statement("""
UPDATE conversation SET session = session + 1
WHERE key = :of AND NOT EXISTS (
    SELECT 1 FROM turn
    WHERE turn.conversation = conversation.key AND turn.session = conversation.session
)
""")
_DELETE_SUMMARIES = Statement(
    "DELETE FROM summary WHERE conversation = :of AND covers_to >= :first"
)
_EMPTY_RECEIPTS = Statement(
    "UPDATE receipt SET content = :content WHERE conversation = :of AND at >= :since"
)
_NOTE_FORGOTTEN = Statement("INSERT INTO forgotten (conversation, at) VALUES (:of, :moment)")


def apply(conversation: str, change: HistoryChange, now: float) -> Unit[None]:
    """Change turns; summaries that cover one of them are deleted.

    Deleting a turn also deletes the content of all later receipts, whose prompts may quote it, and
    the text of its parts that could not be sent.
    """
    for turn_id, files in change.files.items():
        yield _SET_FILES.query({"row": turn_id, "files": encode_files(files)})
    touched = [*change.texts, *change.versions, *change.superseded, *change.deleted]
    touched += change.observed
    if not touched:
        return
    [(since, first)] = yield _FIRST.query(_rows(touched))
    if first is None:
        return
    yield _DELETE_SUMMARIES.query({"of": conversation, "first": first})
    for turn_id, text in change.texts.items():
        yield _SET_TEXT.query({"row": turn_id, "text": make_storable(text)})
    for turn_id, is_observed in change.observed.items():
        yield _SET_OBSERVED.query({"row": turn_id, "observed": is_observed})
    yield from _change_versions(change)
    if change.deleted:
        yield from _delete(conversation, change.deleted, since)
        yield _NOTE_FORGOTTEN.query({"of": conversation, "moment": now})


def _change_versions(change: HistoryChange) -> Unit[None]:
    for turn_id, version in change.versions.items():
        if turn_id not in change.replaced:
            yield _KEEP_VERSION.query({"row": turn_id})
        yield _SET_VERSION.query({"row": turn_id, **to_turn_row(version)})
    if change.restored:
        yield _DELETE.query(_rows(change.restored))
    if change.superseded:
        yield _SUPERSEDE.query(_rows(change.superseded))


def _delete(conversation: str, ids: Collection[int], since: float) -> Unit[None]:
    yield _EMPTY_RECEIPTS.query({"of": conversation, "since": since, "content": b""})
    sent_as = [row[0] for row in (yield _SENT_PARTS.query(_rows(ids)))]
    names = {part.rpartition("/")[0] for parts in sent_as for part in parts.split()}
    yield _EMPTY_UNSENT.query({"names": json.dumps(sorted(names))})
    yield _DELETE.query(_rows(ids))
    yield _MOVE_UNANSWERED.query({"of": conversation})
    yield _END_EMPTY_SESSION.query({"of": conversation})


def _rows(ids: Collection[int]) -> dict[str, str]:
    return {"rows": json.dumps(list(ids))}
