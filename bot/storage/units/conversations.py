"""Conversations: receive messages, claim one, finish its messages one after the other.

A conversation is ready while `ready_since` is set. Claiming it raises its epoch; whatever is
written for a claim names its epoch and is refused once there is a newer one.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Integer,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from bot.chat.outgoing import OutboxOperation, OutboxRow
from bot.chat.session import Attempt, Claim, TurnRange
from bot.errors import Fenced
from bot.storage.engine.statements import Statement, Unit
from bot.storage.sql.tables import conversation, cursor, inbox, is_unanswered, outbox, receipt, turn
from bot.storage.units import lanes
from bot.storage.units.dialects import bound_texts, clock, insert_into, is_served, skip_locked

_INBOX_ROW = (
    *("platform", "bot_id", "external_key", "conversation", "kind", "payload", "received_at"),
)
_STORE = Statement(
    lambda dialect: insert_into(inbox, dialect, *_INBOX_ROW).on_conflict_do_nothing()
)
_MAKE_READY = Statement(
    lambda dialect: (
        insert := insert_into(conversation, dialect, "key", "platform", "bot_id").values(
            ready_since=clock(dialect)
        )
    ).on_conflict_do_update(
        index_elements=["key"],
        set_={
            "ready_since": func.coalesce(conversation.c.ready_since, insert.excluded.ready_since)
        },
    )
)
_ADVANCE = Statement(
    lambda dialect: (insert := insert_into(cursor, dialect, "name", "value")).on_conflict_do_update(
        index_elements=["name"], set_={"value": insert.excluded.value}
    )
)
_IS_READY = conversation.c.ready_since.is_not(None)
_READY = Statement(
    lambda dialect: skip_locked(
        select(conversation.c.key)
        .where(
            _IS_READY,
            conversation.c.lease_until <= clock(dialect),
            is_served(conversation, dialect),
        )
        .order_by(conversation.c.ready_since)
        .limit(bindparam("most")),
        dialect,
    )
)
_CLAIM = Statement(
    lambda dialect: (
        update(conversation)
        .where(
            conversation.c.key == bindparam("of"),
            _IS_READY,
            # whoever restarts under its old name takes its own lease over
            or_(
                conversation.c.lease_until <= clock(dialect),
                conversation.c.owner == bindparam("claimed_by"),
            ),
        )
        .values(
            epoch=conversation.c.epoch + 1,
            owner=bindparam("claimed_by"),
            lease_until=clock(dialect) + bindparam("seconds"),
        )
        .returning(conversation.c.epoch)
    )
)
_HELD = and_(conversation.c.key == bindparam("of"), conversation.c.epoch == bindparam("at_epoch"))
# A lease of 0 is one that was given back by a unit that overtook this one. A row that somebody
# has locked is being finished or claimed, so nobody waits for it here: it is renewed next time.
_RENEW = Statement(
    lambda dialect: (
        update(conversation)
        .where(
            conversation.c.key.in_(
                skip_locked(
                    select(conversation.c.key).where(
                        conversation.c.key.in_(bound_texts("keys", dialect)),
                        conversation.c.owner == bindparam("held_by"),
                        conversation.c.lease_until > 0.0,
                    ),
                    dialect,
                )
            )
        )
        .values(lease_until=clock(dialect) + bindparam("seconds"))
    )
)
_EPOCHS = Statement(
    lambda dialect: select(conversation.c.key, conversation.c.epoch).where(
        conversation.c.key.in_(bound_texts("keys", dialect))
    )
)
_LOCK = Statement(  # a change of nothing, for the lock of its row
    update(conversation)
    .where(_HELD)
    .values(owner=conversation.c.owner)
    .returning(conversation.c.session)
)
_BEGIN_SESSION = Statement(
    update(conversation)
    .where(_HELD)
    .values(session=conversation.c.session + 1)
    .returning(conversation.c.session)
)
_RELEASE = Statement(
    update(conversation).where(_HELD).values(lease_until=0.0).returning(conversation.c.session)
)
_SETTLE = Statement(update(conversation).where(_HELD).values(lease_until=0.0, ready_since=None))
_OLDEST = (
    select(inbox.c.id)
    .where(is_unanswered, inbox.c.conversation == bindparam("of"))
    .order_by(inbox.c.id)
    .limit(1)
    .scalar_subquery()
)
# An attempt that is still recorded did not end: its process died. A second death in a row alone
# explains the first one as well. A suspect is not in flight before the worker starts with it.
# The numbers are written into the SQL: PostgreSQL takes a CASE of bound values for text.
_ZERO, _ONE, _TWO = (literal_column(str(number), Integer) for number in range(3))
_NONE, _BESIDE_OTHERS, _ALONE, _DEFERRED = (
    literal_column(str(int(one)), Integer) for one in Attempt
)
_HAS_DIED = inbox.c.attempt.in_([_BESIDE_OTHERS, _ALONE])
_NEXT = Statement(
    update(inbox)
    .where(inbox.c.id == _OLDEST)
    .values(
        crashes=inbox.c.crashes + case((_HAS_DIED, _ONE), else_=_ZERO),
        own_crashes=case(
            (inbox.c.attempt == _DEFERRED, _ZERO),
            (and_(inbox.c.attempt == _ALONE, inbox.c.crashes == _ONE), _TWO),
            (inbox.c.attempt == _ALONE, inbox.c.own_crashes + _ONE),
            else_=inbox.c.own_crashes,
        ),
        attempt=case(
            (inbox.c.crashes == _ZERO, _BESIDE_OTHERS),
            (and_(inbox.c.crashes == _ONE, not_(_HAS_DIED)), _BESIDE_OTHERS),
            else_=_NONE,
        ),
    )
    .returning(inbox.c.id, inbox.c.payload, inbox.c.crashes, inbox.c.own_crashes, inbox.c.kind)
)
_DONE = Statement(
    update(inbox).where(inbox.c.id == bindparam("message")).values(state="done", payload=None)
)
_RECORD_ATTEMPT = Statement(
    update(inbox).where(inbox.c.id == bindparam("message")).values(attempt=bindparam("attempted"))
)
_TURN_ROW = (
    *("conversation", "session", "role", "speaker_id", "speaker_name", "text", "at", "preset"),
    *("preset_version", "message_id", "sent_as"),
)
_earlier = turn.alias("earlier")
_PARENT = (
    select(_earlier.c.id)
    .where(
        _earlier.c.conversation == bindparam("conversation"),
        _earlier.c.session == bindparam("session"),
        _earlier.c.active,
    )
    .order_by(_earlier.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_IN_RANGE = turn.c.id.in_(
    select(turn.c.id)
    .where(
        turn.c.conversation == bindparam("of"),
        turn.c.session == bindparam("of_session"),
        turn.c.active,
    )
    .order_by(turn.c.id.desc())
    .limit(bindparam("count"))
    .offset(bindparam("newer"))
)
_REMOVE = Statement(delete(turn).where(_IN_RANGE))
_SUPERSEDE = Statement(update(turn).where(_IN_RANGE).values(active=false()))
_APPEND = Statement(lambda dialect: insert_into(turn, dialect, *_TURN_ROW).values(parent=_PARENT))
_NOTE = Statement(
    lambda dialect: insert_into(receipt, dialect, "conversation", "turn", "at", "content")
)
_OPENED = Statement(
    select(outbox.c.part).where(
        outbox.c.turn == bindparam("of_turn"), outbox.c.op == OutboxOperation.SEND
    )
)


@dataclass(frozen=True, slots=True)
class NextMessage:
    """An inbox row, as it is stored."""

    id: int
    payload: bytes
    crashes: int
    own_crashes: int
    kind: str


@dataclass(frozen=True, slots=True)
class FinishedRows:
    """What `finish` writes."""

    message: int
    turns: Sequence[dict[str, Any]]
    receipts: Sequence[dict[str, Any]]
    new_session: bool
    removes: TurnRange | None = None
    supersedes: TurnRange | None = None


def receive(rows: Sequence[dict[str, Any]], cursors: Mapping[str, str], now: float) -> Unit[None]:
    """Store messages, make their conversations ready and advance the cursors."""
    if rows:
        yield _STORE.query_many(rows)
        ready = {row["conversation"]: row for row in rows}
        yield _MAKE_READY.query_many(
            [
                {"key": key, "platform": row["platform"], "bot_id": row["bot_id"], "now": now}
                for key, row in sorted(ready.items())  # in one order, so that nobody deadlocks
            ]
        )
    if cursors:
        yield _ADVANCE.query_many([{"name": name, "value": to} for name, to in cursors.items()])


def ready(served: str, limit: int, now: float) -> Unit[list[str]]:
    """Return conversations that nobody holds, the longest waiting first."""
    rows = yield _READY.query({"served": served, "most": limit, "now": now})
    return [row[0] for row in rows]


def begin(
    key: str, owner: str, seconds: float, now: float
) -> Unit[tuple[Claim, NextMessage] | None]:
    """Claim a ready conversation and begin its oldest message."""
    claimed = yield _CLAIM.query({"of": key, "claimed_by": owner, "seconds": seconds, "now": now})
    if not claimed:
        return None
    claim = Claim(key, claimed[0][0], owner)
    message = yield from next_message(claim)
    return None if message is None else (claim, message)


def next_message(claim: Claim) -> Unit[NextMessage | None]:
    """Begin the oldest message; where there is none, release the conversation."""
    rows = yield _NEXT.query({"of": claim.conversation})
    if rows:
        return NextMessage(*rows[0])
    yield _SETTLE.query(_of(claim))
    return None


def renew(claims: Collection[Claim], seconds: float, now: float) -> Unit[list[Claim]]:
    """Hold claims of one owner for so long from now on; return those that a later one fenced."""
    keys = json.dumps([claim.conversation for claim in claims])
    owner = next(iter(claims)).owner
    yield _RENEW.query({"keys": keys, "held_by": owner, "seconds": seconds, "now": now})
    epochs = {row[0]: row[1] for row in (yield _EPOCHS.query({"keys": keys}))}
    return [claim for claim in claims if epochs.get(claim.conversation) != claim.epoch]


def release(claim: Claim) -> Unit[None]:
    """Give a conversation back as it is: others may claim it at once."""
    _session(claim, (yield _RELEASE.query(_of(claim))))


def record_attempt(claim: Claim, message: int, attempt: Attempt) -> Unit[None]:
    """Store what is being done with a message."""
    yield from check(claim)
    yield _RECORD_ATTEMPT.query({"message": message, "attempted": int(attempt)})


def opened_parts(turn_name: str) -> Unit[set[int]]:
    """Return the parts of a turn that were queued before it was finished."""
    return {row[0] for row in (yield _OPENED.query({"of_turn": turn_name}))}


def open_part(
    claim: Claim, row: dict[str, Any], sender: lanes.SenderIdentity | None, at: lanes.Moment
) -> Unit[tuple[int, OutboxRow | None]]:
    """Queue the first message of an answer in the making, and take it where its lane is free."""
    yield from check(claim)
    number = yield from lanes.queue_once(row, at.now)
    taken = (yield from lanes.take(row["lane"], sender, at)) if sender else None
    return number, taken


def finish(claim: Claim, rows: FinishedRows) -> Unit[None]:
    """Check the epoch, mark the message as answered, append its turns and receipts."""
    change = _BEGIN_SESSION if rows.new_session else _LOCK
    session = _session(claim, (yield change.query(_of(claim))))
    yield _DONE.query({"message": rows.message})
    for change, turns in ((_REMOVE, rows.removes), (_SUPERSEDE, rows.supersedes)):
        if turns is not None:
            found = {"of": claim.conversation, "of_session": session}
            yield change.query({**found, "count": turns.count, "newer": turns.newer})
    if rows.turns:
        yield _APPEND.query_many([{**row, "session": session} for row in rows.turns])
    if rows.receipts:
        yield _NOTE.query_many(rows.receipts)


def check(claim: Claim) -> Unit[None]:
    """Check the epoch of a claim and lock it until the unit is committed; raises `Fenced`."""
    _session(claim, (yield _LOCK.query(_of(claim))))


def outdated(claim: Claim) -> Fenced:
    """Return the error of a claim that a later one has fenced."""
    return Fenced(f"conversation {claim.conversation} has a newer epoch than {claim.epoch}")


def _of(claim: Claim, **values: object) -> dict[str, object]:
    return {"of": claim.conversation, "at_epoch": claim.epoch, **values}


def _session(claim: Claim, rows: Sequence[Sequence[Any]]) -> int:
    if not rows:
        raise outdated(claim)
    session: int = rows[0][0]
    return session
