"""The outbox. A lane is a chat's queue of messages, sent in order by one sender at a time.

A lane is due at `due_at`; a sender that takes it moves that time to the end of its lease, so that
if it dies, the lane becomes due again by itself. Each row names the sender and the attempt that
hold it, and only these may change the row: a sender that wakes up late is refused.
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
from bot.storage.database import ClockStore, Database, Moment, current_moment, reading, transaction
from bot.storage.functions import FUNCTIONS
from bot.storage.rows import (
    NO_MESSAGE,
    address_columns,
    decode,
    decode_content,
    decode_target,
    encode_content,
)
from bot.storage.statements import SQL, Rows, Unit, encode_sources
from bot.value_class import value_class

SENDING_SECONDS = 20.0  # statements.sql says it, too
"""The lease of a row; a request ends within half of it, or its sender drops it."""
_NOTICE_PART = 10_000
"""Parts from this number on are notices that another part could not be delivered."""
_MAX_KNOWN_IDS = 1000  # of a chat: more messages of ours than a probe ever looks back over
_MAX_REASON = 500  # characters


@value_class
class SenderIdentity:
    """A sender's name, and how late its platforms may accept an abandoned request."""

    owner: str
    settle_seconds: float


class SqlOutbox(ClockStore):
    def __init__(self, database: Database, clock: Clock, sender: SenderIdentity) -> None:
        super().__init__(database, clock)
        self._sender = sender

    @transaction
    def due_lanes(self, limit: int, sources: Collection[str]) -> Unit[Sequence[str]]:
        """Return the lanes whose first unsent row is due and not held."""
        asked = {"served": encode_sources(sources), "most": limit, "now": self._clock.now()}
        rows = yield SQL["due_lanes"].query_alone(asked)
        return [row[0] for row in rows]

    @transaction
    def take_due(self, lanes: Sequence[str]) -> Unit[Sequence[OutboxRow]]:
        """Take the first unsent row of each of these lanes, if due.

        A pending row is committed as `sending` before it is returned (its `state` still says
        pending). A row with an unknown outcome, or whose sender's lease has ended, is returned as
        it is, to be reconciled.
        """
        at = current_moment(self._clock)
        ordered = sorted(lanes)  # in one order, so that nobody deadlocks
        if not self._database.is_sqlite:
            asked = {"lanes": ordered, **identity(self._sender)}
            rows = yield FUNCTIONS["take"].call.query_alone(asked)
            return [row for row in (decode_taken_row(columns, at) for columns in rows) if row]
        taken = []
        for key in ordered:
            leased = yield SQL["take_lane"].query(of=key, now=at.now)
            row = (yield from _take_leased(key, self._sender, leased, at)) if leased else None
            if row is not None:
                taken.append(row)
        return taken

    @transaction
    def mark_sent(self, row: OutboxRow, external_id: str | None) -> Unit[OutboxRow | None]:
        """Mark a row as sent, with this id unless it is a change; take the lane's next row."""
        at = current_moment(self._clock)
        if self._database.is_sqlite:
            [lane] = yield from self._change_row("end_sent_row", row, arrived_as=external_id)
            return (yield from _take_next_alone(lane, self._sender, at))
        sent = {"row": row.id, "attempt": row.attempts, "arrived_as": external_id}
        values = {**sent, "lane": row.address.lane, **identity(self._sender)}
        [[held, *following]] = yield FUNCTIONS["sent"].call.query_alone(values)
        if not held:
            raise self._fenced_error(row)
        return decode_taken_row(following, at)

    @transaction
    def mark_dead(self, row: OutboxRow, reason: str) -> Unit[OutboxRow | None]:
        """Record that the platform permanently refused a row, and take the lane's next row."""
        at = current_moment(self._clock)
        key = yield from self._give_up_row(row, reason)
        return (yield from _take_next(key, self._sender, at))

    @transaction
    def send_again(self, row: OutboxRow, reason: str, *, is_gone: bool) -> Unit[OutboxRow | None]:
        """Give up a refused edit, and send its part as a new message with the new text.

        Unless its message is gone, the part's row keeps the id of the message to replace. Returns
        the lane's next row, which is that part unless we deleted it.
        """
        at = current_moment(self._clock)
        key = yield from self._give_up_row(row, reason)
        if (yield SQL["deletion_of"].query(of=key, message=row.external_id)):
            return (yield from _take_next(key, self._sender, at))
        [[turn, part]] = yield SQL["changed_part"].query(row=row.id)
        content = encode_content(row.content, row.thread)
        replaced = {"replaced": None if is_gone else row.external_id}
        yield SQL["send_again"].query({"of_turn": turn, "of_part": part, **replaced, **content})
        return (yield from _take_next(key, self._sender, at))

    @transaction
    def set_aside(self, row: OutboxRow, reason: str, notice: str) -> Unit[OutboxRow | None]:
        """Give up a row, queue one notice (empty: none), take the lane's next row.

        For a private row, the notice goes to the channel where its reader has asked.
        """
        at, private = current_moment(self._clock), row.private
        where = parse_address(private.group) if private and private.group else row.address
        yield from _lock_lanes(where.lane, row.address.lane)
        key = yield from self._give_up_row(row, reason)
        if private is not None:
            yield SQL["empty_row"].query(row=row.id)
        if notice and row.part < _NOTICE_PART:
            values = _notice_values(row, notice, where)
            yield SQL["queue_once"].query(values)
            if where.lane != key:
                yield from make_due(values, None, at)
        return (yield from _take_next(key, self._sender, at))

    @transaction
    def edit_opened(self, row: OutboxRow, external_id: str) -> Unit[OutboxRow | None]:
        """Make a row that was opened without its content an edit, and take it again."""
        at = current_moment(self._clock)
        yield SQL["lock_lane"].query(of=row.address.lane)
        [lane] = yield from self._change_row("edit_opened_row", row, arrived_as=external_id)
        return (yield from _take_next(lane, self._sender, at))

    @transaction
    def move(self, row: OutboxRow, private: PrivateDelivery, to: Address) -> Unit[OutboxRow | None]:
        """Move a row that is in no channel yet to a private chat, and take its lane's next row."""
        at, key, where = current_moment(self._clock), row.address.lane, address_columns(to)
        yield from _lock_lanes(key, to.lane)
        buttons = encode_content(row.content, private=private)["buttons"]
        yield from self._change_row("move_row", row, **where, buttons=buttons)
        yield from make_due(where, None, at)
        return (yield from _take_next(key, self._sender, at))

    @transaction
    def mark_unknown(self, row: OutboxRow, seconds: float) -> Unit[None]:
        """Record that a row may have been sent, and reconcile it after this time."""
        yield from self._postpone(row, OutboxState.UNKNOWN, seconds)

    @transaction
    def reschedule(self, row: OutboxRow, seconds: float) -> Unit[None]:
        """Record that a row was certainly not sent, and retry it after this time."""
        yield from self._postpone(row, OutboxState.PENDING, seconds)

    @transaction
    def release_all(self) -> Unit[None]:
        """Release everything left by a previous run of this sender."""
        yield SQL["release_lanes"].query(sender=self._sender.owner, now=self._clock.now())

    @reading
    def has_later(self, row: OutboxRow) -> Unit[bool]:
        """Whether its lane contains more to send after a row."""
        return bool((yield SQL["later_row"].query_alone(of=row.address.lane, row=row.id)))

    @transaction
    def sent_ids(self, row_ids: Collection[int]) -> Unit[Mapping[int, str | None]]:
        """The messages of finished rows; None for a row that will never be sent."""
        rows = yield SQL["sent_ids"].query_alone(ids=json.dumps(sorted(row_ids)))
        return {row: None if state == OutboxState.DEAD else sent for row, state, sent in rows}

    @transaction
    def find_message_id(self, part: str) -> Unit[str | None]:
        """The id of the message that a part was sent as, by the part's name; None if unsent."""
        return (yield from histories.find_parts([part])).get(part)

    @reading
    def known_ids(self, address: Address) -> Unit[Set[str]]:
        """The ids of this chat's messages that are accounted for."""
        rows = yield SQL["known_ids"].query_alone(of=address.lane, most=_MAX_KNOWN_IDS)
        return {row[0] for row in rows}

    @transaction
    def hold_lane(self, lane: str) -> Unit[float | None]:
        """Hold a lane without a row for the length of a lease, so that nobody else sends.

        Returns the lease's end in Unix seconds, for `release_lane`; None if somebody is sending, or
        a row's outcome is unknown.
        """
        leased = yield SQL["hold_settled_lane"].query(of=lane, now=self._clock.now())
        return leased[0][0] if leased else None

    @transaction
    def release_lane(self, lane: str, held: float) -> Unit[None]:
        """Release a lane if it is still held by this lease; otherwise change nothing."""
        # Rows queued from now on wait for this unit.
        if not (yield SQL["empty_held_lane"].query(of=lane, held=held)):
            return
        if (yield SQL["unsent_row"].query(of=lane)):
            yield SQL["make_due_now"].query(of=lane, now=self._clock.now())

    def _change_row(self, name: str, row: OutboxRow, **values: object) -> Unit[Sequence[Any]]:
        """Change a row with a statement; raises `Fenced` unless this sender still holds it."""
        held = {"row": row.id, "sender": self._sender.owner, "attempt": row.attempts}
        changed = yield SQL[name].query({**held, **values})
        if not changed:
            raise self._fenced_error(row)
        return changed[0]

    def _give_up_row(self, row: OutboxRow, reason: str) -> Unit[str]:
        """Mark a row as dead and return its lane."""
        yield SQL["lock_lane"].query(of=row.address.lane)
        [lane] = yield from self._change_row("end_dead_row", row, error=reason[:_MAX_REASON])
        return str(lane)

    def _postpone(self, row: OutboxRow, state: OutboxState, seconds: float) -> Unit[None]:
        """Give a row back, due after some seconds by the clock used for leases.

        With its own clock, a slow sender would look up an unknown outcome before the platform has
        settled it.
        """
        yield SQL["lock_lane"].query(of=row.address.lane)
        due = {"becomes": state, "seconds": seconds, "now": self._clock.now()}
        key, moment = yield from self._change_row("put_off_row", row, **due)
        yield SQL["postpone_lane"].query(of=key, moment=moment)

    def _fenced_error(self, row: OutboxRow) -> Fenced:
        return Fenced(f"outbox row {row.id} is held by another sender than {self._sender.owner}")


