"""Lanes: what is to be sent in one chat, strictly in order, by one sender at a time.

A lane is due at `due_at`; a sender that takes it moves that moment to the end of its lease, so that
a sender that dies makes the lane due again by itself. Each row names the sender and the attempt
that holds it, and whoever changes a row has to be that sender in that attempt: one that wakes up
late is refused.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import and_, bindparam, func, select, update

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, OutboxOperation, OutboxRow, OutboxState
from bot.errors import Fenced
from bot.storage.engine.statements import Query, Rows, Statement, Unit
from bot.storage.sql.tables import is_unsent, lane, outbox
from bot.storage.units.dialects import clock, insert_into, is_served, skip_locked

_NOTICE_PART = 10_000
"""Parts from here on say that another part could not be delivered; no answer has so many."""
SENDING_SECONDS = 20.0
"""The lease of a row; a request ends within half of it, or its sender drops it."""

_ROW = (
    *("turn", "part", "op", "platform", "bot_id", "chat", "thread", "lane", "text", "reply_to"),
    *("interaction", "file_name", "file_text"),
)
_QUEUE = Statement(lambda dialect: insert_into(outbox, dialect, *_ROW))
_QUEUE_ONCE = Statement(
    lambda dialect: (
        insert_into(outbox, dialect, *_ROW)
        .on_conflict_do_update(index_elements=["turn", "part", "op"], set_={"turn": outbox.c.turn})
        .returning(outbox.c.id)
    )
)
_MAKE_DUE = Statement(
    lambda dialect: (
        insert := insert_into(lane, dialect, "key", "platform", "bot_id").values(
            due_at=clock(dialect)
        )
    ).on_conflict_do_update(
        index_elements=["key"],
        set_={"due_at": func.coalesce(lane.c.due_at, insert.excluded.due_at)},
    )
)
_THIS_LANE = lane.c.key == bindparam("of")
_TAKE = Statement(
    lambda dialect: (
        update(lane)
        .where(_THIS_LANE, lane.c.due_at <= clock(dialect))
        .values(due_at=clock(dialect) + SENDING_SECONDS)
        .returning(lane.c.due_at)
    )
)
_HOLD = Statement(
    lambda dialect: (
        update(lane)
        .where(_THIS_LANE)
        .values(due_at=clock(dialect) + SENDING_SECONDS)
        .returning(lane.c.due_at)
    )
)
_EMPTY = Statement(update(lane).where(_THIS_LANE).values(due_at=None))
_POSTPONE = Statement(update(lane).where(_THIS_LANE).values(due_at=bindparam("moment")))
_DUE = Statement(
    lambda dialect: skip_locked(
        select(lane.c.key)
        .where(lane.c.due_at <= clock(dialect), is_served(lane, dialect))
        .order_by(lane.c.due_at)
        .limit(bindparam("most")),
        dialect,
    )
)
_opened = outbox.alias("opened")
_HEAD = Statement(
    select(
        outbox.c.id,
        outbox.c.turn,
        outbox.c.part,
        outbox.c.op,
        outbox.c.platform,
        outbox.c.bot_id,
        outbox.c.chat,
        outbox.c.thread,
        outbox.c.text,
        outbox.c.reply_to,
        outbox.c.interaction,
        outbox.c.state,
        outbox.c.attempts,
        outbox.c.not_before,
        outbox.c.file_name,
        outbox.c.file_text,
        outbox.c.started_at,
        _opened.c.external_id,
    )
    .outerjoin(
        _opened,
        and_(
            _opened.c.turn == outbox.c.turn,
            _opened.c.part == outbox.c.part,
            _opened.c.op == OutboxOperation.SEND,
        ),
    )
    .where(is_unsent, outbox.c.lane == bindparam("of"))
    .order_by(outbox.c.id)
    .limit(1)
)
_THIS_ROW = outbox.c.id == bindparam("row")
_NO_FILE = {"file_name": None, "file_text": None}
_BEGIN = Statement(
    update(outbox)
    .where(_THIS_ROW)
    .values(
        state=bindparam("begun"),
        owner=bindparam("sender"),
        attempts=outbox.c.attempts + 1,
        started_at=bindparam("started"),
    )
)
_LOST = Statement(
    update(outbox)
    .where(_THIS_ROW)
    .values(state=OutboxState.UNKNOWN, owner=None, not_before=bindparam("moment"))
)
# Only the sender that took the row, in the attempt that it took it for, may say what came of it.
_HELD_ROW = update(outbox).where(
    _THIS_ROW,
    outbox.c.owner == bindparam("sender"),
    outbox.c.attempts == bindparam("attempt"),
    is_unsent,
)
# What was said stands in the history; here only its id is still needed.
_SENT = Statement(
    _HELD_ROW.values(
        state=OutboxState.SENT, external_id=bindparam("arrived_as"), owner=None, text="", **_NO_FILE
    ).returning(outbox.c.lane)
)
_LATER = Statement(
    _HELD_ROW.values(
        state=bindparam("becomes"), owner=None, not_before=bindparam("moment")
    ).returning(outbox.c.lane)
)
_DEAD = Statement(
    _HELD_ROW.values(
        state=OutboxState.DEAD, error=bindparam("reason"), owner=None, **_NO_FILE
    ).returning(outbox.c.lane)
)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a unit was started, by the clocks of its process."""

    now: float
    """Unix seconds; PostgreSQL uses its own clock instead."""
    monotonic: float


