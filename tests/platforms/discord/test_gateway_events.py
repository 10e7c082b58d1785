"""The queue of gateway events: in order, and quiet ones with the next that matters."""

from discord.utils import utcnow

from bot.platforms.discord.events import EventQueue, ReceivedEvent, SessionResumed, SessionStarted
from tests.waiting import PATIENCE_SECONDS

SEEN = ReceivedEvent(None, (30, 39, 20))
DELETED = ReceivedEvent(None)


async def test_quiet_events_are_taken_with_the_next_one_or_after_a_while() -> None:
    queue = EventQueue()
    queue.put_quietly(SEEN)
    queue.put(DELETED)
    assert await queue.take(PATIENCE_SECONDS) == [SEEN, DELETED]
    assert await queue.take(0.01) == []
    queue.put_quietly(SEEN)
    assert await queue.take(0.01) == [SEEN]


async def test_start_of_a_session_ends_what_is_taken() -> None:
    queue = EventQueue()
    started = SessionStarted(utcnow())
    for event in (DELETED, started, SessionResumed()):
        queue.put(event)
    assert await queue.take(PATIENCE_SECONDS) == [DELETED, started]
    assert await queue.take(PATIENCE_SECONDS) == [SessionResumed()]