def queue(
    rows: Sequence[dict[str, Any]], sender: SenderIdentity | None, at: Moment
) -> Unit[OutboxRow | None]:
    """Append rows, which may replace messages; if the lane is free, take its first row."""
    is_in_place = "target_turn" in rows[0]
    yield (SQL["queue_in_place"] if is_in_place else SQL["queue_row"]).query_many(rows)
    return (yield from make_due(rows[0], sender, at))


def make_due(
    row: dict[str, Any], sender: SenderIdentity | None, at: Moment
) -> Unit[OutboxRow | None]:
    """Take the first unsent row of a row's lane, or make the lane due."""
    lane = {"key": row["lane"], "platform": row["platform"], "bot_id": row["bot_id"]}
    if sender is None:
        yield SQL["make_due"].query({**lane, "now": at.now})
        return None
    leased = yield SQL["make_due_and_take"].query({**lane, "now": at.now})
    return (yield from _take_leased(row["lane"], sender, leased, at)) if leased else None


def _take_next(key: str, sender: SenderIdentity, at: Moment) -> Unit[OutboxRow | None]:
    """Take the first unsent row of a lane that this sender holds."""
    yield SQL["empty_lane"].query(of=key)  # rows queued from now on wait for this unit
    head = yield SQL["head"].query(of=key)
    if not head:
        return None
    leased = yield SQL["hold_lane"].query(of=key, now=at.now)
    return (yield from _begin_sending(head, key, sender, leased, at))


