"""Stored turns: find them by the platform's messages, change and delete them."""

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
from sqlalchemy import (
    ColumnElement,
    Integer,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    false,
    func,
    insert,
    not_,
    or_,
    select,
    union_all,
    update,
)

from bot.chat.incoming import MediaItem, Person, address_of
from bot.chat.outgoing import OutboxOperation, OutboxState
from bot.chat.prompt import Role
from bot.chat.session import Exchange, Session, StoredTurn, Turn
from bot.chat.storable import make_storable
from bot.storage.rows import decode_all
from bot.storage.statements import DialectName, Rows, Statement, Unit, bound_texts
from bot.storage.tables import conversation as conversation_table
from bot.storage.tables import (
    forgotten,
    has_external_id,
    is_dead,
    outbox,
    receipt,
    sent_message,
    summary,
    turn,
)
from bot.value_class import value_class

_MAX_LATER_TURNS = 400
_MAX_FAILED = 100  # the commands that people chose from menus since are among them
_encode_files = msgspec.json.Encoder().encode
_decode_files = msgspec.json.Decoder(tuple[MediaItem, ...]).decode
_COLUMNS = (
    *(turn.c.role, turn.c.speaker_id, turn.c.speaker_name, turn.c.text, turn.c.at),
    *(turn.c.preset, turn.c.preset_version, turn.c.message_id, turn.c.sent_as, turn.c.observed),
    turn.c.files,
)
_SAID = Statement(
    lambda dialect: select(turn.c.id, *_COLUMNS).where(
        turn.c.conversation == bindparam("of"),
        turn.c.message_id.in_(bound_texts("ids", dialect)),
    )
)
_PARTS = Statement(
    lambda dialect: union_all(
        select(outbox.c.turn, outbox.c.part).where(
            outbox.c.lane == bindparam("of_lane"),
            has_external_id,
            outbox.c.external_id.in_(bound_texts("ids", dialect)),
            outbox.c.op == OutboxOperation.SEND,
        ),
        select(sent_message.c.turn, sent_message.c.part).where(
            sent_message.c.conversation == bindparam("of_channel"),
            sent_message.c.external_id.in_(bound_texts("ids", dialect)),
        ),
    )
)


def _has_part(dialect: DialectName) -> ColumnElement[bool]:
    position = func.instr if dialect == "sqlite" else func.strpos
    return position(turn.c.sent_as, bindparam("part")) > 0


_ANSWERS = Statement(
    lambda dialect: select(turn.c.id, *_COLUMNS).where(
        turn.c.conversation == bindparam("of"), _has_part(dialect)
    )
)


