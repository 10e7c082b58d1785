"""Units of work that finish a message: mark it as answered, append turns, queue the answer.

Each write checks the epoch of its claim, and raises `Fenced` if there is a newer epoch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from bot.chat.incoming import ButtonPress, to_storable_text
from bot.chat.outgoing import (
    FIRST_FILE_PART,
    REACTION_PART,
    OutboxOperation,
    OutboxRow,
    OutgoingPart,
)
from bot.chat.session import Claim, InboxMessage, TurnRange, TurnResult
from bot.errors import Fenced
from bot.storage import histories, memories, outbox
from bot.storage.database import Moment
from bot.storage.functions import SQL_FUNCTIONS
from bot.storage.receipts import USAGE_COLUMNS, add_receipts
from bot.storage.rows import NO_CONTENT, encode_content, to_address_columns
from bot.storage.statements import SQL, DialectName, Unit
from bot.value_class import value_class

_MESSAGE_COLUMN_COUNT = 7
"""The number of columns that a database function returns for a `NextMessage`."""


@value_class
class NextMessage:
    """The next message of a conversation, as an undecoded inbox row."""

    id: int
    encoded_event: bytes
    crash_count: int
    own_crash_count: int
    kind: str
    received_at: float
    has_messages_waiting: bool


@value_class
class PartChanges:
    """The outbox rows that make a turn's messages on the platform match its answer."""

    common_columns: dict[str, Any]
    """The columns that all rows share: turn, platform, bot_id, chat, thread, lane,
    reply_to."""
    changes: Sequence[dict[str, Any]]
    """Each row's other columns; `opened`: whether the row is for an already queued part."""
    final_parts: Sequence[int]
    """The numbers of the final parts; messages of parts that are not listed are deleted."""
    may_have_opened_parts: bool
    """Whether parts of this turn may have been queued before the answer was complete."""

    def build_change_rows(self, queued_part_numbers: Collection[int]) -> list[dict[str, Any]]:
        """Return the rows to queue, given the numbers of the parts that are already queued."""
        surplus_part_numbers = sorted(set(queued_part_numbers).difference(self.final_parts))
        return self._build_part_and_deletion_rows(
            {part: {} for part in queued_part_numbers},
            {},
            ((part, {}) for part in surplus_part_numbers),
        )

    def build_replacement_rows(self, targets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows to queue if the parts replace the messages `targets` in order.

        Files are neither replaced nor replacements: old ones are deleted, and new ones are sent.
        """
        no_target = {"external_id": None, "target_turn": None, "target_part": None}
        text_parts = [part for part in self.final_parts if part < FIRST_FILE_PART]
        text_targets = [target for target in targets if target["target_part"] < FIRST_FILE_PART]
        file_targets = [target for target in targets if target["target_part"] >= FIRST_FILE_PART]
        targets_by_part = dict(zip(text_parts, text_targets, strict=False))
        text_count = len(text_parts)
        surplus_targets = enumerate([*text_targets[text_count:], *file_targets], text_count)
        return self._build_part_and_deletion_rows(targets_by_part, no_target, surplus_targets)

    def _build_part_and_deletion_rows(
        self,
        targets_by_part: Mapping[int, dict[str, Any]],
        default_target: dict[str, Any],
        surplus_targets: Iterable[tuple[int, dict[str, Any]]],
    ) -> list[dict[str, Any]]:
        """Return the rows of the parts, followed by deletions of the surplus messages."""
        rows = [
            {**self.common_columns, **change, **targets_by_part.get(change["part"], default_target)}
            for change in self.changes
            if change["opened"] == (change["part"] in targets_by_part)
        ]
        deletion_row = {**self.common_columns, "op": OutboxOperation.DELETE, **NO_CONTENT}
        return rows + [{**deletion_row, "part": part, **target} for part, target in surplus_targets]


@value_class
class FinishRows:
    """The rows and changes that `finish` stores."""

    message_ids: Sequence[int]
    turns: Sequence[dict[str, Any]]
    receipts: Sequence[dict[str, Any]]
    answer: PartChanges
    result: TurnResult
    begins_next: bool
    """Whether to begin the next message; otherwise the conversation is released."""


def queue_unfinished_part(
    claim: Claim,
    row: dict[str, Any],
    sender: outbox.SenderIdentity | None,
    at: Moment,
    dialect: DialectName,
) -> Unit[tuple[int, OutboxRow | None]]:
    """Queue a part of an unfinished answer; reserve it for sending if it is first in the queue."""
    if dialect == "postgresql":
        values = {**claim_values(claim), **row, **outbox.sender_values(sender)}
        [[is_claim_held, number, *columns]] = yield SQL_FUNCTIONS["open"].call.query_alone(values)
        if not is_claim_held:
            raise fenced_error(claim)
        return number, outbox.decode_reserved_row(columns, at)
    yield from lock_claim(claim)
    [[number]] = yield SQL["queue_once"].query(row)
    return number, (yield from outbox.reserve_first_row_or_schedule(row, sender, at))


def finish(
    claim: Claim,
    rows: FinishRows,
    sender: outbox.SenderIdentity | None,
    at: Moment,
    dialect: DialectName,
) -> Unit[tuple[NextMessage | None, OutboxRow | None]]:
    """Store the result of a message.

    Return the conversation's next message, and the first queued row if it is now reserved for
    sending; either may be None.
    """
    other_changes = rows.result.change or rows.result.replaced_part_names or rows.result.feedback
    is_answer_only = not other_changes
    if dialect == "postgresql" and is_answer_only:
        values = _build_finish_values(claim, rows, sender, at.now)
        [[is_claim_held, *columns]] = yield SQL_FUNCTIONS["finish"].call.query_alone(values)
        if not is_claim_held:
            raise fenced_error(claim)
        message_columns = columns[:_MESSAGE_COLUMN_COUNT]
        outbox_columns = columns[_MESSAGE_COLUMN_COUNT:]
        next_message = None if message_columns[0] is None else NextMessage(*message_columns)
        return next_message, outbox.decode_reserved_row(outbox_columns, at)
    return (yield from _finish_in_steps(claim, rows, sender, at, dialect))


def _finish_in_steps(
    claim: Claim,
    rows: FinishRows,
    sender: outbox.SenderIdentity | None,
    at: Moment,
    dialect: DialectName,
) -> Unit[tuple[NextMessage | None, OutboxRow | None]]:
    session, is_claim_released = yield from _mark_answered(claim, rows, dialect)
    for statement_name, turns in (
        ("remove_failed", rows.result.removed_range),
        ("remove_turns", rows.result.removed_range),
        ("supersede_turns", rows.result.replaced_range),
    ):
        if turns is not None:
            session_values = {"of": claim.conversation, "of_session": session}
            yield SQL[statement_name].query(
                {**session_values, "count": turns.count, "newer": turns.newer_turn_count}
            )
    if rows.result.removed_range or rows.result.replaced_range:
        yield from memories.delete_stale_memories(claim.conversation, (), at.now)
    if rows.turns:
        session_key = {"conversation": claim.conversation, "session": session}
        yield SQL["append_turn"].query_many([{**session_key, **row} for row in rows.turns])
    yield from add_receipts(rows.receipts)
    if (feedback := rows.result.feedback) is not None:
        statement_name = "drop_feedback" if feedback.is_removed else "keep_feedback"
        yield SQL[statement_name].query({**asdict(feedback), "at": at.now})
    reserved_row = yield from _queue_answer(rows, sender, at)
    if rows.result.change is not None:  # after locking the lane, because this changes outbox rows
        yield from histories.apply_change(claim.conversation, rows.result.change, at.now)
    if is_claim_released:
        return None, reserved_row
    if rows.begins_next:
        return (yield from begin_next_message(claim)), reserved_row
    yield from release(claim)
    return None, reserved_row


def _mark_answered(claim: Claim, rows: FinishRows, dialect: DialectName) -> Unit[tuple[int, bool]]:
    """Mark messages as answered; return the session and whether the claim was released."""
    ending_query = SQL["end_message"].query_many([{"message": one} for one in rows.message_ids])
    if dialect == "sqlite" and rows.begins_next and not rows.result.starts_session:
        yield ending_query
        session_rows = yield SQL["settle_if_answered"].query(claim_values(claim))
        return _require_locked_session(claim, session_rows), session_rows[0][1] is None
    lock_statement = SQL["begin_session" if rows.result.starts_session else "lock_conversation"]
    session = _require_locked_session(claim, (yield lock_statement.query(claim_values(claim))))
    yield ending_query
    return session, False


def _queue_answer(
    rows: FinishRows, sender: outbox.SenderIdentity | None, at: Moment
) -> Unit[OutboxRow | None]:
    answer = rows.answer
    if rows.result.replaced_part_names:
        targets = yield from histories.find_target_columns(rows.result.replaced_part_names)
        queued_rows = answer.build_replacement_rows(targets)
    elif answer.may_have_opened_parts:
        part_rows = yield SQL["opened_parts"].query(of_turn=answer.common_columns["turn"])
        queued_rows = answer.build_change_rows([row[0] for row in part_rows])
    else:
        queued_rows = answer.build_change_rows(())
    return (yield from outbox.queue_rows(queued_rows, sender, at)) if queued_rows else None


def _build_finish_values(
    claim: Claim, rows: FinishRows, sender: outbox.SenderIdentity | None, now: float
) -> dict[str, object]:
    return {
        **claim_values(claim),
        "messages": rows.message_ids,
        "new_session": rows.result.starts_session,
        "begin_next": rows.begins_next,
        **_range_values(rows.result.removed_range, "removed"),
        **_range_values(rows.result.replaced_range, "superseded"),
        "turns": rows.turns,
        "receipts": [row["content"] for row in rows.receipts],
        "usages": [{name: row[name] for name in USAGE_COLUMNS} for row in rows.receipts],
        "at": now,
        "changes": rows.answer.changes,
        "parts": rows.answer.final_parts,
        "may_be_opened": rows.answer.may_have_opened_parts,
        **rows.answer.common_columns,
        **outbox.sender_values(sender),
    }


def _range_values(turns: TurnRange | None, name: str) -> dict[str, int]:
    return {
        f"{name}_count": turns.count if turns else 0,
        f"{name}_newer": turns.newer_turn_count if turns else 0,
    }


def lock_claim(claim: Claim) -> Unit[None]:
    """Lock a claim until the unit commits; raises `Fenced` if its epoch is outdated."""
    _require_locked_session(claim, (yield SQL["lock_conversation"].query(claim_values(claim))))


def fenced_error(claim: Claim) -> Fenced:
    """Return the error for a claim with an outdated epoch."""
    return Fenced(f"conversation {claim.conversation} was claimed after epoch {claim.epoch}")


def claim_values(claim: Claim) -> dict[str, object]:
    return {"of": claim.conversation, "at_epoch": claim.epoch, "claimed_by": claim.owner}


def _require_locked_session(claim: Claim, rows: Sequence[Sequence[Any]]) -> int:
    if not rows:
        raise fenced_error(claim)
    session: int = rows[0][0]
    return session


def begin_next_message(claim: Claim) -> Unit[NextMessage | None]:
    """Begin and return the oldest waiting message; if there is none, release the conversation."""
    rows = yield SQL["begin_next_message"].query(of=claim.conversation)
    if rows:
        return NextMessage(*rows[0])
    yield SQL["settle"].query(claim_values(claim))
    return None


def release(claim: Claim) -> Unit[None]:
    """Release a claim, so that the conversation can be claimed again immediately."""
    _require_locked_session(claim, (yield SQL["release_claim"].query(claim_values(claim))))


def to_opening_row(message: InboxMessage, part: OutgoingPart) -> dict[str, object]:
    """Return the outbox row that sends a part of an unfinished answer."""
    marked_part = _mark_first_as_response(message, part)
    content = encode_content(marked_part.content, marked_part.thread)
    change = _to_change(message, marked_part, OutboxOperation.SEND, content, is_queued=False)
    return {**_common_columns(message), **change}


def to_part_changes(message: InboxMessage, result: TurnResult) -> PartChanges:
    """Return the outbox rows that make the turn's messages match the result."""
    is_press = isinstance(message.incoming, ButtonPress)
    parts: Sequence[OutgoingPart] = result.outgoing
    if not (result.replaced_part_names or any(one.is_response for one in parts)):
        parts = [_mark_first_as_response(message, one) for one in parts]
    changes = []
    for one in parts:
        values = encode_content(one.content, one.thread, one.private_delivery)
        if one.number == REACTION_PART:
            changes.append(_to_change(message, one, OutboxOperation.REACT, values, is_queued=False))
            continue
        if not one.is_already_shown:
            changes.append(_to_change(message, one, OutboxOperation.EDIT, values, is_queued=True))
        changes.append(_to_change(message, one, OutboxOperation.SEND, values, is_queued=False))
    # A response to a native command does not replace an earlier message.
    response_parts = [one.number for one in parts if one.is_response and not is_press]
    return PartChanges(
        _common_columns(message),
        changes,
        [
            one.number
            for one in parts
            if not (result.replaced_part_names and one.number in response_parts)
        ],
        may_have_opened_parts=bool(
            parts or result.was_stopped or result.may_have_sent or message.crash_count
        ),
    )


def _to_change(
    message: InboxMessage,
    part: OutgoingPart,
    op: OutboxOperation,
    content: Mapping[str, object],
    *,
    is_queued: bool,
) -> dict[str, object]:
    """Return the columns of one outbox row; `is_queued` means that its part is already queued."""
    file = part.file if op is OutboxOperation.SEND else None
    return {
        "part": part.number,
        "op": op,
        **content,
        "interaction": message.incoming.interaction if part.is_response else None,
        "file_name": file.name if file else None,
        "file_text": to_storable_text(file.text) if file else None,
        "opened": is_queued,
    }


def _mark_first_as_response(message: InboxMessage, part: OutgoingPart) -> OutgoingPart:
    """Mark a part as the response if it is the first reply to a native command."""
    incoming = message.incoming
    is_command = incoming.interaction is not None and not isinstance(incoming, ButtonPress)
    is_response = part.number == 0 and is_command
    return part if part.is_response == is_response else replace(part, is_response=is_response)


def _common_columns(message: InboxMessage) -> dict[str, object]:
    """Return the columns that all outbox rows of a turn have in common."""
    question = message.reply_target.incoming
    address = to_address_columns(question.address)
    return {"turn": message.turn_name, **address, "reply_to": question.message_id}
