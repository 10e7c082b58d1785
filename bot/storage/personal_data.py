"""What is stored of a person, and in which conversations something was forgotten."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, or_, select, update
from typing_extensions import override

from bot.chat.incoming import Edited, Incoming, Pressed, Said, address_of
from bot.chat.session import Turn
from bot.errors import Undecodable
from bot.ports import Clock, ForgottenConversations, PersonalData
from bot.storage.decoding import decode_all
from bot.storage.restoring.tombstones import Tombstone
from bot.storage.sql.database import Database
from bot.storage.sql.tables import choice, forgotten, inbox, is_set_aside, message_note, turn
from bot.storage.units.dialects import has_prefix
from bot.storage.units.events import decode_event
from bot.storage.units.turn_rows import TURN_COLUMNS, to_turn

_BY_PERSON = turn.c.speaker_id == bindparam("person")
_CONVERSATIONS = select(turn.c.conversation).where(_BY_PERSON).distinct()
_LINES = select(*TURN_COLUMNS, turn.c.id, turn.c.conversation).where(_BY_PERSON, turn.c.active)


_SET_ASIDE = select(inbox.c.id, inbox.c.kind, inbox.c.payload).where(is_set_aside)
_DROP_NOTES = delete(message_note).where(message_note.c.person == bindparam("person"))
_DROP_SET_ASIDE = (
    update(inbox)
    .where(inbox.c.id.in_(bindparam("rows", expanding=True)))
    .values(state="done", payload=None)
)


def _record_nothing(_: Tombstone) -> None:
    return


class SqlPersonalData(PersonalData):
    def __init__(
        self,
        database: Database,
        clock: Clock,
        record_tombstone: Callable[[Tombstone], None] = _record_nothing,
    ) -> None:
        self._database = database
        self._clock = clock
        self._record_tombstone = record_tombstone

    @override
    async def note_forgotten(self, person_id: str) -> None:
        self._record_tombstone(Tombstone(self._clock.now(), person=person_id))
        # Notes quote messages that were ignored, of which nothing else is stored.
        asked = {"person": person_id}
        await self._database.write(lambda c: c.execute(_DROP_NOTES, asked).rowcount)

    @override
    async def conversations(self, person_id: str) -> Sequence[str]:
        asked = {"person": person_id}
        query = _CONVERSATIONS.order_by(turn.c.conversation)
        return await self._database.read(lambda c: c.execute(query, asked).scalars().all())

    @override
    async def drop_set_aside(self, person_id: str) -> None:
        def unit(connection: Connection) -> None:
            gone = [
                row.id
                for row in connection.execute(_SET_ASIDE)
                if _is_by(person_id, row.kind, row.payload)
            ]
            connection.execute(_DROP_SET_ASIDE, {"rows": gone})

        await self._database.write(unit)
        await self._database.truncate_log()

    @override
    async def lines(self, person_id: str) -> Sequence[tuple[str, Turn]]:
        asked = {"person": person_id}
        query = _LINES.order_by(turn.c.id)
        rows = await self._database.read(lambda c: c.execute(query, asked).all())
        lines: dict[object, Row[*tuple[Any, ...]]] = {}
        for row in rows:  # branches of a conversation have copies
            channel = address_of(row.conversation).channel
            key = row.id if row.message_id is None else (channel, row.message_id)
            lines.setdefault(key, row)
        return decode_all("turn", lines.values(), lambda row: (row.conversation, to_turn(row)))

    @override
    async def descriptions(self, person_id: str) -> Mapping[str, str]:
        is_own = _is_of(person_id, self._database.dialect)
        is_description = choice.c.key == "persona"
        query = select(choice.c.scope, choice.c.value).where(is_description, is_own)
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row.scope: row.value for row in rows}


def _is_by(person_id: str, kind: str, payload: bytes | str | None) -> bool:
    """Tell whether a person caused an event; one that cannot be read, if it names them."""
    try:
        event: Incoming = decode_event(kind, payload)
    except Undecodable:
        return person_id in str(payload)
    written = event.said if isinstance(event, Edited) else event
    return isinstance(written, Said | Pressed) and written.author.id == person_id


def _is_of(person_id: str, dialect: str) -> ColumnElement[bool]:
    everywhere = choice.c.scope == person_id
    return or_(everywhere, has_prefix(choice.c.scope, f"{person_id}@", dialect))


class SqlForgottenConversations(ForgottenConversations):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def since(self, moment: float) -> Mapping[int, str]:
        query = select(forgotten.c.id, forgotten.c.conversation).where(forgotten.c.at >= moment)
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row.id: row.conversation for row in rows}