_QUESTIONS = (
    select(turn.c.id, *_COLUMNS, turn.c.session, conversation_table.c.session)
    .join(conversation_table, conversation_table.c.key == turn.c.conversation)
    .where(turn.c.conversation == bindparam("of"), turn.c.role == "user", turn.c.active)
    .order_by(turn.c.id.desc())
    .limit(1)
)
_QUESTION = Statement(_QUESTIONS.where(turn.c.message_id == bindparam("message")))
_QUESTION_BEFORE = Statement(
    _QUESTIONS.where(turn.c.session == bindparam("in_session"), turn.c.id < bindparam("answer"))
)
# What was sent as a part: an answer, its versions, or the question that it says was not answered.
_SENT_AS = Statement(
    lambda dialect: (
        select(turn.c.id, *_COLUMNS, turn.c.session, conversation_table.c.session, turn.c.active)
        .join(conversation_table, conversation_table.c.key == turn.c.conversation)
        .where(turn.c.conversation == bindparam("of"), _has_part(dialect))
        .order_by(turn.c.active.desc(), turn.c.id.desc())
        .limit(1)
    )
)
# What was gathered with a question whose answer failed.
_GATHERED = Statement(
    select(turn.c.id, *_COLUMNS)
    .where(turn.c.conversation == bindparam("of"), turn.c.session == bindparam("in_session"))
    .where(turn.c.id < bindparam("question"), turn.c.sent_as == bindparam("sent_as"))
    .order_by(turn.c.id)
)
_answer = turn.alias("answer")
_VERSIONS = Statement(
    select(turn.c.id, *_COLUMNS)
    .where(
        _answer.c.id == bindparam("answer"),
        turn.c.conversation == _answer.c.conversation,
        turn.c.session == _answer.c.session,
        turn.c.parent.is_not_distinct_from(_answer.c.parent),
        turn.c.role == "assistant",
    )
    .order_by(turn.c.at, turn.c.id)
)
_IN_SESSION = and_(
    turn.c.conversation == bindparam("of"),
    turn.c.session == bindparam("in_session"),
    turn.c.active,
)
_BEFORE = Statement(
    select(turn.c.id, *_COLUMNS)
    .where(_IN_SESSION, turn.c.id < bindparam("question"))
    .order_by(turn.c.id.desc())
    .limit(bindparam("most"))
)
_AFTER = Statement(
    select(turn.c.id, *_COLUMNS)
    .where(_IN_SESSION, turn.c.id > bindparam("question"))
    .order_by(turn.c.id)
    .limit(_MAX_LATER_TURNS)
)
_SENDS = Statement(
    lambda dialect: select(outbox.c.turn, outbox.c.part, outbox.c.external_id).where(
        outbox.c.turn.in_(bound_texts("names", dialect)),
        outbox.c.op == OutboxOperation.SEND,
        outbox.c.state != OutboxState.DEAD,
    )
)
_KEPT_IDS = Statement(
    lambda dialect: select(
        sent_message.c.turn, sent_message.c.part, sent_message.c.external_id
    ).where(sent_message.c.turn.in_(bound_texts("names", dialect)))
)