def _take_next_alone(key: str, sender: SenderIdentity, at: Moment) -> Unit[OutboxRow | None]:
    """Like `_take_next`, in one statement if nothing follows; SQLite runs one unit at a time."""
    leased = yield SQL["hold_or_empty_lane"].query(of=key, now=at.now)
    if leased[0][0] is None:
        return None
    head = yield SQL["head"].query(of=key)
    return (yield from _begin_sending(head, key, sender, leased, at))


def _take_leased(
    key: str, sender: SenderIdentity, leased: Rows, at: Moment
) -> Unit[OutboxRow | None]:
    head = yield SQL["head"].query(of=key)
    if not head:
        yield SQL["empty_lane"].query(of=key)
        return None
    return (yield from _begin_sending(head, key, sender, leased, at))


def _begin_sending(
    head: Rows, key: str, sender: SenderIdentity, leased: Rows, at: Moment
) -> Unit[OutboxRow | None]:
    """Begin to send a lane's first row, or wait until it may be sent."""
    now = leased[0][0] - SENDING_SECONDS  # by the clock of the database
    row, not_before, started_at = _to_row(tuple(head[0]), at)
    if row.state is OutboxState.SENDING:  # its sender died
        row = replace(row, state=OutboxState.UNKNOWN)
        not_before = max(not_before, (started_at or 0.0) + sender.settle_seconds)
        yield SQL["lose_row"].query(row=row.id, moment=not_before)
    if not_before > now:
        yield SQL["postpone_lane"].query(of=key, moment=not_before)
        return None
    is_new = row.state is OutboxState.PENDING
    begun, started = (OutboxState.SENDING, now) if is_new else (row.state, started_at)
    yield SQL["begin_row"].query(row=row.id, begun=begun, sender=sender.owner, started=started)
    return row