@dataclass(frozen=True, slots=True)
class SenderIdentity:
    """Who takes rows, and how late its platforms may accept a request that it gave up on."""

    owner: str
    settle_seconds: float


def queue(rows: Sequence[dict[str, Any]], now: float) -> Unit[None]:
    """Append rows to their lane, and make it due unless it is waited for already."""
    yield _QUEUE.query_many(rows)
    yield from make_due(rows[0], now)


def queue_once(row: dict[str, Any], now: float) -> Unit[int]:
    """Append a row unless that part of that turn was queued before; return its id."""
    found = yield _QUEUE_ONCE.query(row)
    yield from make_due(row, now)
    return int(found[0][0])


def make_due(row: dict[str, Any], now: float) -> Unit[None]:
    key, platform, bot_id = row["lane"], row["platform"], row["bot_id"]
    yield _MAKE_DUE.query({"key": key, "platform": platform, "bot_id": bot_id, "now": now})


def due(served: str, limit: int, now: float) -> Unit[list[str]]:
    """Return lanes whose first row can be sent, the longest waiting first."""
    rows = yield _DUE.query({"served": served, "most": limit, "now": now})
    return [row[0] for row in rows]


def take(key: str, sender: SenderIdentity, at: Moment) -> Unit[OutboxRow | None]:
    """Take the first is_unsent row of a lane if the lane is due; its text has not left before.

    A row whose sender is gone becomes `unknown`, and is given once it had time to settle.
    """
    leased = yield _TAKE.query({"of": key, "now": at.now})
    return (yield from _head(key, sender, leased, at)) if leased else None


def take_next(key: str, sender: SenderIdentity, at: Moment) -> Unit[OutboxRow | None]:
    """Take the first is_unsent row of a lane that this sender holds."""
    leased = yield _HOLD.query({"of": key, "now": at.now})
    return (yield from _head(key, sender, leased, at)) if leased else None


