"""Events from a gateway connection to the receiver."""

import asyncio
import contextlib
from collections.abc import Sequence
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
    interaction: discord.Interaction
    deferred: asyncio.Future[bool]
    """Whether it could be acknowledged; set when that is known."""


GatewayEvent = Incoming | CommandReceived | SessionStarted | SessionResumed


async def take_events(queue: asyncio.Queue[GatewayEvent], seconds: float) -> Sequence[GatewayEvent]:
    """Wait for an event; take all, up to and including the start of a session."""
    taken: list[GatewayEvent] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            taken.append(await queue.get())
    while taken and not isinstance(taken[-1], SessionStarted) and not queue.empty():
        taken.append(queue.get_nowait())
    return taken