def decode_taken_row(columns: Sequence[Any], at: Moment) -> OutboxRow | None:
    """Decode the row taken by a database function, if any."""
    return None if columns[0] is None else _to_row(tuple(columns), at)[0]


def _notice_values(row: OutboxRow, text: str, where: Address) -> dict[str, object]:
    # All private parts of a turn are told of once.
    part = _NOTICE_PART + (0 if row.private else row.part)
    named = {"turn": row.turn, "part": part, "op": OutboxOperation.SEND}
    reply_to = row.private.reply_to if row.private else row.reply_to
    content = {**NO_MESSAGE, **encode_content(MessageContent(text)), "reply_to": reply_to}
    return {**named, **address_columns(where), **content}


def _lock_lanes(*keys: str) -> Unit[None]:
    for key in sorted({*keys}):  # in one order, so that nobody deadlocks
        yield SQL["lock_lane"].query(of=key)


def identity(sender: SenderIdentity | None) -> dict[str, object]:
    if sender is None:
        return {"sender": None, "settle": None}
    return {"sender": sender.owner, "settle": sender.settle_seconds}


def _to_row(columns: tuple[Any, ...], at: Moment) -> tuple[OutboxRow, float, float | None]:
    """Decode a head, `not_before` and `started_at`; an unreadable row contains the reason."""
    try:
        return decode(lambda one: _read_row(one, at), columns)
    except Undecodable as error:
        id_, turn, part, _, platform, bot_id, chat, thread, *_, attempts = columns[:13]
        part, attempts = (one if isinstance(one, int) else 0 for one in (part, attempts))
        row = OutboxRow(
            *(id_, turn, Address(platform, chat, thread, bot_id), part, OutboxOperation.SEND),
            content=MessageContent(""),
            reply_to=None,
            interaction=None,
            state=OutboxState.PENDING,
            attempts=attempts + 1,
            external_id=None,
            not_before=0.0,
            send_before=at.monotonic + SENDING_SECONDS / 2,
            problem=str(error),
        )
        return row, 0.0, None


def _read_row(columns: tuple[Any, ...], at: Moment) -> tuple[OutboxRow, float, float | None]:
    id_, turn, part, op, platform, bot_id, chat, thread, text, *others = columns
    reply_to, interaction, state, attempts, not_before, file_name, file_text, *others = others
    face, buttons, started_at, external_id = others
    if not isinstance(part, int) or bytes in map(type, columns):
        raise TypeError(part)  # SQLite keeps values of any type
    thread_to_open, private = decode_target(buttons)
    row = OutboxRow(
        id=id_,
        turn=turn,
        address=Address(platform, chat, thread, bot_id),
        part=part,
        op=OutboxOperation(op),
        content=decode_content(text, face, buttons),
        reply_to=reply_to,
        interaction=interaction,
        state=OutboxState(state),
        attempts=attempts + 1,
        external_id=external_id,
        not_before=not_before,
        file=None if file_name is None else Attachment(file_name, file_text),
        thread=thread_to_open,
        private=private,
        send_before=at.monotonic + SENDING_SECONDS / 2,
    )
    return row, float(not_before), None if started_at is None else float(started_at)
