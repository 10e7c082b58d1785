"""From the gateway to disk: everything in one order, and what was missed before what is live."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import discord
import structlog
from discord.utils import snowflake_time, time_snowflake

from bot.chat.incoming import Incoming
from bot.errors import PlatformError, PlatformFatal, RateLimited, Refused, StoreError
from bot.platforms.discord.cursors import CONNECTED, PREFIX, ChannelCursors, to_stored_names
from bot.platforms.discord.gateway import CommandReceived, Event, Gateway, SessionStarted
from bot.platforms.discord.incoming import command_to_incoming, to_incoming
from bot.platforms.discord.requests import bounded_request
from bot.ports import Clock, Intake

Answer = TypeVar("Answer")
GuildChannel = discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread

_log = structlog.get_logger(__name__)
_MAX_ANSWERABLE_AGE = timedelta(hours=24)  # older than that nobody waits for an answer any more
_MAX_CHANNEL_AGE = timedelta(days=7)
_MAX_REORDERING = timedelta(seconds=60)  # by how much channels may overtake each other
_MAX_CHANNELS = 500
_MAX_CONCURRENT_READS = 5
_PAGE_SIZE = 100
_CATCH_UP_SECONDS = 120.0
_PAUSE_SECONDS = 2.0
_DEFER_SECONDS = 4.0


class MessageReceiver:
    """Stores what one gateway connection says; nothing is dropped while the store is away."""

    def __init__(self, gateway: Gateway, bot: discord.ClientUser, intake: Intake, clock: Clock):
        self._gateway = gateway
        self._bot = bot
        self._intake = intake
        self._clock = clock
        self._cursors = ChannelCursors()
        self._read_slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        self.trouble: str | None = None

    async def run(self) -> None:
        """Run until cancelled; raises `PlatformFatal` when Discord shuts us out."""
        while True:
            events = await self._gateway.events()
            await self._store(events)
            if isinstance(events[-1], SessionStarted):
                await self._catch_up(events[-1])

    async def _store(self, events: Sequence[Event]) -> None:
        """Hand over what people said, in order; a cursor moves with what it counts, or later."""
        incomings: list[Incoming] = []
        heard: list[tuple[int, int]] = []
        kept: set[int] = set()
        for event in events:
            match event:
                case SessionStarted():
                    continue
                case CommandReceived():
                    incomings.append(await _to_incoming_command(event))
                case discord.Message():
                    heard.append((event.channel.id, event.id))
                    if (incoming := to_incoming(event, self._bot)) is not None:
                        incomings.append(incoming)
                        kept.add(event.channel.id)
        due = self._cursors.due(heard, kept)
        if not incomings:
            self._cursors.passed(due)
            return
        await self._receive(incomings, to_stored_names(due))
        self._cursors.kept(due)

    async def _receive(self, incomings: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        await self._retry_while_store_fails(lambda: self._intake.receive(incomings, cursors))

    async def _retry_while_store_fails(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask the store until it is there."""
        while True:
            try:
                answer = await ask()
            except StoreError as error:
                self.trouble = "what Discord says cannot be stored"
                _log.warning("discord_messages_wait", reason=str(error))
                await self._clock.sleep(_PAUSE_SECONDS)
            else:
                self.trouble = None
                return answer

    async def _catch_up(self, session: SessionStarted) -> None:
        """Ask for what was said between the last session and this one."""
        await session.guilds_known.wait()
        self._cursors.learn(
            await self._retry_while_store_fails(lambda: self._intake.cursors(PREFIX))
        )
        missing = dict(self._channels_to_read(session.at))
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS), asyncio.TaskGroup() as tasks:
                for channel, after in list(missing.items()):
                    tasks.create_task(self._catch_up_with(channel, after, missing))
        except TimeoutError:
            _log.warning("discord_channels_not_caught_up", channels=len(missing))
            self._cursors.hold(missing)
        else:
            await self._receive((), {CONNECTED: str(time_snowflake(session.at))})

    async def _catch_up_with(self, channel: int, after: int, missing: dict[int, int]) -> None:
        """Store all messages of a channel after this one, and take it out of `missing`."""
        async with self._read_slots:
            while page := await self._read(channel, after):
                await self._store(page)
                after = page[-1].id
                if len(page) < _PAGE_SIZE:
                    break
        del missing[channel]

    async def _read(self, channel: int, after: int) -> list[discord.Message]:
        """Give the next messages of a channel, oldest first, however often it takes."""
        while True:
            try:
                return await self._page(channel, after)
            except PlatformFatal:
                raise
            except Refused as error:
                _log.info("discord_channel_unreadable", channel=channel, reason=str(error))
                return []
            except RateLimited as limited:
                await self._clock.sleep(limited.retry_after_seconds)
            except PlatformError:
                await self._clock.sleep(_PAUSE_SECONDS)

    async def _page(self, channel_id: int, after: int) -> list[discord.Message]:
        gateway = self._gateway
        async with bounded_request(gateway):
            channel = gateway.get_channel(channel_id) or await gateway.fetch_channel(channel_id)
            if not isinstance(channel, discord.abc.Messageable):
                return []
            history = channel.history(
                limit=_PAGE_SIZE, after=discord.Object(after), oldest_first=True
            )
            return [message async for message in history]

    def _channels_to_read(self, now: datetime) -> list[tuple[int, int]]:
        """The channels that may have something new, and the message to look after.

        Discord tells the last message of every channel of a guild, so that only those with news
        are asked; it tells nothing of direct messages and archived threads.
        """
        stored = self._cursors.stored
        since = self._fully_received_until()
        if since is None:
            return []  # the first start: nobody waits for an answer to what was said before
        visible = {
            channel.id: channel.last_message_id or 0 for channel in self._readable_channels()
        }
        unheard = {
            channel: stored.get(channel, since)
            for channel, last in visible.items()
            if last > stored.get(channel, since)
        } | {
            channel: cursor
            for channel, cursor in stored.items()
            if channel not in visible and snowflake_time(cursor) > now - _MAX_CHANNEL_AGE
        }
        newest_first = sorted(unheard.items(), key=lambda item: item[1], reverse=True)
        oldest = time_snowflake(now - _MAX_ANSWERABLE_AGE)
        return [(channel, max(after, oldest)) for channel, after in newest_first[:_MAX_CHANNELS]]

    def _fully_received_until(self) -> int | None:
        marks = [self._cursors.connected] if self._cursors.connected else []
        if self._cursors.stored:
            newest = snowflake_time(max(self._cursors.stored.values()))
            marks.append(time_snowflake(newest - _MAX_REORDERING))
        return max(marks, default=None)

    def _readable_channels(self) -> Iterator[GuildChannel]:
        for guild in self._gateway.guilds:
            rooms: list[GuildChannel] = [*guild.text_channels, *guild.voice_channels]
            rooms += [*guild.stage_channels, *guild.threads]
            for room in rooms:
                place = room.parent if isinstance(room, discord.Thread) else room
                may = place.permissions_for(guild.me) if place else discord.Permissions.none()
                if may.read_messages and may.read_message_history:
                    yield room


async def _to_incoming_command(event: CommandReceived) -> Incoming:
    # Its answer would be refused while Discord does not know of the acknowledgement.
    await asyncio.wait([event.deferred], timeout=_DEFER_SECONDS)
    deferred = event.deferred.done() and event.deferred.result()
    return command_to_incoming(event.interaction, deferred=deferred)
