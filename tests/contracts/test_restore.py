"""Contract of restores: nothing is sent twice, and deleted data stays deleted; both databases."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from bot.chat.incoming import ButtonPress, IncomingMessage, Quote
from bot.chat.operation import DatabaseRestore
from bot.chat.outgoing import MessageContent, OutboxState, OutgoingPart
from bot.chat.session import HistoryChange, InboxMessage, MessageNote, Turn, TurnResult
from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.conversations import Conversations
from bot.storage.forgetting import PersonalData, Tombstone, read_tombstones, record_tombstone
from bot.storage.operation import SqlMessageNotes
from bot.storage.restoring import (
    copy_backup,
    find_last_write_time,
    prepare_restored_database,
    read_last_restore,
    replace_database,
)
from bot.storage.tables import conversation, cursor, inbox, setting, turn
from bot.turn.limits.refusals import PreRestoreFilter
from tests.samples import ALICE, BOB, begin, make_incoming
from tests.support.store import LANE, Store, answer, finish, present, texts_of

NOW = SystemClock().now()
LATER = NOW + 86_400  # s; later than any test that runs after the import of this module


async def say_and_answer(store: Store, text: str, key: str) -> None:
    at = datetime.now(UTC)
    said = Turn("user", text, ALICE, at, message_id=key.rpartition(":")[2])
    answered = Turn("assistant", f"about {text}", None, at, "nora", 1)
    await finish(store, key, turns=[said, answered])


async def test_unconfirmed_sends_are_looked_up_after_a_restore(store: Store) -> None:
    await answer(store, "part 0", "part 1")
    [first] = await store.outbox.reserve_due_rows([LANE])
    assert first.state is OutboxState.PENDING

    unknown, _ = await prepare_restored_database(store.database, [], NOW, NOW)

    assert unknown == 2
    [first] = await store.other_outbox.reserve_due_rows([LANE])
    assert (first.state, first.content.text) == (OutboxState.UNKNOWN, "part 0")
    second = present(await store.other_outbox.mark_sent(first, "9"))
    assert (second.state, second.content.text) == (OutboxState.UNKNOWN, "part 1")


@pytest.mark.parametrize("event", ["message", "press"])
@pytest.mark.parametrize("bot_id", ["", "77"])
async def test_unsent_part_of_an_unfinished_answer_is_not_sent_after_a_restore(
    store: Store, event: str, bot_id: str
) -> None:
    said = make_incoming()
    address = replace(said.address, bot_id=bot_id)
    pressed = ButtonPress(address, "p:1", "1", ALICE, "retry", said.at, said.scopes)
    incoming = pressed if event == "press" else replace(said, address=address)
    await store.inbox.receive([incoming], {})
    claim, message = await begin(store.conversations, incoming.address.conversation)
    await store.conversations.open_part(claim, message, OutgoingPart(0, MessageContent("It gr")))

    possibly_sent_count, _ = await prepare_restored_database(store.database, [], NOW, NOW)

    assert possibly_sent_count == 0
    assert await store.outbox.reserve_due_rows([incoming.address.lane]) == []


async def test_unfinished_message_is_restored_without_claim_and_crash_count(store: Store) -> None:
    await store.inbox.receive([make_incoming()], {})
    await begin(store.conversations, owner="lost")

    _, unanswered = await prepare_restored_database(store.database, [], NOW, NOW)

    assert unanswered == 1
    _, message = await begin(store.conversations, owner="new")
    assert (message.crash_count, message.own_crash_count) == (0, 0)


async def test_restore_ends_sessions_and_skips_old_button_presses(store: Store) -> None:
    said = make_incoming()
    pressed = ButtonPress(said.address, "p:1", "1", ALICE, "stop", said.at, said.scopes)
    await store.inbox.receive([pressed], {"discord:0/1 session": "x", "discord:channel 5": "17 0"})

    _, unanswered = await prepare_restored_database(store.database, [], NOW, NOW)

    assert unanswered == 0
    names = await store.scalars(select(cursor.c.name))
    assert names == ["discord:channel 5"], (
        "how far a channel was read is kept: the rest is read again"
    )


async def test_restore_deletes_only_turns_named_in_tombstones(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "forgotten.jsonl"
    recording = Conversations(
        store.database, SystemClock(), record_tombstone=partial(record_tombstone, file)
    )
    await say_and_answer(store, "secret", "5:1")
    await say_and_answer(store, "harmless", "5:2")
    before = await texts_of(store)
    await store.inbox.receive([make_incoming("/forget last", key="5:3")], {})
    claim, message = await begin(recording)
    found = await recording.find_turns(claim, ["1"])
    change = HistoryChange(deleted_ids=[one.id for one in found])
    assert file.exists() is False
    await recording.finish(claim, message, TurnResult(change=change))
    [tombstone] = read_tombstones([file])
    assert (tombstone.conversation, tombstone.messages) == (LANE, ("1",))
    assert file.stat().st_mode & 0o077 == 0
    assert b"secret" not in file.read_bytes()

    await bring_back(store, "secret", found[0].id)
    assert sorted(await texts_of(store)) == sorted(before)
    await prepare_restored_database(store.database, [tombstone], LATER, LATER)

    assert "secret" not in await texts_of(store)
    assert "harmless" in await texts_of(store)
    restored = await read_last_restore(store.database, NOW)
    assert restored == DatabaseRestore(LATER, frozenset({(LANE, "1")}))


async def bring_back(store: Store, text: str, id_: int) -> None:
    """Insert a turn again, as a backup would."""
    session = select(conversation.c.session).where(conversation.c.key == LANE)
    current = await store.scalar(session)
    row = {"id": id_, "conversation": LANE, "session": current, "role": "user", "text": text}
    row |= {"at": NOW - 10, "speaker_id": ALICE.id, "speaker_name": "A", "message_id": "1"}
    await store.write(insert(turn), row)


async def test_tombstone_does_not_delete_a_newer_turn_with_the_same_id(store: Store) -> None:
    await say_and_answer(store, "harmless", "5:1")
    old = Tombstone(NOW - 1000, LANE, turns=(1, 2), messages=("77",))

    await prepare_restored_database(store.database, [old], LATER, LATER)

    assert await texts_of(store) == ["harmless", "about harmless"]


async def test_conversation_is_forgotten_up_to_the_time_of_the_tombstone(store: Store) -> None:
    await say_and_answer(store, "secret", "5:1")
    await store.inbox.receive([make_incoming("unanswered secret", key="5:2")], {})
    scope = f"{ALICE.id}@{LANE}"
    await store.chat_settings.set(scope, "persona", "tall", ALICE.id)

    await prepare_restored_database(store.database, [Tombstone(LATER, LANE)], LATER, LATER)

    assert await texts_of(store) == []
    assert await store.scalars(select(inbox.c.payload)) == [None, None]
    assert await store.scalars(select(setting.c.scope)) == []
    assert await store.conversations.claim_next([LANE], "me", 60) == []


async def test_tombstone_deletes_only_older_descriptions_of_the_person(
    store: Store,
) -> None:
    for scope in (ALICE.id, f"{ALICE.id}@{LANE}", f"{ALICE.id}0", BOB.id):
        await store.chat_settings.set(scope, "persona", "tall", "x")
    left = []
    for at in (NOW - 1000, LATER):
        await prepare_restored_database(
            store.database, [Tombstone(at, person=ALICE.id)], LATER, LATER
        )
        left.append(await store.scalars(select(setting.c.scope)))
    assert [len(scopes) for scopes in left] == [4, 2]
    assert sorted(left[1]) == sorted([f"{ALICE.id}0", BOB.id])


async def test_newest_consent_of_a_person_survives_a_restore(store: Store) -> None:
    await store.chat_settings.set(BOB.id, "consent", "off", BOB.id)
    chosen: list[Tombstone] = []
    data = PersonalData(store.database, SystemClock(), chosen.append)
    for person, consent in ((ALICE, "server"), (ALICE, "off"), (BOB, "")):
        data.record_consent(person.id, consent)

    await prepare_restored_database(store.database, chosen, LATER, LATER)

    assert await store.chat_settings.get_all([ALICE.id, BOB.id], "consent") == {ALICE.id: "off"}


async def test_restore_deletes_notes_that_quote_people(store: Store) -> None:
    notes = SqlMessageNotes(store.database, SystemClock())
    await notes.add([MessageNote("why:telegram:5", "forgotten since", ALICE.id)])
    await prepare_restored_database(store.database, [], LATER, LATER)
    assert await notes.list_notes("why:telegram:5", 9) == []


async def test_restore_older_than_a_month_is_ignored(store: Store) -> None:
    assert await read_last_restore(store.database, NOW) is None
    long_ago = NOW - 31 * 86_400
    await prepare_restored_database(store.database, [], long_ago, long_ago)
    assert await read_last_restore(store.database, NOW) is None


# --- what a process does with messages from before ---------------------------------------------


async def messages_after(restore: DatabaseRestore | None) -> PreRestoreFilter:
    async def read() -> DatabaseRestore | None:
        return restore

    messages = PreRestoreFilter(read)
    await messages.load_newest_restore()
    return messages


def said_at(moment: float, text: str = "hi", key: str = "5:1") -> IncomingMessage:
    return replace(make_incoming(text, key=key), at=datetime.fromtimestamp(moment, UTC))


@pytest.mark.parametrize(
    ("message", "kept", "is_context_only"),
    [
        (said_at(NOW - 10), True, True),
        (said_at(NOW + 10), True, False),
        (said_at(NOW - 10, "/preset use nova"), False, True),
        (said_at(NOW + 10, "/preset use nova"), True, False),
        (said_at(NOW - 10, key="5:7"), False, True),
        (said_at(NOW - 500), False, True),
    ],
)
async def test_message_from_before_a_restore_is_only_context(
    message: IncomingMessage, kept: bool, is_context_only: bool
) -> None:
    restore = DatabaseRestore(NOW, frozenset({(f"{LANE}#user=3", "7")}), {LANE: NOW - 100})
    messages = await messages_after(restore)
    assert (messages.filter_event(message) is not None) is kept
    assert messages.is_obsolete(message) is not kept
    assert messages.is_context_only(InboxMessage(1, message, 0)) is is_context_only


async def test_quote_of_a_forgotten_message_has_no_text() -> None:
    messages = await messages_after(DatabaseRestore(NOW, frozenset({(LANE, "7")})))
    quoting = replace(said_at(NOW + 10), quote=Quote(BOB, "7", "a secret"))
    kept = messages.filter_event(quoting)
    assert isinstance(kept, IncomingMessage)
    assert kept.quote == Quote(BOB, "7", "")


async def test_messages_are_not_filtered_without_a_restore() -> None:
    messages, said = await messages_after(None), said_at(0, "/help")
    assert messages.filter_event(said) is said
    assert not messages.is_obsolete(said)
    assert not messages.is_context_only(InboxMessage(1, said, 0))


# --- files -------------------------------------------------------------------------------------


def test_incomplete_last_tombstone_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "forgotten.jsonl"
    record_tombstone(file, Tombstone(1.0, LANE))
    with file.open("ab") as end:
        end.write(b'{"at": 2.0, "conv')
    assert read_tombstones([file, tmp_path / "none"]) == [Tombstone(1.0, LANE)]

    record_tombstone(file, Tombstone(3.0, LANE))
    with pytest.raises(StoreError, match=r"line 2 .*delete the line if it was cut off"):
        read_tombstones([file])
    assert file.read_bytes().endswith(b'\n{"at":3.0,"conversation":"telegram:5"}\n')


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(100)])
def test_file_that_is_not_a_backup_is_refused(tmp_path: Path, content: bytes) -> None:
    backup = tmp_path / "backup.db"
    backup.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be restored"):
        copy_backup(backup, tmp_path / "troupe.db")
    assert [one.name for one in tmp_path.iterdir()] == ["backup.db"]


def test_restore_leaves_no_files_next_to_the_backup(tmp_path: Path) -> None:
    backup = tmp_path / "backups" / "backup.db"
    backup.parent.mkdir()
    with closing(sqlite3.connect(backup)) as copied_file:
        copied_file.execute("PRAGMA journal_mode=WAL")
        copied_file.execute("CREATE TABLE alembic_version (version_num TEXT)")
    copy_backup(backup, tmp_path / "troupe.db")
    assert list(backup.parent.iterdir()) == [backup]


def test_repeated_restore_keeps_the_lost_database_and_its_last_write_time(tmp_path: Path) -> None:
    database = tmp_path / "troupe.db"
    database.write_bytes(b"lost")
    os.utime(database, (NOW - 100, NOW - 100))
    until = find_last_write_time(database)
    assert until is not None
    for number in range(3):
        part = tmp_path / "troupe.db.restoring"
        part.write_bytes(b"restored %d" % number)
        replace_database(part, database, until)
        assert find_last_write_time(database) == until
    kept = {one.name: one.read_bytes() for one in tmp_path.glob("*.replaced*")}
    assert kept == {
        "troupe.db.replaced": b"lost",
        "troupe.db.replaced-2": b"restored 0",
        "troupe.db.replaced-3": b"restored 1",
    }
