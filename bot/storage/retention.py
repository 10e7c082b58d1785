"""Delete old rows: answered messages, sent outbox rows, the content of receipts, usage, leases.

And the turns of conversations that are older than an installation keeps histories.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    select,
    true,
    update,
)

from bot.chat.incoming import address_of, source_name
from bot.chat.outgoing import OutboxOperation, OutboxState
from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.tables import (
    audit,
    budget,
    conversation,
    forgotten,
    has_content,
    inbox,
    is_job,
    is_unanswered,
    message_note,
    node,
    outbox,
    receipt,
    role_lease,
    sent_message,
    summary,
    turn,
    upsert,
)
from bot.value_class import value_class

_DAY = 86_400.0
INBOX_SECONDS = 14 * _DAY
"""As long as a platform may deliver a message again: the row is what recognises a repetition."""
OUTBOX_SECONDS = 7 * _DAY
USAGE_SECONDS = 400 * _DAY
"""A year of accounts, and the month that is being closed."""
_NODE_SECONDS = 7 * _DAY
"""How long operators see that a process died."""
FORGOTTEN_SECONDS = 30 * _DAY
"""How long a process may be off and still hear what it has to delete."""
_FINAL_STATES = (OutboxState.SENT, OutboxState.DEAD)
_ROWS_PER_PAGE = 500
"""Few enough that no worker waits long for the transaction that deletes them."""


# Turns are found by the messages that they were sent as (histories.py).
_KEEP_MESSAGE_IDS = upsert(
    sent_message,
    lambda insert: insert.from_select(
        ["conversation", "external_id", "turn", "part"],
        select(
            outbox.c.lane + func.coalesce(":" + outbox.c.thread, ""),
            outbox.c.external_id,
            outbox.c.turn,
            outbox.c.part,
        ).where(
            outbox.c.id.in_(bindparam("ids", expanding=True)),
            outbox.c.op == OutboxOperation.SEND,
            outbox.c.external_id.is_not(None),
        ),
    ).on_conflict_do_nothing(),
)


_IS_FINAL = outbox.c.state.in_(_FINAL_STATES)
_TURNS = select(outbox.c.id, outbox.c.turn, outbox.c.platform, outbox.c.bot_id).where(
    outbox.c.id.in_(bindparam("ids", expanding=True))
)
_UNSENT_TURNS = select(outbox.c.turn).where(
    outbox.c.turn.in_(bindparam("turns", expanding=True)), ~_IS_FINAL
)
_UNANSWERED_KEYS = select(inbox.c.external_key).where(
    inbox.c.platform == bindparam("of_platform"),
    inbox.c.bot_id == bindparam("of_bot"),
    inbox.c.external_key.in_(bindparam("keys", expanding=True)),
    is_unanswered,
)


_OLDEST_RECEIPTS = (
    select(receipt.c.at)
    .where(receipt.c.at.between(bindparam("since"), bindparam("until")), has_content)
    .order_by(receipt.c.at)
    .limit(_ROWS_PER_PAGE)
    .subquery()
)
_END_OF_PAGE = select(func.max(_OLDEST_RECEIPTS.c.at))
_EMPTY_RECEIPTS = (
    update(receipt)
    .where(receipt.c.at.between(bindparam("since"), bindparam("until")), has_content)
    .values(content=b"")
)
_DELETE_NODES = delete(node).where(node.c.seen_at < bindparam("before"))
# The names of jobs stay: that nobody has one is what an operator has to see.
_DELETE_LEASES = delete(role_lease).where(~is_job, role_lease.c.lease_until < bindparam("before"))
_DELETE_BUDGETS = delete(budget).where(budget.c.key < bindparam("oldest"))


async def delete_expired(database: Database, clock: Clock, receipt_days: float) -> int:
    """Delete old rows that nothing depends on any more; return their number."""
    now = await database.now(clock)
    received = inbox.c.received_at
    answered = _Expired(inbox, received, now - INBOX_SECONDS, inbox.c.state != "new")
    sent = _Expired(outbox, outbox.c.started_at, now - OUTBOX_SECONDS, _IS_FINAL)
    usage = _Expired(receipt, receipt.c.at, now - USAGE_SECONDS, true())
    noted = _Expired(forgotten, forgotten.c.at, now - FORGOTTEN_SECONDS, true())
    audited = _Expired(audit, audit.c.at, now - USAGE_SECONDS, true())
    noted_before = now - min(INBOX_SECONDS, receipt_days * _DAY)
    notes = _Expired(message_note, message_note.c.at, noted_before, true())
    tables = (answered, sent, usage, noted, audited, notes)
    deleted = sum([await _delete(database, expired) for expired in tables])
    oldest = datetime.fromtimestamp(now - USAGE_SECONDS, UTC).date().isoformat()
    deleted += await _empty_receipts(database, now - receipt_days * _DAY)
    return deleted + await database.write(
        lambda c: (
            c.execute(_DELETE_BUDGETS, {"oldest": oldest}).rowcount
            + c.execute(_DELETE_NODES, {"before": now - _NODE_SECONDS}).rowcount
            + c.execute(_DELETE_LEASES, {"before": now - _NODE_SECONDS}).rowcount
        )
    )


async def _empty_receipts(database: Database, until: float) -> int:
    """Delete the content of old receipts, page by page; their usage stays."""
    emptied, since = 0, 0.0
    while True:
        end = await database.value(_END_OF_PAGE, since=since, until=until)
        if end is None:
            return emptied
        page = {"since": since, "until": end}
        emptied += await database.write(
            lambda c, page=page: c.execute(_EMPTY_RECEIPTS, page).rowcount  # type: ignore[misc]
        )
        since = end


@value_class
class _Expired:
    """The rows of a table that are older than a moment and fulfil a condition."""

    table: Table
    time: ColumnElement[float] | ColumnElement[float | None]
    moment: float
    condition: ColumnElement[bool]


def _delete_rows(connection: Connection, table: Table, ids: Sequence[int]) -> int:
    if table is outbox:
        ids = _of_complete_turns(connection, ids)
        connection.execute(_KEEP_MESSAGE_IDS[connection.dialect.name], {"ids": ids})
    return connection.execute(delete(table).where(table.c.id.in_(ids))).rowcount


def _of_complete_turns(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Return the rows of complete turns: an edit that is still to come needs the message's id."""
    rows = connection.execute(_TURNS, {"ids": ids}).all()
    turns = {row.turn for row in rows}
    incomplete = set(connection.execute(_UNSENT_TURNS, {"turns": list(turns)}).scalars())
    for platform, bot_id in {(row.platform, row.bot_id) for row in rows}:
        source = f"{source_name(platform, bot_id)}:"  # as `InboxMessage.turn` spells it
        keys = [turn.removeprefix(source) for turn in turns if turn.startswith(source)]
        asked = {"of_platform": platform, "of_bot": bot_id, "keys": keys}
        unanswered = connection.execute(_UNANSWERED_KEYS, asked).scalars()
        incomplete.update(f"{source}{key}" for key in unanswered)
    return [row.id for row in rows if row.turn not in incomplete]


