"""Events from a gateway connection for the receiver."""

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
    """A new session started; messages since the last session must be fetched."""

    at: datetime
    guilds_known: asyncio.Event = field(default_factory=asyncio.Event)


@value_class
class SessionResumed:
    """All missed events have been replayed; the following ones are new."""


@value_class
class CommandReceived:
    interaction: discord.Interaction
    deferred: asyncio.Future[bool]
    """Whether it could be acknowledged; set when that is known."""


GatewayEvent = Incoming | CommandReceived | SessionStarted | SessionResumed


async def take_events(queue: asyncio.Queue[GatewayEvent], seconds: float) -> Sequence[GatewayEvent]:
    """Wait for an event; return all queued ones, up to and including a session start."""
    taken: list[GatewayEvent] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            taken.append(await queue.get())
    while taken and not isinstance(taken[-1], SessionStarted) and not queue.empty():
        taken.append(queue.get_nowait())
    return taken
