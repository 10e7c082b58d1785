"""When `hear` returns, messages are safe; who must walk them is told, or finds them."""

from collections.abc import Mapping, Sequence

import pytest
from typing_extensions import override

from bot.chat.incoming import Incoming
from bot.errors import StoreError
from bot.intake.intake import InboxIntake
from bot.runtime.clock import SystemClock
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from tests.samples import incoming


class Bell:
    def __init__(self) -> None:
        self.rung: list[Sequence[str]] = []

    async def ring(self, conversations: Sequence[str]) -> None:
        self.rung.append(conversations)


class FullInbox(SqlInbox):
    @override
    async def receive(self, heard: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        raise StoreError("the disk is full")


class RememberingInbox(SqlInbox):
    heard: Sequence[Incoming] = ()

    @override
    async def receive(self, heard: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        self.heard = heard
        await super().receive(heard, cursors)


async def test_each_conversation_is_woken_once_after_its_messages_are_stored(
    database: Database,
) -> None:
    bell, inbox = Bell(), SqlInbox(database, SystemClock())
    intake = InboxIntake(inbox, bell.ring)
    await intake.receive(
        [incoming(key="5:1"), incoming(key="6:1", chat="6"), incoming(key="5:2")], {"offset": "3"}
    )
    assert bell.rung == [["telegram:5", "telegram:6"]]
    assert await inbox.pending_conversations(10, ["telegram"]) == ["telegram:5", "telegram:6"]
    assert await intake.cursors("off") == {"offset": "3"}


async def test_what_could_not_be_stored_is_not_acknowledged_and_wakes_nobody(
    database: Database,
) -> None:
    bell = Bell()
    intake = InboxIntake(FullInbox(database, SystemClock()), bell.ring)
    with pytest.raises(StoreError):
        await intake.receive([incoming()], {"offset": "3"})
    assert bell.rung == []


async def test_nothing_comes_to_the_inbox_that_no_database_stores(database: Database) -> None:
    inbox = RememberingInbox(database, SystemClock())

    await InboxIntake(inbox, Bell().ring).receive([incoming("a\0b", quote="\0")], {})

    assert [(one.text, one.quote) for one in inbox.heard] == [("a\ufffdb", "\ufffd")]
