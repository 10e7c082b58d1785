"""A message that the platform accepts after the settle time finally appears only once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from bot.chat.outgoing import Face, Limits, OutboxState
from bot.errors import OutcomeUnknown, RateLimited, Refused, Unreachable
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from tests.delivery.setup import LANE, WITHOUT_NONCES, Delivery, working
from tests.fakes import LIMITS, FakeSurface
from tests.samples import begin, make_incoming
from tests.waiting import advance_in_steps, wait_until

_LATE_SECONDS = 60.0
_LOST = OutcomeUnknown("timeout")


class LateSurface(FakeSurface):
    """A surface that loses responses, and accepts their messages when the test wants it."""

    def accept(self, text: str) -> None:
        """Let the platform accept a lost message now."""
        self.messages[str(next(self._ids))] = text


class Chat:
    """A sender that searches for late duplicates; records when its lane is woken."""

    def __init__(self, database: Database, limits: Limits = WITHOUT_NONCES) -> None:
        self.surface = LateSurface(limits)
        self.delivery = Delivery(database, surface=self.surface)
        self.woken: list[str] = []

    @property
    def texts(self) -> list[str]:
        return self.delivery.texts

    def wake(self, keys: Sequence[str]) -> None:
        self.woken += keys

    async def pass_seconds(self, seconds: float) -> None:
        await advance_in_steps(self.delivery.clock, seconds)

    async def send_twice(self, *texts: str, **more: Any) -> None:
        """Send an answer whose first part gets no response, so that it is sent again."""
        self.surface.fail_next("send", _LOST)
        await self.delivery.queue(*texts, **more)
        await self.delivery.work()
        await self.delivery.clock.advance(10)
        await self.delivery.work()
        assert self.texts == list(texts)

    @asynccontextmanager
    async def searching(self) -> AsyncIterator[Self]:
        task = asyncio.create_task(self.delivery.sender.late_duplicate_remover.run(self.wake))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def search(self) -> None:
        """Advance the clock until the search is due, and wait until it has ended."""
        self.woken.clear()
        await self.pass_seconds(_LATE_SECONDS + 1)
        await self.wait_for_search()

    async def wait_for_search(self) -> None:
        for _ in range(100):
            if self.woken:
                break
            await self.pass_seconds(1)
        assert self.woken == [LANE]
        self.woken.clear()


async def test_late_duplicate_is_deleted_within_75_seconds(database: Database) -> None:
    async with Chat(database).searching() as chat:
        began = chat.delivery.clock.now()
        await chat.send_twice("a", "b")
        await chat.pass_seconds(30)
        chat.surface.accept("a")
        await wait_until(lambda: chat.texts == ["a", "b", "a"])
        await chat.pass_seconds(31)
        await wait_until(lambda: chat.texts == ["a", "b"])
        assert chat.delivery.clock.now() - began <= 75
        await wait_until(lambda: chat.woken == [LANE])
    assert list(chat.surface.messages) == ["1", "2"], "the copy that is known stays"


async def test_late_duplicate_with_the_start_of_a_growing_answer_is_deleted(
    database: Database,
) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("first words and all the others", opening="first words")
        chat.surface.accept("first words")
        await chat.search()
    assert chat.texts == ["first words and all the others"]


async def test_two_late_duplicates_are_both_deleted(database: Database) -> None:
    chat = Chat(database)
    chat.surface.fail_next("send", _LOST, _LOST)
    await chat.delivery.queue("a")
    async with chat.searching():
        for _ in range(3):
            await chat.delivery.work()
            await chat.delivery.clock.advance(10)
        assert chat.texts == ["a"]
        chat.surface.accept("a")
        chat.surface.accept("a")
        await chat.search()
    assert chat.texts == ["a"]


async def test_nothing_is_deleted_if_there_is_no_late_duplicate(database: Database) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("a", "b")
        chat.surface.accept("of somebody else")
        await chat.search()
    assert chat.texts == ["a", "b", "of somebody else"]
    assert chat.delivery.calls("delete") == 0


async def test_another_answer_with_the_same_text_is_not_a_duplicate(database: Database) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("Yes.")
        await chat.delivery.queue("Yes.", incoming=make_incoming(key="5:9"))
        await chat.delivery.work()
        await chat.search()
    assert chat.texts == ["Yes.", "Yes."]


async def test_search_waits_for_a_message_that_is_being_sent(database: Database) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("a")
        await chat.delivery.queue("a", incoming=make_incoming(key="5:9"))
        sending = await chat.delivery.sender.claim([LANE])
        chat.surface.accept("a")  # the sender does not know the message yet
        await chat.pass_seconds(_LATE_SECONDS + 1)
        finds = chat.delivery.calls("find")
        assert finds == 1, "that of the first send"
        assert await chat.delivery.outbox.mark_sent(sending[LANE], "2") is None
        await chat.wait_for_search()
    assert chat.texts == ["a", "a"]


async def test_rows_queued_during_a_search_are_due_after_it(database: Database) -> None:
    chat = Chat(database)
    await chat.send_twice("a")
    chat.surface.gate = asyncio.Event()
    async with chat.searching():
        await chat.pass_seconds(_LATE_SECONDS + 1)
        await wait_until(lambda: chat.delivery.calls("find") == 2)
        await chat.delivery.queue("b", incoming=make_incoming(key="5:9"))
        assert await chat.delivery.sender.claim([LANE]) == {}
        chat.surface.gate.set()
        await wait_until(lambda: chat.woken == [LANE])
        await chat.delivery.work()
    assert chat.texts == ["a", "b"]


async def test_search_is_retried_after_a_rate_limit_or_failure(database: Database) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("a")
        chat.surface.accept("a")
        chat.surface.fail_next("find", RateLimited(7), Unreachable("down"))
        chat.surface.fail_next("delete", OutcomeUnknown("lost"))
        await chat.search()
        for _ in range(3):
            await chat.wait_for_search()
    assert chat.texts == ["a"]


async def test_search_that_keeps_failing_is_retried_less_and_less_often(database: Database) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("a")
        chat.surface.fail_next("find", *(OutcomeUnknown("too many messages") for _ in range(100)))
        await chat.pass_seconds(_LATE_SECONDS + 300)
    assert 2 < chat.delivery.calls("find") < 15, "each held the lane"


async def test_duplicate_stays_if_the_bot_may_not_delete_it(database: Database) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("a")
        chat.surface.accept("a")
        chat.surface.fail_next("delete", Refused("no"))
        await chat.search()
        await chat.pass_seconds(60)
    assert chat.texts == ["a", "a"]
    assert chat.delivery.calls("delete") == 1


async def test_duplicate_is_deleted_after_its_conversation_was_forgotten(
    database: Database,
) -> None:
    async with Chat(database).searching() as chat:
        await chat.send_twice("a")
        chat.surface.accept("a")
        conversations = Conversations(database, chat.delivery.clock)
        await SqlInbox(database, chat.delivery.clock).receive([make_incoming(key="5:9")], {})
        claim, _ = await begin(conversations, LANE)
        await conversations.forget(claim)
        await chat.search()
    assert chat.texts == ["a"]


async def test_abandoned_row_is_not_searched_for(database: Database) -> None:
    chat = Chat(database)
    chat.surface.fail_next("send", _LOST)
    await chat.delivery.queue("a")
    async with chat.searching():
        await chat.delivery.work()
        await chat.delivery.clock.advance(10)
        chat.surface.fail_next("send", Refused("blocked"))
        await chat.delivery.work()
        assert await chat.delivery.states() == [OutboxState.DEAD]
        chat.surface.accept("a")
        await chat.pass_seconds(_LATE_SECONDS + 20)
    assert chat.texts == ["a"], "its only copy"


async def test_platform_with_nonces_is_not_searched(database: Database) -> None:
    async with Chat(database, LIMITS).searching() as chat:
        chat.surface.fail_next("send", _LOST)
        await chat.delivery.queue("a")
        async with working(chat.delivery):
            await chat.pass_seconds(5)
            await wait_until(lambda: chat.texts == ["a"])
        await chat.pass_seconds(_LATE_SECONDS + 20)
    assert chat.delivery.calls("find") == 1


async def test_webhook_message_without_a_nonce_is_searched_for(database: Database) -> None:
    async with Chat(database, replace(LIMITS, can_retry_with_face=False)).searching() as chat:
        await chat.send_twice("a", face=Face("Nora"))
        chat.surface.accept("a")
        await chat.search()
    assert chat.texts == ["a"]


async def test_lane_is_released_when_the_search_is_cancelled(database: Database) -> None:
    chat = Chat(database)
    await chat.send_twice("a")
    chat.surface.gate = asyncio.Event()
    async with chat.searching():
        await chat.pass_seconds(_LATE_SECONDS + 1)
        await wait_until(lambda: chat.delivery.calls("find") == 2)
    assert await chat.delivery.outbox.hold_lane(LANE) is not None
