"""Find and delete the stored data of a person or a channel.

Deletions are also recorded in a file next to the database, so that they can be repeated after a
backup is restored. Each line is a JSON object with ids and a time, without any texts. A line is
written before the transaction that deletes.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bot.chat.incoming import (
    HISTORY_SEPARATOR,
    ButtonPress,
    Incoming,
    IncomingMessage,
    MessageEdit,
    ReactionChange,
    parse_address,
)
from bot.chat.session import OWNER_SEPARATOR, display_name
from bot.errors import StoreError, Undecodable
from bot.ports import Clock
from bot.storage.data_kinds import PERSON_DELETION_SQL_NAMES
from bot.storage.database import ClockStore, Database, run_readonly
from bot.storage.rows import decode, decode_all, decode_event, to_turn
from bot.storage.statements import SQL, Rows, Unit, to_dict

TOMBSTONE_FILE = "forgotten.jsonl"
CHARACTER_DELETIONS = (
    "forget_characters",
    "forget_list_of_characters",
    "forget_changes_of_characters",
)


class Tombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of a deletion, kept outside the database."""

    at: float
    """The time of the deletion, in Unix seconds."""
    conversation: str | None = None
    """The conversation; all of it was deleted unless turns, messages or memories are listed."""
    turns: tuple[int, ...] = ()
    """The ids of the deleted turns."""
    messages: tuple[str, ...] = ()
    """The platform's ids of the deleted turns' messages."""
    memories: tuple[int, ...] = ()
    """The ids of memories that were deleted one by one."""
    person: str | None = None
    """The person whose self-descriptions were deleted."""
    consent_of: str | None = None
    """The person who chose a `Consent`."""
    consent: str = ""
    """The chosen `Consent`; empty if the choice was deleted."""


def record_tombstone(path: Path, tombstone: Tombstone) -> None:
    """Append a tombstone to a file, before the data is deleted; raises `StoreError`."""
    line = msgspec.json.encode(tombstone) + b"\n"
    try:
        with open(path, "a+b", 0, opener=partial(os.open, mode=0o600)) as file:
            ends_mid_line = file.tell() > 0 and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n"
            file.write(b"\n" + line if ends_mid_line else line)
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def read_tombstones(files: Iterable[Path]) -> list[Tombstone]:
    """Return the tombstones in the files that exist; raises `StoreError` if one is damaged."""
    tombstones = []
    for file in files:
        try:
            lines = file.read_bytes().split(b"\n")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error.strerror}") from error
        # Text after the last line break is incomplete, because the process died while writing.
        for number, line in enumerate(lines[:-1], 1):
            try:
                tombstones.append(msgspec.json.decode(line, type=Tombstone))
            except msgspec.DecodeError as error:
                reason = f"is not a tombstone: {error}; delete the line if it was cut off"
                raise StoreError(f"{file}, line {number} {reason}") from None
    return tombstones


