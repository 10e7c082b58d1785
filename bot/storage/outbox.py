"""The outbox: queued sends, edits and deletions.

A lane is the queue of one chat, sent in order by one sender at a time. `due_at` is when the lane
is due. A sender that takes a lane sets `due_at` to the end of its lease, so that the lane is due
again if the sender dies. Each row records the sender and attempt that hold it; only they may change
the row.
"""

import json
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from bot.chat.incoming import Address, parse_address
from bot.chat.outgoing import (
    Attachment,
    MessageContent,
    OutboxOperation,
    OutboxRow,
    OutboxState,
    PrivateDelivery,
)
from bot.errors import Fenced, Undecodable
from bot.ports import Clock
from bot.storage import histories
from bot.storage.database import ClockStore, Database, Moment, read_clock, run_readonly, transaction
from bot.storage.functions import SQL_FUNCTIONS
from bot.storage.rows import NO_CONTENT, decode, decode_content, encode_content, to_address_columns
from bot.storage.statements import SQL, Rows, Unit, encode_sources
from bot.value_class import value_class

ROW_LEASE_SECONDS = 20.0  # also written in statements.sql
"""The lease of a row; a sender gives up a request after half of this time."""
_FIRST_NOTICE_PART = 10_000
"""Parts from this number on are notices about parts that could not be delivered."""
_MAX_KNOWN_MESSAGE_IDS = 1000  # of a chat; more than a search ever covers
_MAX_REASON_CHARS = 500


@value_class
class SenderIdentity:
    """A sender's name, and how long its platforms may take to execute an abandoned request."""

    owner: str
    settle_seconds: float


