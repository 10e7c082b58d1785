"""Events from a gateway connection to the receiver, and the queue between them."""

import asyncio
import contextlib
from collections import deque
from dataclasses import field
from datetime import datetime

import discord

from bot.chat.incoming import Incoming
from bot.value_class import value_class


@value_class
class SessionStarted:
    """A new session: messages since the last one must be fetched."""

    at: datetime
    guilds_known: asyncio.Event = field(default_factory=asyncio.Event)


@value_class
class SessionResumed:
    """Missed events were replayed; from here on they are new."""


@value_class
class CommandReceived:
    """A native command."""

    interaction: discord.Interaction
    deferred: asyncio.Future[bool]
    """Whether it could be acknowledged; set when that is known."""


GatewayEvent = Incoming | CommandReceived | SessionStarted | SessionResumed


class EventQueue:
    """Events in the order they were parsed."""

    def __init__(self) -> None:
        self._events: deque[GatewayEvent] = deque()
        self._is_due = asyncio.Event()

    def put(self, event: GatewayEvent | None) -> None:
        """Queue an event, unless it means nothing to the bot."""
        if event is not None:
            self._events.append(event)
            self._is_due.set()

    async def take(self, seconds: float) -> list[GatewayEvent]:
        """Wait for an event; take all, up to and including the start of a session."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()
        taken: list[GatewayEvent] = []
        while self._events:
            taken.append(self._events.popleft())
            if isinstance(taken[-1], SessionStarted):
                break
        if not self._events:
            self._is_due.clear()
        return taken
