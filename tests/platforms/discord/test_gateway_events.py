"""The queue of gateway events: in order, and quiet ones with the next that matters."""

from discord.utils import utcnow

from bot.platforms.discord.events import (
    EventQueue,
    MessagesDeleted,
    SequenceReached,
    SessionResumed,
    SessionStarted,
)
from bot.platforms.discord.shards import GatewaySession

SESSION = GatewaySession("s", 7, "")
SEEN = MessagesDeleted(30, 20, frozenset({39}))
DELETED = MessagesDeleted(30, 20, frozenset({40}))


def make_queue(session: GatewaySession | None = SESSION) -> EventQueue:
    return EventQueue(lambda: session)


async def test_quiet_events_are_taken_with_the_next_one_and_with_the_progress() -> None:
    queue = make_queue()
    queue.put_quietly(SEEN)
    queue.note_progress()
    queue.put(DELETED)
    assert await queue.take() == [SEEN, DELETED, SequenceReached(SESSION)]


async def test_quiet_events_are_taken_though_nothing_follows() -> None:
    queue = make_queue()
    queue.put_quietly(SEEN)
    assert await queue.take() == [SEEN]
    queue.note_progress()
    assert await queue.take() == [SequenceReached(SESSION)]


async def test_start_of_a_session_ends_what_is_taken_and_comes_before_its_progress() -> None:
    queue = make_queue()
    started = SessionStarted(utcnow())
    for event in (DELETED, started, SessionResumed()):
        queue.put(event)
    queue.note_progress()
    assert await queue.take() == [DELETED, started]
    assert await queue.take() == [SessionResumed(), SequenceReached(SESSION)]


async def test_progress_alone_follows_the_start_of_a_session() -> None:
    queue = make_queue()
    started = SessionStarted(utcnow())
    queue.put(started)
    queue.note_progress()
    assert await queue.take() == [started]
    assert await queue.take() == [SequenceReached(SESSION)]


async def test_progress_without_a_session_is_nothing() -> None:
    queue = make_queue(session=None)
    queue.note_progress()
    queue.put(DELETED)
    assert await queue.take() == [DELETED]
