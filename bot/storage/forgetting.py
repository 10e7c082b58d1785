"""What is stored of a person or a channel, and what was forgotten of them.

What was forgotten also stands in a file beside the database, so that a backup brings nothing back.
Each line is a JSON object with ids and a time, without anybody's words. It is written before the
transaction that forgets.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, or_, select, update

from bot.chat.incoming import (
    HISTORY_MARK,
    Edited,
    ForgetRequested,
    Incoming,
    Pressed,
    Said,
    address_of,
)
from bot.chat.session import Turn
from bot.errors import StoreError, Undecodable
from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.storage.rows import decode_all, decode_event
from bot.storage.statements import has_prefix
from bot.storage.tables import (
    choice,
    conversation,
    forgotten,
    inbox,
    is_set_aside,
    message_note,
    receipt,
    turn,
)
from bot.storage.turn_rows import TURN_COLUMNS, to_turn

FILE_NAME = "forgotten.jsonl"


class Tombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was forgotten at a moment; everything that is named of it."""

    at: float
    """In Unix seconds."""
    conversation: str | None = None
    """All of it, unless turns or messages are named."""
    turns: tuple[int, ...] = ()
    """The ids of turns of the conversation."""
    messages: tuple[str, ...] = ()
    """The platform's ids of the messages that were those turns."""
    person: str | None = None
    """Whose descriptions of themselves were deleted."""

    @property
    def is_of_whole_conversation(self) -> bool:
        return self.conversation is not None and not (self.turns or self.messages)


class TombstoneFile:
    """Appends to a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, tombstone: Tombstone) -> None:
        """Store one before what it names is deleted; raises `StoreError`."""
        line = msgspec.json.encode(tombstone) + b"\n"
        try:
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(file).st_size
                is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                os.write(file, b"\n" + line if is_cut else line)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error


def read_tombstones(files: Iterable[Path]) -> list[Tombstone]:
    """Read files of tombstones; a file that does not exist has none.

    Raises:
        StoreError: one cannot be read, or a line of it that is complete is not a tombstone.
    """
    return [one for file in files for one in _read(file)]


def _read(file: Path) -> Iterator[Tombstone]:
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error
    # What stands behind the last line break was being written when the process died.
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield msgspec.json.decode(line, type=Tombstone)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{file}, line {number} is not a tombstone: {error}; delete it if it was cut off"
            ) from None


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


class SqlPersonalData:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        record_tombstone: Callable[[Tombstone], None] = _record_nothing,
    ) -> None:
        self._database = database
        self._clock = clock
        self._record_tombstone = record_tombstone

    async def note_forgotten(self, person_id: str) -> None:
        """Delete notes that quote the person.

        Record, so that it outlives the database, that the person's descriptions are deleted.
        """
        self._record_tombstone(Tombstone(self._clock.now(), person=person_id))
        # Notes quote messages that were ignored, of which nothing else is stored.
        asked = {"person": person_id}
        await self._database.write(lambda c: c.execute(_DROP_NOTES, asked).rowcount)

    async def conversations(self, person_id: str) -> Sequence[str]:
        """Return the keys of the conversations in which the person has said something."""
        asked = {"person": person_id}
        query = _CONVERSATIONS.order_by(turn.c.conversation)
        return await self._database.read(lambda c: c.execute(query, asked).scalars().all())

    async def drop_set_aside(self, person_id: str) -> None:
        """Delete what the person wrote and what was set aside because it could not be processed."""

        def unit(connection: Connection) -> None:
            gone = [
                row.id
                for row in connection.execute(_SET_ASIDE)
                if _is_by(person_id, row.kind, row.payload)
            ]
            connection.execute(_DROP_SET_ASIDE, {"rows": gone})

        await self._database.write(unit)
        await self._database.truncate_log()

    async def lines(self, person_id: str) -> Sequence[tuple[str, Turn]]:
        """Return what the person said, oldest first, each with the key of its conversation."""
        asked = {"person": person_id}
        query = _LINES.order_by(turn.c.id)
        rows = await self._database.read(lambda c: c.execute(query, asked).all())
        lines: dict[object, Row[*tuple[Any, ...]]] = {}
        for row in rows:  # branches of a conversation have copies
            channel = address_of(row.conversation).channel
            key = row.id if row.message_id is None else (channel, row.message_id)
            lines.setdefault(key, row)
        return decode_all("turn", lines.values(), lambda row: (row.conversation, to_turn(row)))

    async def descriptions(self, person_id: str) -> Mapping[str, str]:
        """Return what the person said of themselves with /me, by the scope of the setting."""
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


class SqlForgottenConversations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def since(self, moment: float) -> Mapping[int, str]:
        """Return the conversations by numbers that never return, from a moment in Unix seconds."""
        query = select(forgotten.c.id, forgotten.c.conversation).where(forgotten.c.at >= moment)
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row.id: row.conversation for row in rows}


async def conversations_of_channel(database: Database, channel: str) -> Sequence[str]:
    """Return the conversations of a channel, with those of its topics and other histories."""
    key = conversation.c.key
    parts = [key.startswith(f"{channel}{mark}", autoescape=True) for mark in (":", HISTORY_MARK)]
    query = select(key).where(or_(key == channel, *parts)).order_by(key)
    return await database.read(lambda c: c.execute(query).scalars().all())


async def conversations_of_server(database: Database, server: str) -> Sequence[str]:
    """Return the conversations of a server in which something was answered in 400 days."""
    of = receipt.c.conversation
    query = select(of).where(receipt.c.server == server).distinct().order_by(of)
    return await database.read(lambda c: c.execute(query).scalars().all())


async def request_deletion(
    database: Database, clock: Clock, keys: Sequence[str], person: str | None
) -> None:
    """Ask for the deletion of conversations, or of what a person said in them.

    The worker of each conversation does so in its turn, with all that was made of it.
    """
    request, at = secrets.token_hex(6), datetime.fromtimestamp(clock.now(), UTC)
    events = [
        ForgetRequested(
            address=address_of(key),
            external_key=f"operator:{request}:{key}",
            person_id=person,
            at=at,
            scopes=(key,),
        )
        for key in keys
    ]
    await SqlInbox(database, clock).receive(events, {})
