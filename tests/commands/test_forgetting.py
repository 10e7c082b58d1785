"""Test that every process forgets a conversation that another process deleted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from typing_extensions import override

from bot.chat.session import TurnResult
from bot.commands.privacy import ForgottenConversations
from bot.ports import ConversationMemory
from bot.runtime.tasks import cancel_and_wait
from bot.service.jobs import repeat
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData
from bot.storage.inbox import SqlInbox
from tests.fakes import FakeClock
from tests.samples import begin, make_incoming
from tests.waiting import wait_until

CONVERSATION = "telegram:5"
_KEPT_SECONDS = 1000.0


class SlotsOfAModel(ConversationMemory):
    def __init__(self) -> None:
        self.forgotten: list[str] = []

    @override
    async def end_session(self, conversation: str) -> None:
        raise NotImplementedError

    @override
    async def forget(self, conversation: str) -> None:
        self.forgotten.append(conversation)


class Node:
    """The memory of one process: model slots and forgotten conversations."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        self.slots = SlotsOfAModel()
        self.models = [self.slots]
        data = PersonalData(database, clock)
        self.clock = clock
        self.memories = ForgottenConversations(lambda: self.models, data, clock, _KEPT_SECONDS)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(repeat(self.memories.drop_deleted_conversations, self.clock, 5))
        try:
            yield
        finally:
            await cancel_and_wait([task])


async def delete_history(database: Database, clock: FakeClock) -> None:
    """Delete a conversation as /forget does, without a signal to other processes."""
    await SqlInbox(database, clock).receive([make_incoming(key=f"5:{clock.now()}")], {})
    conversations = Conversations(database, clock)
    claim, message = await begin(conversations, CONVERSATION)
    await conversations.forget(claim)
    await conversations.finish(claim, message, TurnResult())


async def test_conversation_is_forgotten_by_backends_added_later_as_well(
    database: Database,
) -> None:
    node, later = Node(database, FakeClock()), SlotsOfAModel()
    node.models.append(later)
    await node.memories.forget(CONVERSATION)
    assert node.slots.forgotten == later.forgotten == [CONVERSATION]


async def test_deleted_conversation_is_forgotten_once_by_another_process_within_seconds(
    database: Database,
) -> None:
    clock = FakeClock()
    node = Node(database, clock)
    async with node.running():
        await delete_history(database, clock)
        await clock.advance(6)
        await wait_until(lambda: bool(node.slots.forgotten))
        await clock.advance(6)
        await clock.advance(6)
    assert node.slots.forgotten == [CONVERSATION]


async def test_process_that_was_down_forgets_the_conversation_when_it_starts(
    database: Database,
) -> None:
    clock = FakeClock()
    await delete_history(database, clock)
    await clock.advance(_KEPT_SECONDS / 2)
    node = Node(database, clock)
    async with node.running():
        await wait_until(lambda: bool(node.slots.forgotten))
    assert node.slots.forgotten == [CONVERSATION]
