"""What was set aside in the inbox and the outbox, in SQL."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from bot.chat.incoming import ForgetRequested, Incoming, Pressed, Said
from bot.chat.operation import DeadLetter
from bot.chat.outgoing import OutboxState
from bot.errors import Undecodable
from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.rows import decode_event, encode_event
from bot.storage.statements import clock_at
from bot.storage.tables import conversation, inbox, is_dead, is_set_aside, lane, outbox

_IN, _OUT = "in", "out"
_MAX_REFUSALS = 8
# A row that was dropped has no error any more: it only keeps its place in its turn.
_IS_LISTED = is_dead & outbox.c.error.is_not(None)
_RECEIVED = (
    select(
        *(inbox.c.id, inbox.c.conversation, inbox.c.kind, inbox.c.received_at, inbox.c.crashes),
        inbox.c.payload,
    )
    .where(is_set_aside)
    .order_by(inbox.c.id)
)
_UNSENT = (
    select(outbox.c.id, outbox.c.lane, outbox.c.op, outbox.c.started_at, outbox.c.error)
    .where(_IS_LISTED)
    .order_by(outbox.c.id)
)
_REFUSALS = (
    select(outbox.c.error)
    .where(_IS_LISTED, outbox.c.lane == bindparam("of"))
    .order_by(outbox.c.id.desc())
    .limit(_MAX_REFUSALS)
)
_EVENT = select(inbox.c.kind, inbox.c.payload, inbox.c.platform, inbox.c.bot_id).where(
    inbox.c.id == bindparam("row"), is_set_aside
)
_TEXT = select(outbox.c.text).where(outbox.c.id == bindparam("row"), _IS_LISTED)
_FINISH = (
    update(inbox)
    .where(inbox.c.id == bindparam("row"), is_set_aside)
    .values(state="done", payload=None)
)
_NOT_READY = update(conversation).where(
    conversation.c.key == bindparam("of"), conversation.c.ready_since.is_(None)
)
# It may have arrived although nobody knows: it is looked for before it is sent again.
_SEND_AGAIN = (
    update(outbox)
    .where(outbox.c.id == bindparam("row"), _IS_LISTED)
    .values(state=OutboxState.UNKNOWN, attempts=0, not_before=0.0, error=None, owner=None)
)
_LANE_OF = select(outbox.c.lane).where(outbox.c.id == bindparam("row"), _IS_LISTED)
_DROP = (
    update(outbox)
    .where(outbox.c.id == bindparam("row"), _IS_LISTED)
    .values(error=None, text="", file_name=None, file_text=None, face=None, buttons=None)
)


class SqlDeadLetters:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def all(self) -> Sequence[DeadLetter]:
        """Return all of them, without what people wrote."""

        def unit(connection: Connection) -> list[DeadLetter]:
            received = [
                DeadLetter(
                    f"{_IN}-{row.id}", row.conversation, row.kind, row.received_at, _why(row)
                )
                for row in connection.execute(_RECEIVED)
            ]
            unsent = [
                DeadLetter(f"{_OUT}-{id_}", place, op, at, error)
                for id_, place, op, at, error in connection.execute(_UNSENT)
            ]
            return received + unsent

        return await self._database.read(unit)

    async def refusals(self, lane: str) -> Sequence[str]:
        """Return why the newest parts of a lane were not delivered, each reason once."""
        asked = {"of": lane}
        rows = await self._database.read(lambda c: c.execute(_REFUSALS, asked).scalars().all())
        return tuple(dict.fromkeys(rows))

    async def text(self, name: str) -> str | None:
        """Return what one says; None: there is none of that name."""
        kind, row = _parse(name)

        def unit(connection: Connection) -> str | None:
            if kind == _OUT:
                return connection.execute(_TEXT, {"row": row}).scalar_one_or_none()
            found = connection.execute(_EVENT, {"row": row}).first()
            if found is None:
                return None
            try:
                return _text_of(decode_event(found.kind, found.payload))
            except Undecodable as error:
                return f"cannot be read: {error}"

        return await self._database.read(unit) if kind else None

    async def retry(self, name: str) -> str | None:
        """Process or deliver one once more; return its conversation or lane.

        Returns:
            None: there is none of that name.
        """
        kind, row = _parse(name)
        if not kind:
            return None
        again = self._send_again if kind == _OUT else self._receive_again
        return await self._database.write(lambda c: again(c, row))

    async def drop(self, name: str) -> bool:
        """Delete the content of one for good; return False if there is none of that name."""
        kind, row = _parse(name)
        if not kind:
            return False
        statement, of = _DROP if kind == _OUT else _FINISH, {"row": row}
        return bool(await self._database.write(lambda c: c.execute(statement, of).rowcount))

    def _receive_again(self, connection: Connection, row: int) -> str | None:
        """Receive an event once more, under another key: its turn has been told its failure."""
        found = connection.execute(_EVENT, {"row": row}).first()
        if found is None or not connection.execute(_FINISH, {"row": row}).rowcount:
            return None
        event, now = decode_event(found.kind, found.payload), self._clock.now()
        event = replace(event, external_key=f"{event.external_key}:again{secrets.token_hex(3)}")
        key = event.address.conversation
        connection.execute(
            insert(inbox).values(
                platform=found.platform,
                bot_id=found.bot_id,
                external_key=event.external_key,
                conversation=key,
                kind=found.kind,
                payload=encode_event(event),
                received_at=now,
            )
        )
        ready = _NOT_READY.values(ready_since=clock_at(connection.dialect.name, now))
        connection.execute(ready, {"of": key})
        return key

    def _send_again(self, connection: Connection, row: int) -> str | None:
        key = connection.execute(_LANE_OF, {"row": row}).scalar_one_or_none()
        if key is None:
            return None
        now = clock_at(connection.dialect.name, self._clock.now())
        connection.execute(update(lane).where(lane.c.key == key).values(due_at=now))
        return key if connection.execute(_SEND_AGAIN, {"row": row}).rowcount else None


def _parse(name: str) -> tuple[str, int]:
    """Return the kind and the row of a name; "" as the kind: there can be none of that name."""
    kind, _, number = name.partition("-")
    is_known = kind in {_IN, _OUT} and number.isascii() and number.isdigit() and len(number) < 18
    return (kind, int(number)) if is_known else ("", 0)


def _why(row: Row[*tuple[Any, ...]]) -> str:
    """Return why a message was set aside; whether it can be read now is not stored."""
    try:
        decode_event(row.kind, row.payload)
    except Undecodable as error:
        return f"cannot be read: {error}"
    if row.crashes:
        return f"killed the process {row.crashes} times"
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
