"""When `receive` returns, messages are committed and their conversations are woken."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from typing_extensions import override

from bot.chat.incoming import (
    ButtonPress,
    Incoming,
    IncomingMessage,
    MediaItem,
    MediaKind,
    Quote,
    ThreadTitle,
)
from bot.chat.session import CHANNEL_TITLE_KEY
from bot.errors import StoreError
from bot.intake import InboxIntake, to_storable_message
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from tests.samples import make_incoming


class RecordingWaker:
    def __init__(self) -> None:
        self.woken: list[Sequence[str]] = []

    def wake(self, conversations: Sequence[str]) -> None:
        self.woken.append(conversations)


class FailingInbox(SqlInbox):
    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        raise StoreError("the disk is full")


class RecordingInbox(SqlInbox):
    received: Sequence[Incoming] = ()

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        self.received = messages
        await super().receive(messages, cursors)


class RecordingSettings(SqlChatSettings):
    writes = 0

    @override
    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, is_audited: bool = False
    ) -> None:
        self.writes += 1
        await super().set(scope, key, value, by, is_audited=is_audited)


async def test_title_of_a_channel_is_stored_only_when_it_changes(database: Database) -> None:
    clock = SystemClock()
    settings, inbox = RecordingSettings(database, clock), SqlInbox(database, clock)
    intake = InboxIntake(inbox, RecordingWaker().wake, settings=settings)
    for number, title in enumerate(["", "Round table", "Round table", "Square\0 table"]):
        said = replace(make_incoming(key=f"5:{number}"), channel_title=title)
        await intake.receive([said], {})
    assert settings.writes == 2
    assert await settings.get_all(["telegram:5"], CHANNEL_TITLE_KEY) == {
        "telegram:5": "Square\ufffd table"
    }


async def test_title_written_by_a_person_who_opted_out_is_not_stored(database: Database) -> None:
    clock = SystemClock()
    settings, inbox = RecordingSettings(database, clock), SqlInbox(database, clock)

    async def find_opted_out(_: Sequence[Incoming]) -> Collection[str]:
        return {"telegram:2"}

    waker = RecordingWaker()
    intake = InboxIntake(inbox, waker.wake, find_opted_out=find_opted_out, settings=settings)
    in_thread = replace(
        make_incoming(),
        channel_title="Inn › #harbour › my plans",
        thread_title=ThreadTitle("my plans", "telegram:2"),
    )
    await intake.receive([in_thread], {})
    assert settings.writes == 0


async def test_each_conversation_is_woken_once_its_messages_are_stored(database: Database) -> None:
    waker, inbox = RecordingWaker(), SqlInbox(database, SystemClock())
    intake = InboxIntake(inbox, waker.wake)
    await intake.receive(
        [make_incoming(key="5:1"), make_incoming(key="6:1", chat="6"), make_incoming(key="5:2")],
        {"offset": "3"},
    )
    assert waker.woken == [["telegram:5", "telegram:6"]]
    assert await Conversations(database, SystemClock()).list_ready_conversations(
        10, ["telegram"]
    ) == [
        "telegram:5",
        "telegram:6",
    ]
    assert await intake.cursors("off") == {"offset": "3"}


async def test_failed_store_raises_and_wakes_no_conversation(database: Database) -> None:
    waker = RecordingWaker()
    intake = InboxIntake(FailingInbox(database, SystemClock()), waker.wake)
    with pytest.raises(StoreError):
        await intake.receive([make_incoming()], {"offset": "3"})
    assert waker.woken == []


async def test_characters_that_databases_cannot_store_are_replaced(database: Database) -> None:
    inbox = RecordingInbox(database, SystemClock())

    title = ThreadTitle("\0 sk-" + "a1B2" * 12, "telegram:2")
    said = replace(make_incoming("a\0b", quote="\0"), thread_title=title)
    await InboxIntake(inbox, RecordingWaker().wake).receive([said], {})

    [stored] = inbox.received
    assert isinstance(stored, IncomingMessage)
    assert stored.thread_title is not None
    assert stored.thread_title.text.startswith("\ufffd ")
    assert "a1B2a1B2" not in stored.thread_title.text
    assert (stored.text, stored.quote) == ("a\ufffdb", Quote(None, None, "\ufffd"))
    scope = (said.address.lane,)
    pressed = ButtonPress(
        said.address, "p\0", "1", said.author, "x", said.at, scope, thread_title=title
    )
    await InboxIntake(inbox, RecordingWaker().wake).receive([pressed], {})
    [*_, stored_press] = inbox.received
    assert isinstance(stored_press, ButtonPress)
    assert stored_press.external_key == "p\ufffd"
    assert stored_press.thread_title == stored.thread_title


def test_token_in_a_file_name_is_masked() -> None:
    key = "sk-proj-FAKE0000000000000000000000000000"
    items = (MediaItem(MediaKind.FILE, f"{key}.txt"), MediaItem(MediaKind.VIDEO, f"{key}.mp4"))
    quote = Quote(None, "7", "", items)
    kept = to_storable_message(replace(make_incoming("look"), attachments=items, quote=quote))
    assert key not in repr(kept)
    assert kept.has_masked_token
    plain = replace(make_incoming("look"), attachments=(MediaItem(MediaKind.FILE, "a\0.txt"),))
    assert not to_storable_message(plain).has_masked_token
