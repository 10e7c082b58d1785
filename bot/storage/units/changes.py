"""Change stored turns: new texts, new versions, deletions with what was derived from them."""

import json
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    bindparam,
    cast,
    delete,
    exists,
    false,
    func,
    insert,
    select,
    update,
)

from bot.frozen_dataclass import frozen_dataclass
from bot.storage.engine.statements import DialectName, Statement, Unit
from bot.storage.sql.tables import conversation as conversation_table
from bot.storage.sql.tables import forgotten, is_dead, outbox, receipt, summary, turn
from bot.storage.units.dialects import bound_texts

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
_SENT_AS = Statement(
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
_question, _answer = turn.alias("question"), turn.alias("answer")
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
            _answer.c.conversation == bindparam("of"),
            _answer.c.session == 1,
            _answer.c.role == "assistant",
            _answer.c.id > _question.c.id,
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


@frozen_dataclass
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
            for (sent_as,) in (yield _SENT_AS.query(_rows(change.deleted)))
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
