"""Stored turns: find them by the platform's messages that they were said in."""

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select, union_all

from bot.chat.incoming import Person, split_conversation_key
from bot.chat.outgoing import OutboxOperation
from bot.chat.session import StoredTurn, Turn
from bot.storage.engine.statements import DialectName, Statement, Unit
from bot.storage.sql.tables import outbox, sent_message, turn
from bot.storage.units.dialects import bound_texts

_COLUMNS = (
    *(turn.c.role, turn.c.speaker_id, turn.c.speaker_name, turn.c.text, turn.c.at),
    *(turn.c.preset, turn.c.preset_version, turn.c.message_id, turn.c.sent_as),
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
    id_, role, speaker_id, speaker_name, text, at, preset, version, message_id, sent_as = row
    speaker = Person(speaker_id, speaker_name) if speaker_id else None
    parts = tuple(name for name in (sent_as or "").split("\n") if name)
    moment = datetime.fromtimestamp(at, UTC)
    return StoredTurn(id_, Turn(role, text, speaker, moment, preset, version, message_id, parts))
