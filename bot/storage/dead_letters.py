"""Messages set aside in the inbox and the outbox, in SQL."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bot.chat.incoming import ForgetRequested, Incoming, Pressed, Said
from bot.chat.operation import DeadLetter
from bot.errors import Undecodable
from bot.ports import Clock
from bot.storage.database import Database, reading, transaction
from bot.storage.rows import decode, decode_event, encode_event
from bot.storage.statements import SQL, Statement, Unit

_IN, _OUT = "in", "out"
_MAX_REFUSALS = 8
_SET_ASIDE = """
SELECT id, conversation, kind, received_at, crashes, payload, platform, bot_id
FROM inbox WHERE state = 'dead'
"""
_RECEIVED = Statement(f"{_SET_ASIDE} ORDER BY id")
_EVENT = Statement(f"{_SET_ASIDE} AND id = :row")
_FINISH = Statement("""
UPDATE inbox SET state = 'done', payload = NULL WHERE id = :row AND state = 'dead' RETURNING id
""")
# A row that was dropped has no error any more: it only keeps its place in its turn.
_IS_LISTED = "state = 'dead' AND error IS NOT NULL"
_THIS = f"WHERE id = :row AND {_IS_LISTED}"
_UNSENT = Statement(f"""
SELECT id, lane, op, started_at, error FROM outbox WHERE {_IS_LISTED} ORDER BY id
""")
_REFUSALS = Statement(f"""
SELECT error FROM outbox WHERE {_IS_LISTED} AND lane = :of ORDER BY id DESC LIMIT {_MAX_REFUSALS}
""")
_TEXT = Statement(f"SELECT text FROM outbox {_THIS}")
_LANE_OF = Statement(f"SELECT lane FROM outbox {_THIS}")
# It may have arrived although nobody knows: it is looked for before it is sent again.
_SEND_AGAIN = Statement(f"""
UPDATE outbox SET state = 'unknown', attempts = 0, not_before = 0, error = NULL, owner = NULL
{_THIS} RETURNING id
""")
_DROP = Statement(f"""
UPDATE outbox SET error = NULL, text = '', file_name = NULL, file_text = NULL, face = NULL,
    buttons = NULL
{_THIS} RETURNING id
""")


class DeadLetters:
    """Messages that were not processed and parts that were not delivered."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @reading
    def all(self) -> Unit[Sequence[DeadLetter]]:
        """Return all of them, without what people wrote."""
        received = [_to_received(row) for row in (yield _RECEIVED.query_alone())]
        unsent = yield _UNSENT.query_alone()
        return received + [decode(_to_unsent, row) for row in unsent]

    @reading
    def refusals(self, lane: str) -> Unit[Sequence[str]]:
        """Return why the newest parts of a lane were not delivered, each reason once."""
        rows = yield _REFUSALS.query_alone({"of": lane})
        return tuple(dict.fromkeys(decode(_first, row) for row in rows))

    @reading
    def text(self, name: str) -> Unit[str | None]:
        """Return what one says; None: there is none of that name."""
        kind, row = _parse(name)
        if not kind:
            return None
        found = yield (_TEXT if kind == _OUT else _EVENT).query({"row": row})
        if not found:
            return None
        if kind == _OUT:
            return decode(_first, found[0])
        try:
            return _text_of(_event(found[0]))
        except Undecodable as error:
            return f"cannot be read: {error}"

    @transaction
    def retry(self, name: str) -> Unit[str | None]:
        """Process or deliver one once more; return its conversation or lane.

        Returns:
            None: there is none of that name.
        """
        kind, row = _parse(name)
        if not kind:
            return None
        return (yield from (self._send_again if kind == _OUT else self._receive_again)(row))

    @transaction
    def drop(self, name: str) -> Unit[bool]:
        """Delete the content of one for good; return False if there is none of that name."""
        kind, row = _parse(name)
        statement = _DROP if kind == _OUT else _FINISH
        return bool(kind and (yield statement.query({"row": row})))

    def _receive_again(self, row: int) -> Unit[str | None]:
        """Receive an event once more, under another key: its turn has been told its failure."""
        found = yield _EVENT.query({"row": row})
        if not found or not (yield _FINISH.query({"row": row})):
            return None
        event, now = _event(found[0]), self._clock.now()
        event = replace(event, external_key=f"{event.external_key}:again{secrets.token_hex(3)}")
        key, (kind, platform, bot_id) = (
            event.address.conversation,
            (found[0][at] for at in (2, 6, 7)),
        )
        bot = {"platform": platform, "bot_id": bot_id, "now": now}
        new = {"external_key": event.external_key, "conversation": key, "received_at": now}
        yield SQL["store_message"].query(
            {**bot, **new, "kind": kind, "payload": encode_event(event)}
        )
        yield SQL["make_ready"].query({**bot, "key": key})
        return key

    def _send_again(self, row: int) -> Unit[str | None]:
        found = yield _LANE_OF.query({"row": row})
        if not found:
            return None
        key: str = found[0][0]
        yield SQL["make_due_now"].query({"of": key, "now": self._clock.now()})
        return key if (yield _SEND_AGAIN.query({"row": row})) else None


def _parse(name: str) -> tuple[str, int]:
    """Return the kind and the row of a name; "" as the kind: there can be none of that name."""
    kind, _, number = name.partition("-")
    is_known = kind in {_IN, _OUT} and number.isascii() and number.isdigit() and len(number) < 18
    return (kind, int(number)) if is_known else ("", 0)


def _first(row: Sequence[Any]) -> str:
    return str(row[0])


def _event(row: Sequence[Any]) -> Incoming:
    return decode_event(row[2], row[5])


def _to_unsent(row: Sequence[Any]) -> DeadLetter:
    return DeadLetter(f"{_OUT}-{row[0]}", *row[1:])


def _to_received(row: Sequence[Any]) -> DeadLetter:
    id_, conversation, kind, received_at, crashes, *_ = row
    return DeadLetter(f"{_IN}-{id_}", conversation, kind, received_at, _why(row, crashes))


def _why(row: Sequence[Any], crashes: int) -> str:
    """Return why a message was set aside; whether it can be read now is not stored."""
    try:
        _event(row)
    except Undecodable as error:
        return f"cannot be read: {error}"
    if crashes:
        return f"killed the process {crashes} times"
    return "could not be read by an earlier version; retry it"


def _text_of(event: Incoming) -> str:
    match event:
        case Said(text=text):
            return text
        case Pressed(data=data):
            return data
        case ForgetRequested():
            return "everything is to be forgotten"
        case _:
            return getattr(getattr(event, "said", None), "text", "")
