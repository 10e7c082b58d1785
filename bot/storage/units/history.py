"""Stored turns: find them by the platform's messages, and the messages that they became."""

import itertools
import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, func, select, union_all

from bot.chat.incoming import Person, split_conversation_key
from bot.chat.outgoing import OutboxOperation, OutboxState
from bot.chat.session import Exchange, Session, StoredTurn, Turn
from bot.storage.engine.statements import DialectName, Statement, Unit
from bot.storage.sql.tables import conversation as conversation_table
from bot.storage.sql.tables import outbox, sent_message, turn
from bot.storage.units.dialects import bound_texts

_MAX_LATER_TURNS = 400
_COLUMNS = (
    *(turn.c.role, turn.c.speaker_id, turn.c.speaker_name, turn.c.text, turn.c.at),
    *(turn.c.preset, turn.c.preset_version, turn.c.message_id, turn.c.sent_as, turn.c.observed),
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
            outbox.c.external_id.in_(bound_texts("ids", dialect)),
            outbox.c.op == OutboxOperation.SEND,
        ),
        select(sent_message.c.turn, sent_message.c.part).where(
            sent_message.c.conversation == bindparam("of"),
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


_QUESTION = Statement(
    select(turn.c.id, *_COLUMNS, turn.c.session, conversation_table.c.session)
    .join(conversation_table, conversation_table.c.key == turn.c.conversation)
    .where(
        turn.c.conversation == bindparam("of"),
        turn.c.message_id == bindparam("message"),
        turn.c.role == "user",
        turn.c.active,
    )
    .order_by(turn.c.id.desc())
    .limit(1)
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


def load_exchange(conversation: str, message_id: str, max_turns: int) -> Unit[Exchange | None]:
    """Return a person's message with its answers and so many turns before it."""
    found = yield _QUESTION.query({"of": conversation, "message": message_id})
    if not found:
        return None
    *columns, session, current = found[0]
    question = _to_stored(columns)
    asked = {"of": conversation, "in_session": session, "question": question.id}
    before = yield _BEFORE.query({**asked, "most": max_turns})
    later = [_to_stored(row) for row in (yield _AFTER.query(asked))]
    answers = tuple(itertools.takewhile(lambda one: one.turn.role == "assistant", later))
    rest = later[len(answers) :]
    is_newest = session == current and all(one.turn.role == "user" for one in rest)
    names = [name for one in answers for name in one.turn.sent_as]
    known = (yield from _find_parts(names)) if names else {}
    return Exchange(
        question,
        answers,
        Session(session, tuple(_to_stored(row).turn for row in reversed(before))),
        is_newest,
        tuple(name for name in names if name in known),
    )


def resolve_parts(names: Sequence[str]) -> Unit[list[dict[str, object]]]:
    """Return the columns by which an outbox row names the messages of these parts to change."""
    known = yield from _find_parts(names)
    targets: list[dict[str, object]] = []
    for name in names:
        turn_name, _, part = name.rpartition("/")
        target = {"target_turn": turn_name, "target_part": int(part)}
        targets.append({**target, "external_id": known.get(name)})
    return targets


def _find_parts(names: Sequence[str]) -> Unit[dict[str, str | None]]:
    """Return the platform's ids of parts; None of one that was not sent yet."""
    asked = {"names": json.dumps(sorted({name.rpartition("/")[0] for name in names}))}
    rows = [*(yield _KEPT_IDS.query(asked)), *(yield _SENDS.query(asked))]
    return {f"{name}/{part}": external_id for name, part, external_id in rows}


def find(conversation: str, message_ids: Collection[str]) -> Unit[list[StoredTurn]]:
    """Return the turns that were said in these messages, oldest first."""
    asked = {"of": conversation, "ids": json.dumps(list(message_ids))}
    rows = list((yield _SAID.query(asked)))
    lane, _ = split_conversation_key(conversation)
    for name, part in (yield _PARTS.query({**asked, "of_lane": lane})):
        wanted = encode_parts((f"{name}/{part}",))
        rows += yield _ANSWERS.query({"of": conversation, "part": wanted})
    by_id = {row[0]: row for row in rows}
    return [_to_stored(by_id[number]) for number in sorted(by_id)]


def encode_parts(names: Sequence[str]) -> str | None:
    """Write the names of parts so that each stands between two line breaks."""
    return "\n" + "".join(f"{name}\n" for name in names) if names else None


def _to_stored(row: Sequence[Any]) -> StoredTurn:
    id_, role, speaker_id, speaker_name, text, at, *others = row
    preset, version, message_id, sent_as, observed = others
    speaker = Person(speaker_id, speaker_name) if speaker_id else None
    parts = tuple(name for name in (sent_as or "").split("\n") if name)
    moment = datetime.fromtimestamp(at, UTC)
    said = Turn(role, text, speaker, moment, preset, version, message_id, parts, bool(observed))
    return StoredTurn(id_, said)
