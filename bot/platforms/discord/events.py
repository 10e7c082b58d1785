"""What a gateway connection tells the receiver, and the queue between them."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import field
from datetime import datetime

import discord

from bot.chat.incoming import Pressed
from bot.platforms.discord.shards import GatewaySession
from bot.value_class import value_class

_QUIET_SECONDS = 0.25  # after which the receiver learns of what is not urgent


@value_class
class SessionStarted:
    """A new session: messages since the last one must be fetched."""

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
    """Missed events were replayed; from here on they are new."""


@value_class
class SequenceReached:
    """All events up to here were queued; once they are stored, the session resumes here."""

    session: GatewaySession


@value_class
class MessageEdited:
    """An edited message, as it reads now."""

    message: discord.Message
    thread: discord.Thread | None = None
    """One that was opened from it in another channel, and knows it."""


@value_class
class MessagesDeleted:
    """Messages of a channel were deleted."""

    channel_id: int
    guild_id: int | None
    message_ids: frozenset[int]


PlatformEvent = discord.Message | MessageEdited | MessagesDeleted | Pressed | discord.Guild
"""What happened in channels; a guild is one that the bot has just been added to."""

SessionEvent = SessionStarted | SessionResumed | SequenceReached
GatewayEvent = PlatformEvent | CommandReceived | SessionEvent


class EventQueue:
    """Events in the order they were parsed, and how far the session got.

    Args:
        progress: returns the session up to what is queued; None: there is none.
    """

    def __init__(self, progress: Callable[[], GatewaySession | None]) -> None:
        self._progress = progress
        self._events: deque[GatewayEvent] = deque()
        self._is_due = asyncio.Event()  # that they are taken
        self._due_later: asyncio.TimerHandle | None = None
        self._has_progress = False

    async def take(self) -> list[GatewayEvent]:
        """Wait for events and take all, up to and including the start of a session."""
        taken: list[GatewayEvent] = []
        while not taken:
            await self._is_due.wait()
            taken = self._take_queued()
        return taken

    def put(self, event: GatewayEvent) -> None:
        self._events.append(event)
        self._is_due.set()

    def put_quietly(self, event: GatewayEvent) -> None:
        """Queue an event that nobody waits for: it is taken with the next, or within moments."""
        self._events.append(event)
        self._wake_later()

    def note_progress(self) -> None:
        """Note that the session got further; it is taken like a quiet event."""
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