class SqlOutbox(ClockStore):
    def __init__(self, database: Database, clock: Clock, sender: SenderIdentity) -> None:
        super().__init__(database, clock)
        self._sender = sender

    @transaction
    def list_due_lanes(self, limit: int, sources: Collection[str]) -> Unit[Sequence[str]]:
        """Return up to `limit` chat queues (lanes) whose first row is due and unclaimed."""
        values = {"served": encode_sources(sources), "most": limit, "now": self._clock.now()}
        rows = yield SQL["due_lanes"].query_alone(values)
        return [row[0] for row in rows]

    @transaction
    def reserve_due_rows(self, lanes: Sequence[str]) -> Unit[Sequence[OutboxRow]]:
        """Reserve each chat's first row if it is due. UNKNOWN rows may already have been sent."""
        at = read_clock(self._clock)
        ordered_lanes = sorted(lanes)  # in a fixed order, to avoid deadlocks
        if not self._database.is_sqlite:
            values = {"lanes": ordered_lanes, **sender_values(self._sender)}
            rows = yield SQL_FUNCTIONS["take"].call.query_alone(values)
            return [row for row in (decode_reserved_row(columns, at) for columns in rows) if row]
        reserved_rows = []
        for key in ordered_lanes:
            leases = yield SQL["take_lane"].query(of=key, now=at.now)
            row = (yield from _reserve_first_row(key, self._sender, leases, at)) if leases else None
            if row is not None:
                reserved_rows.append(row)
        return reserved_rows

    @transaction
    def mark_sent(self, row: OutboxRow, external_id: str | None) -> Unit[OutboxRow | None]:
        """Mark a row as sent, with the new message's id. Reserve and return its chat's next row."""
        at = read_clock(self._clock)
        if self._database.is_sqlite:
            [lane] = yield from self._change_row("end_sent_row", row, arrived_as=external_id)
            return (yield from _reserve_row_on_sqlite(lane, self._sender, at))
        sent_values = {"row": row.id, "attempt": row.attempt_count, "arrived_as": external_id}
        values = {**sent_values, "lane": row.address.lane, **sender_values(self._sender)}
        [[is_row_held, *next_row]] = yield SQL_FUNCTIONS["sent"].call.query_alone(values)
        if not is_row_held:
            raise self._fenced_error(row)
        return decode_reserved_row(next_row, at)

    @transaction
    def queue_as_new_message(
        self, row: OutboxRow, reason: str, *, is_message_gone: bool
    ) -> Unit[OutboxRow | None]:
        """Give up a refused edit, and queue its content as a new message instead.

        The new message will replace the old one, unless that no longer exists (`is_message_gone`).
        Reserves and returns the chat's next row.
        """
        at = read_clock(self._clock)
        lane_key = yield from self._give_up_row(row, reason)
        if not (yield SQL["deletion_of"].query(of=lane_key, message=row.external_id)):
            [[turn, part]] = yield SQL["changed_part"].query(row=row.id)
            content = encode_content(row.content, row.thread)
            replaced_id = None if is_message_gone else row.external_id
            values = {"of_turn": turn, "of_part": part, "replaced": replaced_id, **content}
            yield SQL["send_again"].query(values)
        return (yield from _reserve_next_row(lane_key, self._sender, at))

    @transaction
    def give_up(self, row: OutboxRow, reason: str, notice: str = "") -> Unit[OutboxRow | None]:
        """Give up a row; queue the notice, if any; reserve and return the chat's next row."""
        at, delivery = read_clock(self._clock), row.private_delivery
        notice_address = (
            parse_address(delivery.group) if delivery and delivery.group else row.address
        )
        yield from _lock_lanes(notice_address.lane, row.address.lane)
        lane_key = yield from self._give_up_row(row, reason)
        if delivery is not None:
            yield SQL["empty_row"].query(row=row.id)
        if notice and row.part_number < _FIRST_NOTICE_PART:
            # All private parts of a turn share one notice.
            part = _FIRST_NOTICE_PART + (0 if delivery else row.part_number)
            row_key = {"turn": row.turn_name, "part": part, "op": OutboxOperation.SEND}
            reply_to = delivery.reply_to if delivery else row.reply_to
            content = {**NO_CONTENT, **encode_content(MessageContent(notice)), "reply_to": reply_to}
            values = {**row_key, **to_address_columns(notice_address), **content}
            yield SQL["queue_once"].query(values)
            if notice_address.lane != lane_key:
                yield from reserve_first_row_or_schedule(values, None, at)
        return (yield from _reserve_next_row(lane_key, self._sender, at))

    @transaction
    def turn_into_edit(self, row: OutboxRow, external_id: str) -> Unit[OutboxRow | None]:
        """Turn a row into an edit of the empty message sent for it, and reserve it again."""
        at = read_clock(self._clock)
        yield SQL["lock_lane"].query(of=row.address.lane)
        [lane] = yield from self._change_row("edit_opened_row", row, arrived_as=external_id)
        return (yield from _reserve_next_row(lane, self._sender, at))

    @transaction
    def move_to_private_chat(
        self, row: OutboxRow, delivery: PrivateDelivery, address: Address
    ) -> Unit[OutboxRow | None]:
        """Move an unsent row to a private chat. Reserve and return the old chat's next row."""
        at, key = read_clock(self._clock), row.address.lane
        columns = to_address_columns(address)
        yield from _lock_lanes(key, address.lane)
        buttons = encode_content(row.content, private_delivery=delivery)["buttons"]
        yield from self._change_row("move_row", row, **columns, buttons=buttons)
        yield from reserve_first_row_or_schedule(columns, None, at)
        return (yield from _reserve_next_row(key, self._sender, at))

    @transaction
    def mark_unknown(self, row: OutboxRow, seconds: float) -> Unit[None]:
        """Record that a row may have been sent, and schedule the search for its message."""
        yield from self._postpone_row(row, OutboxState.UNKNOWN, seconds)

    @transaction
    def reschedule(self, row: OutboxRow, seconds: float) -> Unit[None]:
        """Record that a row was certainly not sent, and schedule the next attempt."""
        yield from self._postpone_row(row, OutboxState.PENDING, seconds)

    @transaction
    def release_all(self) -> Unit[None]:
        """Release all chat queues (lanes) that a previous run of this sender still holds."""
        yield SQL["release_lanes"].query(sender=self._sender.owner, now=self._clock.now())

    @run_readonly
    def has_later_rows(self, row: OutboxRow) -> Unit[bool]:
        """Return whether this row is followed by other unsent rows of the same chat."""
        return bool((yield SQL["later_row"].query_alone(of=row.address.lane, row=row.id)))

    @run_readonly
    def has_message(self, turn: str) -> Unit[bool]:
        """Return whether a turn has a message that is not deleted."""
        return bool((yield SQL["kept_message"].query_alone(of_turn=turn)))

    @transaction
    def find_sent_ids(self, row_ids: Collection[int]) -> Unit[Mapping[int, str | None]]:
        """Return the message id of each finished row; None if the row will never be sent."""
        rows = yield SQL["sent_ids"].query_alone(ids=json.dumps(sorted(row_ids)))
        return {row: None if state == OutboxState.DEAD else sent_id for row, state, sent_id in rows}

    @transaction
    def find_message_id(self, part: str) -> Unit[str | None]:
        """Return the id of the message that shows a part of an answer, or None if not sent yet."""
        return (yield from histories.find_part_message_ids([part])).get(part)

    @run_readonly
    def list_message_ids(self, address: Address) -> Unit[Set[str]]:
        """Return the ids of messages in this chat that are recorded in outbox rows."""
        rows = yield SQL["known_ids"].query_alone(of=address.lane, most=_MAX_KNOWN_MESSAGE_IDS)
        return {row[0] for row in rows}

    @transaction
    def hold_lane(self, lane: str) -> Unit[float | None]:
        """Lease a chat queue; return the lease's end (Unix time), or None if a row is in flight."""
        lease_rows = yield SQL["hold_settled_lane"].query(of=lane, now=self._clock.now())
        return lease_rows[0][0] if lease_rows else None

    @transaction
    def release_lane(self, lane: str, lease_end: float) -> Unit[None]:
        """Release a lane unless its lease by `hold_lane`, which ends at `lease_end`, is over."""
        # From here on, other units that queue rows must wait.
        if not (yield SQL["empty_held_lane"].query(of=lane, held=lease_end)):
            return
        if (yield SQL["unsent_row"].query(of=lane)):
            yield SQL["make_due_now"].query(of=lane, now=self._clock.now())

    def _change_row(self, statement: str, row: OutboxRow, **values: object) -> Unit[Sequence[Any]]:
        """Run a statement on a row; raises `Fenced` if this sender does not hold the row."""
        row_values = {"row": row.id, "sender": self._sender.owner, "attempt": row.attempt_count}
        changed_rows = yield SQL[statement].query({**row_values, **values})
        if not changed_rows:
            raise self._fenced_error(row)
        return changed_rows[0]

    def _give_up_row(self, row: OutboxRow, reason: str) -> Unit[str]:
        """Mark a row as dead, and return the key of its chat's queue (lane)."""
        yield SQL["lock_lane"].query(of=row.address.lane)
        [lane] = yield from self._change_row("end_dead_row", row, error=reason[:_MAX_REASON_CHARS])
        return str(lane)

    def _postpone_row(self, row: OutboxRow, state: OutboxState, seconds: float) -> Unit[None]:
        """Make a row due in some seconds, by the clock used for leases, not by the sender's."""
        yield SQL["lock_lane"].query(of=row.address.lane)
        values = {"becomes": state, "seconds": seconds, "now": self._clock.now()}
        lane_key, due_at = yield from self._change_row("put_off_row", row, **values)
        yield SQL["postpone_lane"].query(of=lane_key, moment=due_at)

    def _fenced_error(self, row: OutboxRow) -> Fenced:
        return Fenced(f"outbox row {row.id} is held by a sender other than {self._sender.owner}")