class TombstoneStore(ClockStore):
    """Base class of stores that record their deletions in the tombstone file."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        record_tombstone: Callable[[Tombstone], None] = lambda _: None,
    ) -> None:
        super().__init__(database, clock)
        self._record_tombstone = record_tombstone


class PersonalData(TombstoneStore):
    """Reads and deletes a person's data in all conversations."""

    async def list_conversations(self, person_id: str) -> Sequence[str]:
        """Return the conversations that contain stored or waiting messages of the person."""
        rows = await self._database.fetch(SQL["conversations_of_person"], person=person_id)
        conversations = dict.fromkeys(row[0] for row in rows)
        key, last = "", 0
        while page := await self._database.fetch(SQL["page_of_waiting"], last_key=key, last=last):
            for key, _, kind, payload in page:
                if _involves_person(person_id, kind, payload):
                    conversations[key] = None
            key, last = page[-1][:2]
        return list(conversations)

    def record_consent(self, person_id: str, consent: str) -> None:
        """Record a consent in the tombstone file; "" means that the stored consent was deleted."""
        self._record_tombstone(Tombstone(self._clock.now(), consent_of=person_id, consent=consent))

    async def forget_outside_histories(self, person_id: str) -> None:
        """Delete the person's memories, characters, feedback, dead letters and logged decisions."""

        def delete_data() -> Unit[None]:
            rows = yield SQL["messages_set_aside"].query()
            message_ids = [
                id_ for id_, kind, payload in rows if _involves_person(person_id, kind, payload)
            ]
            yield SQL["drop_messages_set_aside"].query(rows=json.dumps(message_ids))
            for name in PERSON_DELETION_SQL_NAMES:
                values = {"until": math.inf, "moment": now, "content": b""}
                yield SQL[name].query({"person": person_id, **values})

        now = self._clock.now()
        self._record_tombstone(Tombstone(now, person=person_id))
        await self._database.run(delete_data)
        await self._database.truncate_log()

    async def forget_characters_of_server(self, server: str) -> Sequence[str]:
        """Delete the characters of a server; return the scopes whose settings changed."""

        def delete_and_list_scopes() -> Unit[Sequence[str]]:
            for name in CHARACTER_DELETIONS:
                yield SQL[name].query(person=server, until=math.inf)
            settings = _find_character_settings(server, (yield SQL["chosen_presets"].query()))
            for scope, key in settings:
                yield SQL["reset_choice"].query(scope=scope, key=key)
            return [server, *(scope for scope, _ in settings)]

        self._record_tombstone(Tombstone(self._clock.now(), person=server))
        changed_scopes = await self._database.run(delete_and_list_scopes)
        await self._database.truncate_log()
        return changed_scopes

    @run_readonly
    def export(self, person_id: str) -> Unit[Mapping[str, Any]]:
        """Return the person's data as JSON values; the messages are sorted, oldest first."""
        person_values, scope_bounds = {"person": person_id}, _scope_bounds(person_id)
        messages: dict[object, Mapping[str, str]] = {}
        rows = yield SQL["lines_of_person"].query_alone(person_values)
        for id_, key, turn in decode_all("turn", rows, lambda row: (*row[-2:], to_turn(row))):
            channel = parse_address(key).channel  # branches contain copies of turns
            message_key = id_ if turn.message_id is None else (channel, turn.message_id)
            line = {"conversation": key, "at": turn.at.isoformat(), "text": turn.text}
            messages.setdefault(message_key, line)
        descriptions = yield SQL["descriptions"].query_alone({**person_values, **scope_bounds})
        characters = yield SQL["newest_of_owner"].query_alone(owner=person_id)
        consents = yield SQL["consent_of_person"].query_alone(person_values)
        memories = yield SQL["memory_texts_of_person"].query_alone(person_values)
        memory_fields = ("text", "about", "audience", "since")
        reactions = yield SQL["feedback_of_person"].query_alone(person_values)
        return {
            "consent": next((decode(lambda row: str(row[0]), one) for one in consents), None),
            "descriptions": {one[0]: decode(lambda row: str(row[1]), one) for one in descriptions},
            "characters": {
                display_name(one[0]): decode(lambda row: json.loads(row[1]), one)
                for one in characters
            },
            "memories": decode_all(
                "memory", memories, lambda row: dict(zip(memory_fields, row, strict=True))
            ),
            "confirmed_age": bool((yield SQL["confirmed_age"].query_alone(person_values))),
            "messages": list(messages.values()),
            "reactions": [
                {
                    "conversation": conversation,
                    "at": datetime.fromtimestamp(at, UTC).isoformat(),
                    "reaction": reaction,
                }
                for conversation, at, reaction in reactions
            ],
        }

    @run_readonly
    def list_settings(self, person_id: str) -> Unit[Sequence[tuple[str, str]]]:
        """Return the scope and key of each setting that is deleted with the person's messages."""
        person_values, scope_bounds = {"person": person_id}, _scope_bounds(person_id)
        rows = yield SQL["settings_of_person"].query({**person_values, **scope_bounds})
        setting_rows = yield SQL["presets_chosen_by"].query(person_values)
        character_settings = _find_character_settings(person_id, setting_rows)
        return [*((str(scope), str(key)) for scope, key in rows), *character_settings]

    @run_readonly
    def find_conversations_with_deletions(self, since: float) -> Unit[Mapping[int, str]]:
        """Return the conversations with deletions since a time, by the deletion's number."""
        return to_dict((yield SQL["forgotten_since"].query_alone(since=since)))


def _scope_bounds(person_id: str) -> Mapping[str, str]:
    """Return the bounds of all scopes `PERSON@PLACE`, which hold a person's settings for places."""
    return {"anywhere": f"{person_id}@", "end_of_anywhere": f"{person_id}@\U0010ffff"}


def _find_character_settings(owner: str, setting_rows: Rows) -> list[tuple[str, str]]:
    """Return the scope and key of each setting that refers to a character of this owner."""
    prefix = f"{owner}{OWNER_SEPARATOR}"
    return [
        (scope, key)
        for scope, key, value in setting_rows
        if any(name.startswith(prefix) for name in str(value).splitlines())
    ]


def _involves_person(person_id: str, kind: str, payload: bytes | str | None) -> bool:
    """Return whether a person wrote an event; if it is unreadable, whether it contains their id."""
    try:
        event: Incoming = decode_event(kind, payload)
    except Undecodable:
        return person_id in str(payload)
    message = event.said if isinstance(event, MessageEdit) else event
    return (
        isinstance(message, IncomingMessage | ButtonPress | ReactionChange)
        and message.author.id == person_id
    )


async def list_channel_conversations(database: Database, channel: str) -> Sequence[str]:
    """Return a channel's conversations, including those of its topics and histories."""
    prefixes = {"topics": f"{channel}:", "branches": f"{channel}{HISTORY_SEPARATOR}"}
    return [
        row[0] for row in await database.fetch(SQL["keys_of_channel"], channel=channel, **prefixes)
    ]


async def list_server_conversations(database: Database, server: str) -> Sequence[str]:
    """Return a server's conversations with answers in the last 400 days."""
    return [row[0] for row in await database.fetch(SQL["keys_of_server"], server=server)]
