"""Conversations: receive messages, claim one, finish its messages one after the other.

A conversation is ready while `ready_since` is set. Claiming it raises its epoch; whatever is
written for a claim names its epoch and is refused once there is a newer one.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bot.chat.outgoing import OutboxRow
from bot.chat.session import Attempt, Claim, HistoryChange, TurnRange
from bot.errors import Fenced
from bot.storage import conversation_sql as sql
from bot.storage import functions, histories, lanes
from bot.storage.outgoing import PartChanges
from bot.storage.statements import DialectName, Unit
from bot.value_class import value_class

_MESSAGE_COLUMNS = 7
"""How many columns of a function of the database a `NextMessage` has."""


@value_class
class NextMessage:
    """An inbox row, as it is stored."""

    id: int
    payload: bytes
    crashes: int
    own_crashes: int
    kind: str
    received_at: float
    is_followed: bool


@frozen_dataclass
class FinishedRows:
    """What `finish` writes."""

    messages: Sequence[int]
    turns: Sequence[dict[str, Any]]
    receipts: Sequence[dict[str, Any]]
    answer: PartChanges
    new_session: bool
    go_on: bool
    """Whether to begin the next message; else the conversation is given back."""
    removes: TurnRange | None = None
    supersedes: TurnRange | None = None
    change: HistoryChange | None = None
    in_place_of: Sequence[str] = ()
    """The names of the parts whose messages the answer takes."""


def receive(
    rows: Sequence[dict[str, Any]], cursors: Mapping[str, str], now: float, dialect: DialectName
) -> Unit[None]:
    """Store messages, make their conversations ready and advance the cursors."""
    by_key = {row["conversation"]: row for row in rows}
    ready = sorted(by_key.items())  # in one order, so that nobody deadlocks
    if dialect == "postgresql":
        yield functions.RECEIVE.call.query_alone(
            {
                **{f"{name}s": [row[name] for row in rows] for name in sql.INBOX_ROW[:-1]},
                "received_at": now,
                "keys": [key for key, _ in ready],
                "key_platforms": [row["platform"] for _, row in ready],
                "key_bot_ids": [row["bot_id"] for _, row in ready],
                "names": list(cursors),
                "places": list(cursors.values()),
            }
        )
        return
    if rows:
        yield sql.STORE.query_many(rows)
        yield sql.MAKE_READY.query_many(
            [
                {"key": key, "platform": row["platform"], "bot_id": row["bot_id"], "now": now}
                for key, row in ready
            ]
        )
    if cursors:
        yield sql.ADVANCE.query_many(
            [{"name": name, "reached": to} for name, to in cursors.items()]
        )


def ready(served: str, limit: int, now: float) -> Unit[list[str]]:
    """Return conversations that nobody holds, the longest waiting first."""
    rows = yield sql.READY.query_alone({"served": served, "most": limit, "now": now})
    return [row[0] for row in rows]


def begin(
    keys: Sequence[str], owner: str, seconds: float, now: float, dialect: DialectName
) -> Unit[list[tuple[Claim, NextMessage]]]:
    """Claim those conversations that are ready, and begin their oldest messages."""
    values = {"claimed_by": owner, "seconds": seconds}
    ordered = sorted(keys)  # in one order, so that nobody deadlocks
    if dialect == "postgresql":
        rows = yield functions.BEGIN.call.query_alone({"keys": ordered, **values})
        return [(Claim(key, epoch, owner), NextMessage(*columns)) for key, epoch, *columns in rows]
    begun = []
    for key in ordered:
        claimed = yield sql.CLAIM.query({"of": key, **values, "now": now})
        if claimed:
            claim = Claim(key, claimed[0][0], owner)
            message = yield from _next_message(claim)
            if message is not None:
                begun.append((claim, message))
    return begun


def _next_message(claim: Claim) -> Unit[NextMessage | None]:
    """Begin the oldest message; where there is none, release the conversation."""
    rows = yield sql.NEXT.query({"of": claim.conversation})
    if rows:
        return NextMessage(*rows[0])
    yield sql.SETTLE.query(_of(claim))
    return None


def set_aside(claim: Claim, message: int) -> Unit[NextMessage | None]:
    """Keep a message that cannot be read for an operator, and begin the next one."""
    yield from _check(claim)
    yield sql.SET_ASIDE.query({"message": message})
    return (yield from _next_message(claim))


def renew(claims: Collection[Claim], seconds: float, now: float) -> Unit[list[Claim]]:
    """Hold claims of one owner for so long from now on; return those that a later one fenced."""
    keys = json.dumps([claim.conversation for claim in claims])
    owner = next(iter(claims)).owner
    yield sql.RENEW.query({"keys": keys, "held_by": owner, "seconds": seconds, "now": now})
    held = yield sql.EPOCHS.query({"keys": keys, "held_by": owner})
    epochs = {row[0]: row[1] for row in held}
    return [claim for claim in claims if epochs.get(claim.conversation) != claim.epoch]


def release(claim: Claim) -> Unit[None]:
    """Give a conversation back as it is: others may claim it at once."""
    _session(claim, (yield sql.RELEASE.query(_of(claim))))


def waiting(claim: Claim, limit: int) -> Unit[list[NextMessage]]:
    """Return the unanswered messages of a conversation, whatever they are, oldest first."""
    found = yield sql.FOLLOWING.query({"of": claim.conversation, "newer_than": 0, "most": limit})
    return [NextMessage(*columns) for *columns, _attempt in found]


def following(claim: Claim, after: int, limit: int) -> Unit[list[NextMessage]]:
    """Return messages that come after one, up to the first that cannot be gathered with it.

    What was in flight at a death is answered alone, so that the next one blames nobody else.
    """
    found = yield sql.FOLLOWING.query(
        {"of": claim.conversation, "newer_than": after, "most": limit}
    )
    messages = []
    for *columns, attempt in found:
        message = NextMessage(*columns)
        if message.kind != "said" or message.crashes or attempt != Attempt.NONE:
            break
        messages.append(message)
    return messages


def record_attempt(claim: Claim, messages: Sequence[int], attempt: Attempt) -> Unit[None]:
    """Store what is being done with messages."""
    yield from _check(claim)
    rows = [{"message": one, "attempted": int(attempt)} for one in messages]
    yield sql.RECORD_ATTEMPT.query_many(rows)


def open_part(
    claim: Claim,
    row: dict[str, Any],
    sender: lanes.SenderIdentity | None,
    at: lanes.Moment,
    dialect: DialectName,
) -> Unit[tuple[int, OutboxRow | None]]:
    """Queue the first message of an answer in the making, and take it where its lane is free."""
    if dialect == "postgresql":
        values = {**_of(claim), **row, **lanes.identity(sender)}
        [[held, number, *head]] = yield functions.OPEN.call.query_alone(values)
        if not held:
            raise outdated(claim)
        return number, lanes.given_row(head, at)
    yield from _check(claim)
    number = yield from lanes.queue_once(row)
    if sender is None:
        yield from lanes.make_due(row, at.now)
        return number, None
    return number, (yield from lanes.make_due_and_take(row, sender, at))


def finish(
    claim: Claim,
    rows: FinishedRows,
    sender: lanes.SenderIdentity | None,
    at: lanes.Moment,
    dialect: DialectName,
) -> Unit[tuple[NextMessage | None, OutboxRow | None]]:
    """Check the epoch, mark the messages as answered, append its turns, queue its answer.

    Returns:
        The next message, which is begun; None: the conversation was released.
        The first row of the answer's lane, taken for sending; None: another sender has the lane.
    """
    is_plain = rows.change is None and not rows.in_place_of
    if dialect == "postgresql" and is_plain:
        values = _finish_values(claim, rows, sender, at.now)
        [[held, *columns]] = yield functions.FINISH.call.query_alone(values)
        if not held:
            raise outdated(claim)
        message, head = columns[:_MESSAGE_COLUMNS], columns[_MESSAGE_COLUMNS:]
        next_message = None if message[0] is None else NextMessage(*message)
        return next_message, lanes.given_row(head, at)
    return (yield from _finish_by_steps(claim, rows, sender, at, dialect))


def _finish_by_steps(
    claim: Claim,
    rows: FinishedRows,
    sender: lanes.SenderIdentity | None,
    at: lanes.Moment,
    dialect: DialectName,
) -> Unit[tuple[NextMessage | None, OutboxRow | None]]:
    session, is_settled = yield from _end_messages(claim, rows, dialect)
    removed, superseded = rows.removes, rows.supersedes
    gone = ((sql.REMOVE_FAILED, removed), (sql.REMOVE, removed), (sql.SUPERSEDE, superseded))
    for change, turns in gone:
        if turns is not None:
            found = {"of": claim.conversation, "of_session": session}
            yield change.query({**found, "count": turns.count, "newer": turns.newer})
    if rows.turns:
        of = {"conversation": claim.conversation, "session": session}
        yield sql.APPEND.query_many([{**of, **row} for row in rows.turns])
    if rows.receipts:
        yield sql.NOTE.query_many(rows.receipts)
    if rows.in_place_of:
        taken = yield from _queue_in_place(rows, sender, at)
    else:
        taken = yield from _queue_answer(rows.answer, sender, at, dialect)
    if rows.change is not None:  # behind the lock of the lane, as it changes rows of the outbox
        yield from histories.apply(claim.conversation, rows.change, at.now)
    if is_settled:
        return None, taken
    if rows.go_on:
        return (yield from _next_message(claim)), taken
    yield from release(claim)
    return None, taken


def _end_messages(claim: Claim, rows: FinishedRows, dialect: DialectName) -> Unit[tuple[int, bool]]:
    """Check the epoch and mark the messages as answered.

    Returns:
        The session.
        Whether no message is left and the conversation was released.
    """
    done = sql.DONE.query_many([{"message": one} for one in rows.messages])
    if dialect == "sqlite" and rows.go_on and not rows.new_session:
        yield done
        held = yield sql.SETTLE_IF_ANSWERED.query(_of(claim))
        session = _session(claim, held)
        return session, held[0][1] is None
    change = sql.BEGIN_SESSION if rows.new_session else sql.LOCK
    session = _session(claim, (yield change.query(_of(claim))))
    yield done
    return session, False


def _queue_in_place(
    rows: FinishedRows, sender: lanes.SenderIdentity | None, at: lanes.Moment
) -> Unit[OutboxRow | None]:
    targets = yield from histories.resolve_parts(rows.in_place_of)
    queued = rows.answer.rows_in_place(targets)
    return (yield from lanes.queue_in_place(queued, sender, at)) if queued else None


def _queue_answer(
    answer: PartChanges,
    sender: lanes.SenderIdentity | None,
    at: lanes.Moment,
    dialect: DialectName,
) -> Unit[OutboxRow | None]:
    opened: dict[int, str | None] = {}
    if answer.may_be_opened:
        found = yield sql.OPENED.query({"of_turn": answer.common["turn"]})
        opened = {row[0]: row[1] for row in found}
    queued = answer.rows(opened)
    if not queued:
        return None
    if sender is None:
        yield from lanes.queue(queued, at.now)
        return None
    target = opened.get(queued[0]["part"])
    return (yield from lanes.queue_and_take(queued, sender, at, target))


def _finish_values(
    claim: Claim, rows: FinishedRows, sender: lanes.SenderIdentity | None, now: float
) -> dict[str, object]:
    return {
        **_of(claim),
        "messages": rows.messages,
        "new_session": rows.new_session,
        "go_on": rows.go_on,
        **_range(rows.removes, "removed"),
        **_range(rows.supersedes, "superseded"),
        "turns": rows.turns,
        "receipts": [row["content"] for row in rows.receipts],
        "usages": [{name: row[name] for name in sql.USAGE_ROW} for row in rows.receipts],
        "at": now,
        "changes": rows.answer.changes,
        "parts": rows.answer.parts,
        "may_be_opened": rows.answer.may_be_opened,
        **rows.answer.common,
        **lanes.identity(sender),
    }


def _range(turns: TurnRange | None, name: str) -> dict[str, int]:
    if turns is None:
        return {f"{name}_count": 0, f"{name}_newer": 0}
    return {f"{name}_count": turns.count, f"{name}_newer": turns.newer}


def _check(claim: Claim) -> Unit[None]:
    """Check the epoch of a claim and lock it until the unit is committed; raises `Fenced`."""
    _session(claim, (yield sql.LOCK.query(_of(claim))))


def outdated(claim: Claim) -> Fenced:
    """Return the error of a claim that a later one has fenced."""
    return Fenced(f"conversation {claim.conversation} was claimed after epoch {claim.epoch}")


def _of(claim: Claim) -> dict[str, object]:
    return {"of": claim.conversation, "at_epoch": claim.epoch, "claimed_by": claim.owner}


def _session(claim: Claim, rows: Sequence[Sequence[Any]]) -> int:
    if not rows:
        raise outdated(claim)
    session: int = rows[0][0]
    return session
