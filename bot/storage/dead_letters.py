"""Dead letters: messages in the inbox or the outbox that could not be processed or sent."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import ButtonPress, ForgetRequest, Incoming, IncomingMessage, SayRequest
from bot.chat.operation import DeadLetter
from bot.errors import Undecodable
from bot.storage.database import ClockStore, run_readonly, transaction
from bot.storage.inbox import store_events, to_inbox_row
from bot.storage.rows import decode, decode_event
from bot.storage.statements import SQL, Unit

_INBOX, _OUTBOX = "in", "out"


class DeadLetters(ClockStore):
    """Lists, retries and deletes dead letters: messages that could not be processed or sent."""

    @run_readonly
    def all(self) -> Unit[Sequence[DeadLetter]]:
        """Return all dead letters, without their texts."""
        dead_messages = [_to_dead_letter(row) for row in (yield SQL["dead_messages"].query_alone())]
        rows = yield SQL["dead_rows"].query_alone()
        return dead_messages + [
            decode(lambda row: DeadLetter(f"{_OUTBOX}-{row[0]}", *row[1:]), row) for row in rows
        ]

    @run_readonly
    def list_refusal_reasons(self, lane: str) -> Unit[Sequence[str]]:
        """Return the distinct reasons why recent messages to a chat (lane) were not delivered."""
        rows = yield SQL["refusals"].query_alone(of=lane)
        return tuple(dict.fromkeys(decode(_first_column, row) for row in rows))

    @run_readonly
    def text(self, name: str) -> Unit[str | None]:
        """Return a dead letter's text, or None if no dead letter has this name."""
        kind, row_id = _parse_dead_letter_name(name)
        if not kind:
            return None
        rows = yield SQL["dead_text" if kind == _OUTBOX else "dead_message"].query(row=row_id)
        if not rows:
            return None
        if kind == _OUTBOX:
            return decode(_first_column, rows[0])
        try:
            return _extract_text(_to_event(rows[0]))
        except Undecodable as error:
            return f"cannot be read: {error}"

    @transaction
    def retry(self, name: str) -> Unit[str | None]:
        """Retry a dead letter; return its conversation or lane, or None if it is not found."""
        kind, row_id = _parse_dead_letter_name(name)
        if not kind:
            return None
        return (yield from (self._send_again if kind == _OUTBOX else self._receive_again)(row_id))

    @transaction
    def drop(self, name: str) -> Unit[bool]:
        """Permanently delete a dead letter's content; return False if it is not found."""
        kind, row_id = _parse_dead_letter_name(name)
        statement = SQL["drop_dead_row" if kind == _OUTBOX else "drop_dead_message"]
        return bool(kind and (yield statement.query(row=row_id)))

    def _receive_again(self, row_id: int) -> Unit[str | None]:
        """Store an event again with a new key, because its old turn has finished."""
        rows = yield SQL["dead_message"].query(row=row_id)
        if not rows or not (yield SQL["drop_dead_message"].query(row=row_id)):
            return None
        event, now = _to_event(rows[0]), self._clock.now()
        event = replace(event, external_key=f"{event.external_key}:again{secrets.token_hex(3)}")
        yield from store_events([to_inbox_row(event, now)], {}, now)
        return event.address.conversation

    def _send_again(self, row_id: int) -> Unit[str | None]:
        rows = yield SQL["lane_of_dead_row"].query(row=row_id)
        if not rows:
            return None
        lane_key: str = rows[0][0]
        yield SQL["make_due_now"].query(of=lane_key, now=self._clock.now())
        return lane_key if (yield SQL["send_dead_row_again"].query(row=row_id)) else None


def _parse_dead_letter_name(name: str) -> tuple[str, int]:
    """Return the kind and row id in a dead letter's name; the kind of an invalid name is ""."""
    kind, _, row_id_text = name.partition("-")
    is_row_id = row_id_text.isascii() and row_id_text.isdigit() and len(row_id_text) < 18
    return (kind, int(row_id_text)) if is_row_id and kind in {_INBOX, _OUTBOX} else ("", 0)


def _first_column(row: Sequence[Any]) -> str:
    return str(row[0])


def _to_event(row: Sequence[Any]) -> Incoming:
    return decode_event(row[2], row[5])


def _to_dead_letter(row: Sequence[Any]) -> DeadLetter:
    id_, conversation, kind, received_at, *_ = row
    return DeadLetter(f"{_INBOX}-{id_}", conversation, kind, received_at, _describe_reason(row))


def _describe_reason(row: Sequence[Any]) -> str:
    """Return why a message became a dead letter."""
    try:
        _to_event(row)
    except Undecodable as error:
        return f"cannot be read: {error}"
    if crash_count := row[4]:
        return f"crashed the process {crash_count} times"
    return "an earlier version could not read it; retry it"


def _extract_text(event: Incoming) -> str:
    match event:
        case IncomingMessage(text=text) | SayRequest(text=text):
            return text
        case ButtonPress(data=data):
            return data
        case ForgetRequest():
            return "a request to delete everything in this conversation"
        case _:
            return getattr(getattr(event, "said", None), "text", "")
