"""Finish a message: mark it as answered, append its turns and queue its answer, in one transaction.

Each write for a claim names its epoch, and is refused once there is a newer one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import Pressed, make_storable
from bot.chat.outgoing import FILE_PARTS, OutboxOperation, OutboxRow, OutgoingPart
from bot.chat.session import Claim, HistoryChange, InboxMessage, TurnRange, TurnResult
from bot.errors import Fenced
from bot.storage import histories, outbox
from bot.storage.functions import FUNCTIONS
from bot.storage.receipts import USAGE_COLUMNS
from bot.storage.rows import NOTHING, encode_content
from bot.storage.statements import SQL, DialectName, Unit
from bot.value_class import value_class

_NO_MESSAGE = {**NOTHING, "interaction": None, "file_name": None, "file_text": None}
"""The columns of a row that deletes a message."""


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


@value_class
class PartChanges:
    """The changes on the platform that make a turn read as its answer says."""

    common: dict[str, Any]
    """The columns that all outbox rows share: turn, platform, bot_id, chat, thread, lane,
    reply_to."""
    changes: Sequence[dict[str, Any]]
    """The other columns, and `opened`: queue it only if the part was opened (or was not)."""
    parts: Sequence[int]
    """The numbers of the parts; others that were opened are deleted."""
    may_be_opened: bool
    """Whether this turn can have opened parts at all."""

    def rows(self, opened: Collection[int]) -> list[dict[str, Any]]:
        """Return the rows to queue, given the parts that were opened."""
        rows = [
            {**self.common, **change}
            for change in self.changes
            if change["opened"] == (change["part"] in opened)
        ]
        delete = {**self.common, "op": OutboxOperation.DELETE, **_NO_MESSAGE}
        surplus = sorted(set(opened).difference(self.parts))
        return rows + [{**delete, "part": part} for part in surplus]

    def rows_in_place(self, targets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows to queue, given the messages whose places the parts take, in order.

        A file takes no place and leaves none: it is sent anew, and deleted with its answer.
        """
        nothing = {"external_id": None, "target_turn": None, "target_part": None}
        texts = [part for part in self.parts if part < FILE_PARTS]
        of_texts = [target for target in targets if target["target_part"] < FILE_PARTS]
        files = [target for target in targets if target["target_part"] >= FILE_PARTS]
        places = dict(zip(texts, of_texts, strict=False))
        rows = [
            {**self.common, **change, **places.get(change["part"], nothing)}
            for change in self.changes
            if change["opened"] == (change["part"] in places)
        ]
        delete = {**self.common, "op": OutboxOperation.DELETE, **_NO_MESSAGE}
        surplus = enumerate([*of_texts[len(texts) :], *files], len(texts))
        return rows + [{**delete, "part": number, **target} for number, target in surplus]


@value_class
class FinishedRows:
    """What `finish` writes."""

    messages: Sequence[int]
    turns: Sequence[dict[str, Any]]
    receipts: Sequence[dict[str, Any]]
    answer: PartChanges
    new_session: bool
    go_on: bool
    """Whether to begin the next message; else the conversation is released."""
    removes: TurnRange | None = None
    supersedes: TurnRange | None = None
    change: HistoryChange | None = None
    in_place_of: Sequence[str] = ()
    """The names of the parts whose messages the answer takes."""


def open_part(
    claim: Claim,
    row: dict[str, Any],
    sender: outbox.SenderIdentity | None,
    at: outbox.Moment,
    dialect: DialectName,
) -> Unit[tuple[int, OutboxRow | None]]:
    """Queue the first message of an unfinished answer, and take it if its lane is free."""
    if dialect == "postgresql":
        values = {**claim_values(claim), **row, **outbox.identity(sender)}
        [[held, number, *head]] = yield FUNCTIONS["open"].call.query_alone(values)
        if not held:
            raise outdated(claim)
        return number, outbox.given_row(head, at)
    yield from check(claim)
    number = yield from outbox.queue_once(row)
    return number, (yield from outbox.make_due(row, sender, at))


