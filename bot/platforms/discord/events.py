"""What a gateway connection tells the receiver, and the queue between them."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import field
from datetime import datetime

import discord

from bot.chat.incoming import Pressed
from bot.frozen_dataclass import frozen_dataclass
from bot.platforms.discord.shards import GatewaySession
from bot.value_class import value_class

_QUIET_SECONDS = 0.25  # after which the receiver learns of what is not urgent


@value_class
class SessionStarted:
    """A new session: messages since the last one were not delivered and must be fetched."""

    at: datetime
    guilds_known: asyncio.Event = field(default_factory=asyncio.Event)


@value_class
class CommandReceived:
    """A native command."""

    interaction: discord.Interaction

    deferred: asyncio.Future[bool]
    """Whether it could be acknowledged; set when that is known."""


@value_class
class SessionResumed:
    """What was missed has been replayed; from here on events are new."""


@value_class
class SequenceReached:
    """Everything before this was queued: the session can be resumed from here once it is stored."""

    session: GatewaySession


@value_class
class MessageEdited:
    """A message that was changed, as it reads now."""

    message: discord.Message
    thread: discord.Thread | None = None
    """One that was opened from it in another channel, and knows it."""


@value_class
class MessagesDeleted:
    """One message or many of a channel were deleted."""

    channel_id: int
    guild_id: int | None
    message_ids: frozenset[int]


PlatformEvent = discord.Message | MessageEdited | MessagesDeleted | Pressed | discord.Guild
"""What happened in channels; a guild is one that the bot has just been added to."""

SessionEvent = SessionStarted | SessionResumed | SequenceReached
GatewayEvent = PlatformEvent | CommandReceived | SessionEvent


class EventQueue:
    """Events in the order in which they were parsed, and how far the session got with them.

    Args:
        progress: the session up to what is queued; None while there is none.
    """

    def __init__(self, progress: Callable[[], GatewaySession | None]) -> None:
        self._progress = progress
        self._events: deque[GatewayEvent] = deque()
        self._is_due = asyncio.Event()  # that they are taken
        self._due_later: asyncio.TimerHandle | None = None
        self._has_progress = False

    async def take(self) -> list[GatewayEvent]:
        """Wait for events and take all there are, up to and including the start of a session."""
        taken: list[GatewayEvent] = []
        while not taken:
            await self._is_due.wait()
            taken = self._take_queued()
        return taken

    def put(self, event: GatewayEvent) -> None:
        self._events.append(event)
        self._is_due.set()

    def put_quietly(self, event: GatewayEvent) -> None:
        """Queue what nobody waits for: it is taken with the next event, or within moments."""
        self._events.append(event)
        self._wake_later()

    def note_progress(self) -> None:
        """Note that the session got further; that is taken like what is put quietly."""
        self._has_progress = True
        self._wake_later()

    def _take_queued(self) -> list[GatewayEvent]:
        taken: list[GatewayEvent] = []
        while self._events:
            taken.append(self._events.popleft())
            if isinstance(taken[-1], SessionStarted):
                if not self._events and not self._has_progress:
                    self._is_due.clear()
                return taken
        self._is_due.clear()
        session = self._progress() if self._has_progress else None
        self._has_progress = False
        return taken if session is None else [*taken, SequenceReached(session)]

    def _wake_later(self) -> None:
        if self._due_later is None and not self._is_due.is_set():
            loop = asyncio.get_running_loop()
            self._due_later = loop.call_later(_QUIET_SECONDS, self._wake)

    def _wake(self) -> None:
        self._due_later = None
        self._is_due.set()