def queue_rows(
    rows: Sequence[dict[str, Any]], sender: SenderIdentity | None, at: Moment
) -> Unit[OutboxRow | None]:
    """Append rows to a chat's queue; if no sender holds it, reserve and return its first row."""
    replaces_messages = "target_turn" in rows[0]
    yield (SQL["queue_in_place"] if replaces_messages else SQL["queue_row"]).query_many(rows)
    return (yield from reserve_first_row_or_schedule(rows[0], sender, at))


def reserve_first_row_or_schedule(
    row: dict[str, Any], sender: SenderIdentity | None, at: Moment
) -> Unit[OutboxRow | None]:
    """Schedule a chat's queue for now; if this process sends, reserve its first row instead."""
    lane_values = {"key": row["lane"], "platform": row["platform"], "bot_id": row["bot_id"]}
    if sender is None:
        yield SQL["make_due"].query({**lane_values, "now": at.now})
        return None
    leases = yield SQL["make_due_and_take"].query({**lane_values, "now": at.now})
    return (yield from _reserve_first_row(row["lane"], sender, leases, at)) if leases else None


def _reserve_next_row(key: str, sender: SenderIdentity, at: Moment) -> Unit[OutboxRow | None]:
    """Reserve and return the first unsent row of a chat's queue that this sender holds."""
    yield SQL["empty_lane"].query(of=key)  # from here on, other units that queue rows must wait
    head_rows = yield SQL["head"].query(of=key)
    if not head_rows:
        return None
    leases = yield SQL["hold_lane"].query(of=key, now=at.now)
    return (yield from _begin_sending(head_rows, key, sender, leases, at))