async def _delete(database: Database, expired: _Expired) -> int:
    """Read a table from its oldest row to the first one that is young, page by page.

    Ids grow with time, so only rows that are old are read: the table may be large.
    """
    table, deleted, last = expired.table, 0, 0
    is_expired = case((and_(expired.time < expired.moment, expired.condition), 1), else_=0)
    page = (
        select(table.c.id, expired.time.label("time"), is_expired.label("is_expired"))
        .where(table.c.id > bindparam("last"))
        .order_by(table.c.id)
        .limit(_ROWS_PER_PAGE)
    )
    while True:
        rows = await database.rows(page, last=last)
        ids = [row.id for row in rows if row.is_expired]
        if ids:
            deleted += await database.write(lambda c, ids=ids: _delete_rows(c, table, ids))  # type: ignore[misc]
        if not rows or any(row.time is not None and row.time >= expired.moment for row in rows):
            return deleted
        last = rows[-1].id


_PAGE = (
    select(turn.c.id, turn.c.conversation, turn.c.session, turn.c.at, turn.c.sent_as)
    .where(turn.c.id > bindparam("last"))
    .order_by(turn.c.id)
    .limit(_ROWS_PER_PAGE)
)
_KEY = conversation.c.key == bindparam("of")
_EXISTS = select(conversation.c.key).where(_KEY)
# What processes know of the history holds under the next epoch only: they read it again.
_SKIP_EPOCH = (
    update(conversation)
    .where(_KEY, conversation.c.ready_since.is_(None))
    .values(epoch=conversation.c.epoch + 1)
)
_DELETE_TURNS = delete(turn).where(turn.c.id.in_(bindparam("ids", expanding=True)))
_DELETE_SUMMARIES = delete(summary).where(
    summary.c.conversation == bindparam("of"),
    summary.c.session.in_(bindparam("sessions", expanding=True)),
)
_DELETE_SENT = delete(sent_message).where(
    sent_message.c.conversation == bindparam("channel"),
    sent_message.c.turn.in_(bindparam("names", expanding=True)),
)


def kept_since(clock: Clock, days: float | None) -> float:
    """Return from which moment on what is said is kept, in Unix seconds.

    That is 00:00 UTC of the day so many days ago; where it is kept for ever (None), -inf.
    """
    return -math.inf if days is None else _begin_of_day(clock.now(), days)


def _begin_of_day(now: float, days_before: float) -> float:
    return (now - days_before * _DAY) // _DAY * _DAY


async def delete_expired_turns(database: Database, clock: Clock, days: float) -> int:
    """Delete what was said more than so many days before today (UTC); return how many turns.

    A summary that covers a deleted turn is deleted with it, so histories are cut once a day. Where
    a message is being answered, it is done the next time.

    Raises:
        StoreError: the database failed.
    """
    moment = _begin_of_day(await database.now(clock), days)
    deleted = last = 0
    while True:
        rows = await database.rows(_PAGE, last=last)
        for key, expired in _by_conversation(rows, moment).items():
            deleted += await database.write(
                lambda c, key=key, expired=expired: _delete_turns_of(c, key, expired)  # type: ignore[misc]
            )
        # Ids grow with time: what follows on a row that is young is younger.
        if not rows or rows[-1].at >= moment:
            return deleted
        last = rows[-1].id


def _by_conversation(rows: Sequence[Row[Any]], moment: float) -> Mapping[str, list[Row[Any]]]:
    found: dict[str, list[Row[Any]]] = {}
    for row in rows:
        if row.at < moment:
            found.setdefault(row.conversation, []).append(row)
    return found


def _delete_turns_of(connection: Connection, key: str, expired: Sequence[Row[Any]]) -> int:
    is_idle = connection.execute(_SKIP_EPOCH, {"of": key}).rowcount > 0
    if not is_idle and connection.execute(_EXISTS, {"of": key}).first() is not None:
        return 0
    sessions = {row.session for row in expired}
    connection.execute(_DELETE_SUMMARIES, {"of": key, "sessions": list(sessions)})
    parts = (row.sent_as or "" for row in expired)
    names = {name.rpartition("/")[0] for one in parts for name in one.split("\n") if name}
    channel = address_of(key).channel
    connection.execute(_DELETE_SENT, {"channel": channel, "names": list(names)})
    return connection.execute(_DELETE_TURNS, {"ids": [row.id for row in expired]}).rowcount