def finish(
    claim: Claim,
    rows: FinishedRows,
    sender: outbox.SenderIdentity | None,
    at: outbox.Moment,
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
        [[held, *columns]] = yield FUNCTIONS["finish"].call.query_alone(values)
        if not held:
            raise outdated(claim)
        message, head = columns[:_MESSAGE_COLUMNS], columns[_MESSAGE_COLUMNS:]
        next_message = None if message[0] is None else NextMessage(*message)
        return next_message, outbox.given_row(head, at)
    return (yield from _finish_by_steps(claim, rows, sender, at, dialect))


def _finish_by_steps(
    claim: Claim,
    rows: FinishedRows,
    sender: outbox.SenderIdentity | None,
    at: outbox.Moment,
    dialect: DialectName,
) -> Unit[tuple[NextMessage | None, OutboxRow | None]]:
    session, is_settled = yield from _end_messages(claim, rows, dialect)
    for name, turns in (
        ("remove_failed", rows.removes),
        ("remove_turns", rows.removes),
        ("supersede_turns", rows.supersedes),
    ):
        if turns is not None:
            found = {"of": claim.conversation, "of_session": session}
            yield SQL[name].query({**found, "count": turns.count, "newer": turns.newer})
    if rows.turns:
        of = {"conversation": claim.conversation, "session": session}
        yield SQL["append_turn"].query_many([{**of, **row} for row in rows.turns])
    if rows.receipts:
        yield SQL["add_receipt"].query_many(rows.receipts)
    taken = yield from _queue_answer(rows, sender, at)
    if rows.change is not None:  # behind the lock of the lane, as it changes rows of the outbox
        yield from histories.apply(claim.conversation, rows.change, at.now)
    if is_settled:
        return None, taken
    if rows.go_on:
        return (yield from next_message(claim)), taken
    yield from release(claim)
    return None, taken


def _end_messages(claim: Claim, rows: FinishedRows, dialect: DialectName) -> Unit[tuple[int, bool]]:
    """Check the epoch and mark the messages as answered.

    Returns:
        The session.
        Whether no message is left and the conversation was released.
    """
    done = SQL["end_message"].query_many([{"message": one} for one in rows.messages])
    if dialect == "sqlite" and rows.go_on and not rows.new_session:
        yield done
        held = yield SQL["settle_if_answered"].query(claim_values(claim))
        session = _session(claim, held)
        return session, held[0][1] is None
    change = SQL["begin_session"] if rows.new_session else SQL["lock_conversation"]
    session = _session(claim, (yield change.query(claim_values(claim))))
    yield done
    return session, False


def _queue_answer(
    rows: FinishedRows, sender: outbox.SenderIdentity | None, at: outbox.Moment
) -> Unit[OutboxRow | None]:
    answer = rows.answer
    opened: list[int] = []
    if rows.in_place_of:
        targets = yield from histories.resolve_parts(rows.in_place_of)
        queued = answer.rows_in_place(targets)
    else:
        if answer.may_be_opened:
            found = yield SQL["opened_parts"].query({"of_turn": answer.common["turn"]})
            opened = [row[0] for row in found]
        queued = answer.rows(opened)
    return (yield from outbox.queue(queued, sender, at)) if queued else None


def _finish_values(
    claim: Claim, rows: FinishedRows, sender: outbox.SenderIdentity | None, now: float
) -> dict[str, object]:
    return {
        **claim_values(claim),
        "messages": rows.messages,
        "new_session": rows.new_session,
        "go_on": rows.go_on,
        **_range(rows.removes, "removed"),
        **_range(rows.supersedes, "superseded"),
        "turns": rows.turns,
        "receipts": [row["content"] for row in rows.receipts],
        "usages": [{name: row[name] for name in USAGE_COLUMNS} for row in rows.receipts],
        "at": now,
        "changes": rows.answer.changes,
        "parts": rows.answer.parts,
        "may_be_opened": rows.answer.may_be_opened,
        **rows.answer.common,
        **outbox.identity(sender),
    }


def _range(turns: TurnRange | None, name: str) -> dict[str, int]:
    if turns is None:
        return {f"{name}_count": 0, f"{name}_newer": 0}
    return {f"{name}_count": turns.count, f"{name}_newer": turns.newer}


def check(claim: Claim) -> Unit[None]:
    """Check the epoch of a claim and lock it until the unit is committed; raises `Fenced`."""
    _session(claim, (yield SQL["lock_conversation"].query(claim_values(claim))))


def outdated(claim: Claim) -> Fenced:
    """Return the error of a claim that a later one has fenced."""
    return Fenced(f"conversation {claim.conversation} was claimed after epoch {claim.epoch}")


def claim_values(claim: Claim) -> dict[str, object]:
    return {"of": claim.conversation, "at_epoch": claim.epoch, "claimed_by": claim.owner}


def _session(claim: Claim, rows: Sequence[Sequence[Any]]) -> int:
    if not rows:
        raise outdated(claim)
    session: int = rows[0][0]
    return session


def next_message(claim: Claim) -> Unit[NextMessage | None]:
    """Begin the oldest message; if there is none, release the conversation."""
    rows = yield SQL["begin_next_message"].query({"of": claim.conversation})
    if rows:
        return NextMessage(*rows[0])
    yield SQL["settle"].query(claim_values(claim))
    return None


def release(claim: Claim) -> Unit[None]:
    """Release a conversation unchanged, so that others may claim it at once."""
    _session(claim, (yield SQL["release_claim"].query(claim_values(claim))))


def to_opening_row(message: InboxMessage, opening: OutgoingPart) -> dict[str, object]:
    """Return the row with which a part of an answer begins, before the answer is complete."""
    first = _first_as_response(message, opening)
    content = encode_content(first.content, first.thread)
    change = _change(message, first, OutboxOperation.SEND, content, opened=False)
    return {**_common(message), **change}


def to_part_changes(message: InboxMessage, result: TurnResult) -> PartChanges:
    """Return the changes on the platform that make the turn read as the result says."""
    changes = []
    outgoing = [_marked_response(message, result, one) for one in result.outgoing]
    for one in outgoing:
        content = encode_content(one.content, one.thread)
        if not one.is_shown:
            changes.append(_change(message, one, OutboxOperation.EDIT, content, opened=True))
        changes.append(_change(message, one, OutboxOperation.SEND, content, opened=False))
    return PartChanges(
        _common(message),
        changes,
        [one.part for one in outgoing if not _is_beside_places(message, result, one)],
        may_be_opened=bool(outgoing or result.was_stopped or message.crashes),
    )


def _change(
    message: InboxMessage,
    one: OutgoingPart,
    op: OutboxOperation,
    content: Mapping[str, object],
    *,
    opened: bool,
) -> dict[str, object]:
    """Return the columns of one row of the outbox, and whether its part has to be opened."""
    file = one.file if op is OutboxOperation.SEND else None
    return {
        "part": one.part,
        "op": op,
        **content,
        "interaction": message.incoming.interaction if one.is_response else None,
        "file_name": file.name if file else None,
        "file_text": make_storable(file.text) if file else None,
        "opened": opened,
    }


def _marked_response(message: InboxMessage, result: TurnResult, part: OutgoingPart) -> OutgoingPart:
    """Mark the first part as the response to a native command, unless another one is marked."""
    if any(one.is_response for one in result.outgoing) or result.in_place_of:
        return part
    return _first_as_response(message, part)


def _is_beside_places(message: InboxMessage, result: TurnResult, part: OutgoingPart) -> bool:
    """Whether a part answers a native command instead of replacing an earlier message."""
    is_command = not isinstance(message.incoming, Pressed)
    return bool(result.in_place_of) and is_command and part.is_response


def _first_as_response(message: InboxMessage, part: OutgoingPart) -> OutgoingPart:
    """Mark it if it is the first; in response to a press it would change the pressed message."""
    is_response = part.part == 0 and not isinstance(message.incoming, Pressed)
    return part if part.is_response == is_response else replace(part, is_response=is_response)


def _common(message: InboxMessage) -> dict[str, object]:
    """Return the columns that all rows of the outbox of a turn share."""
    asked = message.replied_to.incoming
    return {
        "turn": message.turn,
        "platform": asked.address.platform,
        "bot_id": asked.address.bot_id,
        "chat": asked.address.chat,
        "thread": asked.address.thread,
        "lane": asked.address.lane,
        "reply_to": asked.message_id,
    }