def _head(key: str, sender: SenderIdentity, leased: Rows, at: Moment) -> Unit[OutboxRow | None]:
    now = leased[0][0] - SENDING_SECONDS  # by the clock of the database
    rows = yield _HEAD.query({"of": key})
    if not rows:
        yield _EMPTY.query({"of": key})
        return None
    row, not_before, started_at = _to_row(rows[0])
    if row.state is OutboxState.SENDING:  # its sender died
        row = replace(row, state=OutboxState.UNKNOWN)
        not_before = max(not_before, (started_at or 0.0) + sender.settle_seconds)
        yield _LOST.query({"row": row.id, "moment": not_before})
    if not_before > now:
        yield _POSTPONE.query({"of": key, "moment": not_before})
        return None
    is_new = row.state is OutboxState.PENDING
    yield _BEGIN.query(
        {
            "row": row.id,
            "begun": OutboxState.SENDING if is_new else row.state,
            "sender": sender.owner,
            "started": now if is_new else started_at,
        }
    )
    return replace(row, send_before=at.monotonic + SENDING_SECONDS / 2)


def sent(
    row: OutboxRow, external_id: str | None, sender: SenderIdentity, at: Moment
) -> Unit[OutboxRow | None]:
    """Note that a row arrived, and take the next of its lane; raises `Fenced`."""
    key = yield from _change(row, sender, _SENT.query(_held(row, sender, arrived_as=external_id)))
    return (yield from take_next(key, sender, at))


def dead(row: OutboxRow, reason: str, sender: SenderIdentity, at: Moment) -> Unit[OutboxRow | None]:
    """Note that the platform refused a row for good, and take the next; raises `Fenced`."""
    key = yield from _change(row, sender, _DEAD.query(_held(row, sender, reason=reason)))
    return (yield from take_next(key, sender, at))


def set_aside(
    row: OutboxRow, reason: str, notice: str, sender: SenderIdentity, at: Moment
) -> Unit[OutboxRow | None]:
    """Give up a row, queue a notice behind its lane, and take the next row; raises `Fenced`."""
    key = yield from _change(row, sender, _DEAD.query(_held(row, sender, reason=reason)))
    if row.part < _NOTICE_PART:
        yield _QUEUE_ONCE.query(_notice(row, notice))
    return (yield from take_next(key, sender, at))


def _notice(row: OutboxRow, text: str) -> dict[str, object]:
    return {
        "turn": row.turn,
        "part": _NOTICE_PART + row.part,
        "op": OutboxOperation.SEND,
        "platform": row.address.platform,
        "bot_id": row.address.bot_id,
        "chat": row.address.chat,
        "thread": row.address.thread,
        "lane": row.address.lane,
        "text": text,
        "reply_to": row.reply_to,
        "interaction": None,
        "file_name": None,
        "file_text": None,
    }


def later(row: OutboxRow, state: OutboxState, moment: float, sender: SenderIdentity) -> Unit[None]:
    """Give a row back as `pending` or `unknown`, due at a moment; raises `Fenced`."""
    change = _LATER.query(_held(row, sender, becomes=state, moment=moment))
    key = yield from _change(row, sender, change)
    yield _POSTPONE.query({"of": key, "moment": moment})


def _held(row: OutboxRow, sender: SenderIdentity, **values: object) -> dict[str, object]:
    return {"row": row.id, "sender": sender.owner, "attempt": row.attempts, **values}


def _change(row: OutboxRow, sender: SenderIdentity, change: Query) -> Generator[Query, Rows, str]:
    changed = yield change
    if not changed:
        raise Fenced(f"outbox row {row.id} is held by another sender than {sender.owner}")
    key: str = changed[0][0]
    return key


def _to_row(columns: Sequence[Any]) -> tuple[OutboxRow, float, float | None]:
    (id_, turn, part, op, platform, bot_id, chat, thread, text, reply_to, interaction) = columns[
        :11
    ]
    (state, attempts, not_before, file_name, file_text, started_at, external_id) = columns[11:]
    row = OutboxRow(
        id=id_,
        turn=turn,
        address=Address(platform, chat, thread, bot_id),
        part=part,
        op=OutboxOperation(op),
        text=text,
        reply_to=reply_to,
        interaction=interaction,
        state=OutboxState(state),
        attempts=attempts + 1,
        external_id=external_id,
        not_before=not_before,
        file=None if file_name is None else Attachment(file_name, file_text),
    )
    return row, not_before, started_at