_CURRENT = (
    select(conversation_table.c.session)
    .where(conversation_table.c.key == bindparam("of"))
    .scalar_subquery()
)
_later = turn.alias("later")
# Of what was said or answered in the history; lines that were only observed do not count.
_NEWEST_ANSWERED = (
    select(_later.c.id)
    .where(_later.c.conversation == bindparam("of"), _later.c.session == _CURRENT)
    .where(_later.c.active, or_(_later.c.role == "assistant", not_(_later.c.observed)))
    .order_by(_later.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_FAILED = Statement(
    select(turn.c.id, *_COLUMNS)
    .where(turn.c.conversation == bindparam("of"), turn.c.session == _CURRENT)
    .where(not_(turn.c.active), turn.c.role == "user", turn.c.sent_as.is_not(None))
    .where(turn.c.id > func.coalesce(_NEWEST_ANSWERED, 0))
    .order_by(turn.c.id.desc())
    .limit(_MAX_FAILED)
)

_HERE = turn.c.conversation == bindparam("of")
_PERSON = turn.c.speaker_id == bindparam("person")
_ALL = Statement(select(turn.c.id).where(_HERE))
_SAID_BY = Statement(select(turn.c.id).where(_HERE, _PERSON))
_SAID_BY_US = Statement(
    select(turn.c.id, turn.c.parent)
    .where(_HERE, turn.c.speaker_id.is_(None), turn.c.parent.is_not(None))
    .order_by(turn.c.id)
)
_SAID_BY_OTHERS = Statement(
    select(turn.c.id)
    .where(_HERE, turn.c.speaker_id.is_not(None), turn.c.speaker_id != bindparam("person"))
    .limit(1)
)


def load_exchange(conversation: str, message_id: str, max_turns: int) -> Unit[Exchange | None]:
    """Return a person's message with its answers and so many turns before it."""
    found = yield _QUESTION.query({"of": conversation, "message": message_id})
    return (yield from _load_exchange(conversation, found, max_turns))


def load_answered(conversation: str, part: str, max_turns: int) -> Unit[Exchange | None]:
    """Return the exchange whose answer was sent as this part.

    If the part says that the answer failed, the exchange has no answer, and its question is not in
    the history.
    """
    asked = {"of": conversation, "part": encode_parts((part,))}
    found = decode_all("turn", (yield _SENT_AS.query(asked)), _with_session)
    if not found:
        return None
    [(sent, (session, current, is_active))] = found
    if sent.turn.role == "user":
        return (yield from _load_unanswered(conversation, sent, session, current))
    before = {"of": conversation, "in_session": session, "answer": sent.id}
    questions = (yield _QUESTION_BEFORE.query(before)) if is_active else ()
    return (yield from _load_exchange(conversation, questions, max_turns))


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


def load_failed(conversation: str) -> Unit[list[StoredTurn]]:
    """Return the questions whose answers failed since the newest answer, newest first.

    What was gathered with a question precedes it in the history and has the same parts.
    """
    return list(map(_to_stored, (yield _FAILED.query({"of": conversation}))))


def _load_exchange(conversation: str, rows: Rows, max_turns: int) -> Unit[Exchange | None]:
    found = decode_all("turn", rows, _with_session)
    if not found:
        return None
    [(question, (session, current))] = found
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


def find_said_by(conversation: str, person_id: str) -> Unit[list[int]]:
    """Return the ids of what a person said, and of what the bot said right after that."""
    asked = {"of": conversation, "person": person_id}
    if not (yield _SAID_BY_OTHERS.query(asked)):
        return [row[0] for row in (yield _ALL.query(asked))]
    # An answer follows the question, or another answer to it; versions follow the same turn.
    gone = {row[0] for row in (yield _SAID_BY.query(asked))}
    if gone:
        for id_, parent in (yield _SAID_BY_US.query(asked)):
            if parent in gone:
                gone.add(id_)
    return sorted(gone)


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


def opened_parts(turn_name: str) -> Unit[list[int]]:
    """Return the numbers of the parts of a turn that were sent, or will be."""
    rows = yield _SENDS.query({"names": json.dumps([turn_name])})
    return sorted(part for _, part, _ in rows)


def find(conversation: str, message_ids: Collection[str]) -> Unit[list[StoredTurn]]:
    """Return the turns that were said in these messages, oldest first."""
    asked = {"of": conversation, "ids": json.dumps(list(message_ids))}
    rows = list((yield _SAID.query(asked)))
    address = address_of(conversation)
    channel = {"of_lane": address.lane, "of_channel": address.channel}
    for name, part in (yield _PARTS.query({"ids": asked["ids"], **channel})):
        wanted = encode_parts((f"{name}/{part}",))
        rows += yield _ANSWERS.query({"of": conversation, "part": wanted})
    by_id = {row[0]: row for row in rows}
    return _read_turns(by_id[number] for number in sorted(by_id))


def encode_parts(names: Sequence[str]) -> str | None:
    """Write the names of parts so that each stands between two line breaks."""
    return "\n" + "".join(f"{name}\n" for name in names) if names else None


def encode_files(files: Sequence[MediaItem]) -> str | None:
    """Write where files are; None: there are none."""
    storable = [replace(one, name=make_storable(one.name)) for one in files]
    return _encode_files(storable).decode() if storable else None


def decode_files(stored: str | None) -> tuple[MediaItem, ...]:
    """Read what `encode_files` wrote; nothing of what only another version of Troupe can read."""
    try:
        return _decode_files(stored) if stored else ()
    except msgspec.DecodeError:
        return ()


def _to_stored(row: Sequence[Any]) -> StoredTurn:
    """Read a row that starts with `id` and `_COLUMNS`; further columns are ignored."""
    return StoredTurn(row[0], read_turn(row[1:6], row[6 : 1 + len(_COLUMNS)]))


def read_turn(said: Sequence[Any], others: Sequence[Any]) -> Turn:
    """Make a turn of its columns; raises one of the errors that `decode` translates.

    Args:
        said: role, speaker_id, speaker_name, text, at.
        others: preset, preset_version, message_id, sent_as, observed, files.
    """
    role, speaker_id, speaker_name, text, at = said
    preset, version, message_id, sent_as, observed, files = others
    speaker = Person(speaker_id, speaker_name) if speaker_id else None
    if role not in get_args(Role) or not isinstance(text, str):
        raise TypeError(role)
    if speaker is not None and not isinstance(speaker.name, str):
        raise TypeError("speaker_name")
    return Turn(
        *(role, text, speaker, datetime.fromtimestamp(at, UTC), preset, version, message_id),
        sent_as=tuple(name for name in (sent_as or "").split("\n") if name),
        observed=bool(observed),
        files=decode_files(files),
    )


def _with_session(row: Sequence[Any]) -> tuple[StoredTurn, Sequence[Any]]:
    """Read a turn and the columns that follow it."""
    return _to_stored(row), row[1 + len(_COLUMNS) :]


def _read_turns(rows: Iterable[Sequence[Any]]) -> list[StoredTurn]:
    return decode_all("turn", rows, _to_stored)


_THIS = turn.c.id == bindparam("row")
_SET_TEXT = Statement(update(turn).where(_THIS).values(text=bindparam("reads")))
_SET_OBSERVED = Statement(update(turn).where(_THIS).values(observed=bindparam("is_observed")))
_SET_FILES = Statement(update(turn).where(_THIS).values(files=bindparam("new_files")))
_KEPT = ("conversation", "session", "role", "speaker_id", "speaker_name", "text", "at", "preset")
_COPIED = (*_KEPT, "preset_version", "parent", "message_id", "sent_as", "observed")
# The place of a turn keeps its id: the version that leaves it is copied to the end.
_KEEP_VERSION = Statement(
    insert(turn).from_select(
        [*_COPIED, "active"], select(*(turn.c[name] for name in _COPIED), false()).where(_THIS)
    )
)
_VERSION = ("text", "at", "preset", "preset_version", "sent_as")
_SET_VERSION = Statement(
    update(turn).where(_THIS).values({name: bindparam(f"new_{name}") for name in _VERSION})
)


def _is_listed(dialect: DialectName) -> ColumnElement[bool]:
    ids = bound_texts("rows", dialect).subquery()
    return turn.c.id.in_(select(cast(ids.c[0], Integer)))


_SUPERSEDE = Statement(lambda dialect: update(turn).where(_is_listed(dialect)).values(active=False))
_FIRST = Statement(
    lambda dialect: select(func.min(turn.c.at), func.min(turn.c.id)).where(_is_listed(dialect))
)
_DELETE = Statement(lambda dialect: delete(turn).where(_is_listed(dialect)))
_SENT_PARTS = Statement(
    lambda dialect: select(turn.c.sent_as).where(_is_listed(dialect), turn.c.sent_as.is_not(None))
)
# What was sent has no text any more; what never could be sent would keep it for days.
_EMPTY_UNSENT = Statement(
    lambda dialect: (
        update(outbox)
        .where(outbox.c.turn.in_(bound_texts("names", dialect)), is_dead)
        .values(text="", file_text=None, error=None)
    )
)
# A channel is read until the first answer in its first session: what was deleted must not come
# back. So what is left of that session becomes the next one.
_question, _answer_of = turn.alias("question"), turn.alias("answer")
_MOVE_UNANSWERED = Statement(
    update(turn)
    .where(
        turn.c.conversation == bindparam("of"),
        turn.c.session == 1,
        exists().where(
            conversation_table.c.key == bindparam("of"), conversation_table.c.session == 1
        ),
        ~exists().where(
            _question.c.conversation == bindparam("of"),
            _question.c.session == 1,
            _question.c.role == "user",
            _question.c.observed.is_(False),
            _answer_of.c.conversation == bindparam("of"),
            _answer_of.c.session == 1,
            _answer_of.c.role == "assistant",
            _answer_of.c.id > _question.c.id,
        ),
    )
    .values(session=2)
)
_END_EMPTY_SESSION = Statement(
    update(conversation_table)
    .where(
        conversation_table.c.key == bindparam("of"),
        ~exists().where(
            turn.c.conversation == conversation_table.c.key,
            turn.c.session == conversation_table.c.session,
        ),
    )
    .values(session=conversation_table.c.session + 1)
)
_DELETE_SUMMARIES = Statement(
    delete(summary).where(
        summary.c.conversation == bindparam("of"), summary.c.covers_to >= bindparam("first")
    )
)
_EMPTY_RECEIPTS = Statement(
    update(receipt)
    .where(receipt.c.conversation == bindparam("of"), receipt.c.at >= bindparam("since"))
    .values(content=b"")
)


_NOTE_FORGOTTEN = Statement(
    insert(forgotten).values(conversation=bindparam("of"), at=bindparam("moment"))
)


@value_class
class ChangedRows:
    """What happens to stored turns, by their ids, with the values of the columns."""

    texts: Mapping[int, str]
    versions: Mapping[int, Mapping[str, Any]]
    superseded: Collection[int]
    restored: Collection[int]
    deleted: Collection[int]
    replaced: Collection[int] = ()
    """Those with a new version that are not kept."""
    observed: Mapping[int, bool] = field(default_factory=dict)
    files: Mapping[int, str | None] = field(default_factory=dict)


def apply(conversation: str, change: ChangedRows, now: float) -> Unit[None]:
    """Change turns; summaries that cover one of them are deleted.

    With a turn that is deleted goes the content of all receipts since: prompts may quote it, and
    the text of its parts that could not be sent.
    """
    yield from _set_files(change)
    touched = [*change.texts, *change.versions, *change.superseded, *change.deleted]
    touched += change.observed
    if not touched:
        return
    [(since, first)] = yield _FIRST.query(_rows(touched))
    if first is None:
        return
    yield _DELETE_SUMMARIES.query({"of": conversation, "first": first})
    for turn_id, text in change.texts.items():
        yield _SET_TEXT.query({"row": turn_id, "reads": text})
    for turn_id, is_observed in change.observed.items():
        yield _SET_OBSERVED.query({"row": turn_id, "is_observed": is_observed})
    for turn_id, version in change.versions.items():
        if turn_id not in change.replaced:
            yield _KEEP_VERSION.query({"row": turn_id})
        new = {f"new_{name}": value for name, value in version.items()}
        yield _SET_VERSION.query({"row": turn_id, **new})
    if change.restored:
        yield _DELETE.query(_rows(change.restored))
    if change.superseded:
        yield _SUPERSEDE.query(_rows(change.superseded))
    if change.deleted:
        yield _EMPTY_RECEIPTS.query({"of": conversation, "since": since})
        parts = [
            part
            for (sent_as,) in (yield _SENT_PARTS.query(_rows(change.deleted)))
            for part in sent_as.split()
        ]
        names = sorted({part.rpartition("/")[0] for part in parts})
        yield _EMPTY_UNSENT.query({"names": json.dumps(names)})
        yield _DELETE.query(_rows(change.deleted))
        yield _MOVE_UNANSWERED.query({"of": conversation})
        yield _END_EMPTY_SESSION.query({"of": conversation})
        yield _NOTE_FORGOTTEN.query({"of": conversation, "moment": now})


def _set_files(change: ChangedRows) -> Unit[None]:
    for turn_id, files in change.files.items():
        yield _SET_FILES.query({"row": turn_id, "new_files": files})


def _rows(ids: Collection[int]) -> dict[str, str]:
    return {"rows": json.dumps([str(one) for one in ids])}