def _reserve_row_on_sqlite(key: str, sender: SenderIdentity, at: Moment) -> Unit[OutboxRow | None]:
    """Do the same as `_reserve_next_row`, with only one statement if the queue is empty."""
    leases = yield SQL["hold_or_empty_lane"].query(of=key, now=at.now)
    if leases[0][0] is None:
        return None
    head_rows = yield SQL["head"].query(of=key)
    return (yield from _begin_sending(head_rows, key, sender, leases, at))


def _reserve_first_row(
    key: str, sender: SenderIdentity, lease_rows: Rows, at: Moment
) -> Unit[OutboxRow | None]:
    head_rows = yield SQL["head"].query(of=key)
    if not head_rows:
        yield SQL["empty_lane"].query(of=key)
        return None
    return (yield from _begin_sending(head_rows, key, sender, lease_rows, at))


def _begin_sending(
    head_rows: Rows, key: str, sender: SenderIdentity, lease_rows: Rows, at: Moment
) -> Unit[OutboxRow | None]:
    """Reserve and return a chat's first row; if it is too early to send, postpone the chat."""
    now = lease_rows[0][0] - ROW_LEASE_SECONDS  # by the database's clock
    row, not_before, started_at = _to_row(tuple(head_rows[0]), at)
    if row.state is OutboxState.SENDING:  # its sender died
        row = replace(row, state=OutboxState.UNKNOWN)
        not_before = max(not_before, (started_at or 0.0) + sender.settle_seconds)
        yield SQL["lose_row"].query(row=row.id, moment=not_before)
    if not_before > now:
        yield SQL["postpone_lane"].query(of=key, moment=not_before)
        return None
    is_new = row.state is OutboxState.PENDING
    state, started_at = (OutboxState.SENDING, now) if is_new else (row.state, started_at)
    yield SQL["begin_row"].query(row=row.id, begun=state, sender=sender.owner, started=started_at)
    return row


def decode_reserved_row(columns: Sequence[Any], at: Moment) -> OutboxRow | None:
    """Decode the row reserved by a database function, or return None if there is none."""
    return None if columns[0] is None else _to_row(tuple(columns), at)[0]


def _lock_lanes(*keys: str) -> Unit[None]:
    for key in sorted({*keys}):  # in a fixed order, to avoid deadlocks
        yield SQL["lock_lane"].query(of=key)


def sender_values(sender: SenderIdentity | None) -> dict[str, object]:
    if sender is None:
        return {"sender": None, "settle": None}
    return {"sender": sender.owner, "settle": sender.settle_seconds}


def _to_row(columns: tuple[Any, ...], at: Moment) -> tuple[OutboxRow, float, float | None]:
    """Return the row, `not_before` and `started_at`; an error becomes the row's `problem`."""
    try:
        return decode(lambda one: _read_row(one, at), columns)
    except Undecodable as error:
        id_, turn, part, _, platform, bot_id, chat, thread, *_, attempt_count = columns[:13]
        part, attempt_count = (one if isinstance(one, int) else 0 for one in (part, attempt_count))
        row = OutboxRow(
            *(id_, turn, Address(platform, chat, thread, bot_id), part, OutboxOperation.SEND),
            content=MessageContent(""),
            reply_to=None,
            interaction=None,
            state=OutboxState.PENDING,
            attempt_count=attempt_count + 1,
            external_id=None,
            send_deadline=at.monotonic + ROW_LEASE_SECONDS / 2,
            decode_error=str(error),
        )
        return row, 0.0, None


def _read_row(columns: tuple[Any, ...], at: Moment) -> tuple[OutboxRow, float, float | None]:
    id_, turn, part, operation, platform, bot_id, chat, thread, text, *rest = columns
    reply_to, interaction, state, attempt_count, not_before, file_name, file_text, *rest = rest
    face, buttons, started_at, external_id = rest
    if not isinstance(part, int) or bytes in map(type, columns):
        raise TypeError(part)  # SQLite keeps values of any type
    content, answer_thread, private_delivery = decode_content(text, face, buttons)
    row = OutboxRow(
        id=id_,
        turn_name=turn,
        address=Address(platform, chat, thread, bot_id),
        part_number=part,
        operation=OutboxOperation(operation),
        content=content,
        reply_to=reply_to,
        interaction=interaction,
        state=OutboxState(state),
        attempt_count=attempt_count + 1,
        external_id=external_id,
        file=None if file_name is None else Attachment(file_name, file_text),
        thread=answer_thread,
        private_delivery=private_delivery,
        send_deadline=at.monotonic + ROW_LEASE_SECONDS / 2,
    )
    return row, float(not_before), None if started_at is None else float(started_at)
