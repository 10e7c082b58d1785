"""Store the gateway's events; when a new session starts, fetch and store missed messages first."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import discord
import structlog
from discord.utils import snowflake_time, time_snowflake

from bot.chat.incoming import Incoming, IncomingMessage, source_name
from bot.errors import Refused, StoreError
from bot.platforms.discord.gateway import (
    CommandReceived,
    Gateway,
    GatewayEvent,
    SessionResumed,
    SessionStarted,
    wait_for_events,
)
from bot.platforms.discord.incoming import to_command_message
from bot.platforms.discord.shards import GatewaySession, Shard
from bot.platforms.receiving import find_cursor_number, mark_if_late, parse_cursors, parse_number
from bot.platforms.spec import PlatformContext
from bot.ports import Intake

StoreResultT = TypeVar("StoreResultT")
GuildChannel = discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread

_log = structlog.get_logger(__name__)
_MAX_FETCHED_AGE = timedelta(hours=24)  # older messages are not fetched
_MAX_CURSOR_AGE = timedelta(days=7)
_MAX_CHANNELS = 500
_MAX_CONCURRENT_READS = 5
_PAGE_SIZE = 100
_CATCH_UP_TIMEOUT_SECONDS = 120.0
_STORE_RETRY_SECONDS = 2.0
_ACKNOWLEDGMENT_TIMEOUT_SECONDS = 4.0
_SECONDS_BETWEEN_SAVES = 1.0
_MAX_OUT_OF_ORDER_DELAY = timedelta(seconds=60)  # after newer messages in other channels


class MessageReceiver:
    """Stores the events of one shard; retries while the database fails, so that none are lost."""

    def __init__(self, gateway: Gateway, intake: Intake, context: PlatformContext) -> None:
        self._gateway = gateway
        self._intake = intake
        self._context = context
        self._clock = context.clock
        self._cursors = ChannelCursors(context.bot_id, gateway.shard)
        self._session: GatewaySession | None = None  # as of the last event taken from the queue
        self._stored_session: GatewaySession | None = None
        self._session_stored_at = -math.inf
        self._is_replaying = False
        self._newest_bot_messages: dict[int, tuple[int, int]] = {}  # as of the last event taken
        self._read_slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        self.store_error: str | None = None
        """The reason why messages cannot be stored now, or None."""

    async def run(self) -> None:
        """Store events until cancelled; raises `PlatformFatal` if Discord rejects this bot."""
        while True:
            events = await wait_for_events(self._gateway.event_queue, _SECONDS_BETWEEN_SAVES)
            if events and isinstance(events[-1], SessionStarted):
                await self._store_events(events)
                await self._catch_up(events[-1])
            else:
                self._session = self._gateway.resumable_session  # includes the events just taken
                self._newest_bot_messages |= self._gateway.newest_bot_messages
                self._gateway.newest_bot_messages.clear()
                await self._store_events(events)

    async def load_session(self) -> GatewaySession | None:
        """Load the shard's cursors; return the session to resume, or None to start a new one."""
        cursors = await self._load_cursors()
        session = cursors.get(self._cursors.session_cursor_name)
        if session is None or not self._cursors.is_complete:
            return None
        self._session = self._stored_session = GatewaySession.from_stored_text(session)
        self._is_replaying = self._session is not None
        return self._session

    async def _load_cursors(self) -> Mapping[str, str]:
        prefix = self._cursors.cursor_prefix
        cursors = await self._retry_while_store_fails(lambda: self._intake.cursors(prefix))
        self._cursors.load(cursors)
        return cursors

    async def _store_events(
        self, events: Sequence[GatewayEvent], oldest_answerable_at: float = 0
    ) -> None:
        """Store events and cursors; mark messages sent before `oldest_answerable_at` as late."""
        incoming_events: list[Incoming] = []
        for event in events:
            match event:
                case SessionResumed():
                    self._is_replaying = False
                    continue
                case SessionStarted():
                    self._is_replaying = False
                    self._session = None  # until all missed messages are stored
                    continue
                case CommandReceived():
                    # Discord accepts answers only after the command was acknowledged.
                    acknowledgment = event.acknowledgment
                    await asyncio.wait([acknowledgment], timeout=_ACKNOWLEDGMENT_TIMEOUT_SECONDS)
                    is_public = acknowledgment.result() if acknowledgment.done() else None
                    command = to_command_message(
                        event.interaction, self._context, is_deferred=is_public is not None
                    )
                    if is_public is False:
                        command = replace(command, has_public_response=False)
                    incoming: Incoming = command
                case _:
                    incoming = event
            cutoff = self._oldest_answerable_time() if self._is_replaying else oldest_answerable_at
            incoming_events.append(mark_if_late(incoming, cutoff))
        session = self._get_due_session_cursor()
        if incoming_events or session:
            cursors = self._cursors.move_past(incoming_events, self._newest_bot_messages) | session
            self._newest_bot_messages.clear()
            await self._store(incoming_events, cursors)

    def _get_due_session_cursor(self) -> dict[str, str]:
        """Return the session's cursor if it should be stored now, otherwise {}."""
        now = self._clock.monotonic()
        is_save_due = now - self._session_stored_at >= _SECONDS_BETWEEN_SAVES
        is_new = self._session != self._stored_session
        if self._session is None or not (is_new and is_save_due and self._cursors.is_complete):
            return {}
        self._session_stored_at, self._stored_session = now, self._session
        return {self._cursors.session_cursor_name: self._session.to_stored_text()}

    def _oldest_answerable_time(self) -> float:
        return self._clock.now() - self._context.answerable_seconds

    async def _store(self, events: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        await self._retry_while_store_fails(lambda: self._intake.receive(events, cursors))

    async def _retry_while_store_fails(
        self, call: Callable[[], Awaitable[StoreResultT]]
    ) -> StoreResultT:
        while True:
            try:
                result = await call()
            except StoreError as error:
                self.store_error = "messages from Discord cannot be stored"
                _log.warning("discord_messages_not_stored", reason=str(error))
                await self._clock.sleep(_STORE_RETRY_SECONDS)
            else:
                self.store_error = None
                return result

    async def _catch_up(self, session: SessionStarted) -> None:
        await session.guilds_known_event.wait()
        await self._load_cursors()
        pending_channels = dict(self._channels_to_read(session.at))
        await self._store((), self._cursors.start_catch_up())
        try:
            async with asyncio.timeout(_CATCH_UP_TIMEOUT_SECONDS), asyncio.TaskGroup() as tasks:
                for channel, after_id in list(pending_channels.items()):
                    tasks.create_task(self._catch_up_channel(channel, after_id, pending_channels))
        except TimeoutError:
            _log.warning("discord_channels_not_caught_up", channels=len(pending_channels))
            self._cursors.freeze_cursors_until_load(pending_channels)
        else:
            await self._store((), self._cursors.finish_catch_up(session.at))

    async def _catch_up_channel(
        self, channel_id: int, after_message_id: int, pending_channels: dict[int, int]
    ) -> None:
        """Store a channel's messages after an id; remove the channel from `pending_channels`."""
        has_more_pages = True
        async with self._read_slots:
            while has_more_pages:
                page = await self._read_page(channel_id, after_message_id)
                messages = (self._gateway.parse_message(each) for each in page)
                events = [self._gateway.convert_message(each) for each in messages if each]
                missed_messages = [one for one in events if one is not None]
                await self._store_events(missed_messages, self._oldest_answerable_time())
                after_message_id = max((int(each["id"]) for each in page), default=after_message_id)
                has_more_pages = len(page) == _PAGE_SIZE
        del pending_channels[channel_id]

    async def _read_page(self, channel_id: int, after_message_id: int) -> Sequence[dict[str, Any]]:
        """Return a channel's next messages, oldest first; () if the channel cannot be read."""
        read_next_page = partial(
            self._gateway.read_history, channel_id, after_message_id, _PAGE_SIZE
        )
        try:
            return await self._gateway.retry_until_answered(read_next_page)
        except Refused as error:
            _log.info("discord_channel_unreadable", channel=channel_id, reason=str(error))
            return ()

    def _channels_to_read(self, now: datetime) -> list[tuple[int, int]]:
        """Return (channel id, id to read after) for channels that may contain missed messages."""
        newest_stored_ids = self._cursors.newest_stored_ids
        catch_up_start_id = self._cursors.find_catch_up_start_id()
        if catch_up_start_id is None:
            return []  # at the first start, there are no missed messages
        newest_message_ids = {one.id: one.last_message_id or 0 for one in self._readable_channels()}
        unread_channels = {
            channel: newest_stored_ids.get(channel, catch_up_start_id)
            for channel, newest_message_id in newest_message_ids.items()
            if newest_message_id > newest_stored_ids.get(channel, catch_up_start_id)
        } | {
            channel: message_id
            for channel, message_id in newest_stored_ids.items()
            if channel not in newest_message_ids
            and snowflake_time(message_id) > now - _MAX_CURSOR_AGE
        }
        channels = sorted(unread_channels.items(), key=lambda item: item[1], reverse=True)
        min_id = time_snowflake(now - _MAX_FETCHED_AGE)
        return [(channel, max(after_id, min_id)) for channel, after_id in channels[:_MAX_CHANNELS]]

    def _readable_channels(self) -> Iterator[GuildChannel]:
        read_permissions = discord.Permissions(read_messages=True, read_message_history=True)
        for guild in self._gateway.guilds:
            channels: list[GuildChannel] = [*guild.text_channels, *guild.voice_channels]
            channels += [*guild.stage_channels, *guild.threads]
            for channel in channels:
                parent_channel = channel.parent if isinstance(channel, discord.Thread) else channel
                if parent_channel and parent_channel.permissions_for(guild.me) >= read_permissions:
                    yield channel


class ChannelCursors:
    """Tracks up to which message each of a shard's channels is stored.

    A channel's cursor is the id of its newest stored message. The guild id is stored with it, to
    find the cursors of a shard's channels.
    """

    def __init__(self, bot_id: str, shard: Shard) -> None:
        self.cursor_prefix = f"{source_name('discord', bot_id)}:"
        self._channel_prefix = f"{self.cursor_prefix}channel "
        self._shard = shard
        self._shard_prefix = f"{self.cursor_prefix}{shard.name} "
        self.session_cursor_name = f"{self._shard_prefix}session"
        self.newest_stored_ids: dict[int, int] = {}
        """The id of the newest stored message, by channel id."""
        self._frozen_channel_ids: set[int] = set()
        self._session_start_id: int | None = None  # no messages before this snowflake are missing
        self._catch_up_start_id = 0  # messages after this snowflake may be missing; 0: none are

    @property
    def is_complete(self) -> bool:
        """Whether no earlier messages are missing, so that the session can be resumed."""
        return self._session_start_id is not None and not self._catch_up_start_id

    def load(self, cursors: Mapping[str, str]) -> None:
        """Replace all cursors with the stored ones, which map names to values."""
        prefix = self._channel_prefix
        channel_cursors = {name: one for name, one in cursors.items() if name.startswith(prefix)}
        self.newest_stored_ids.clear()
        for channel, message, guild in parse_cursors(channel_cursors, self._parse_channel_cursor):
            if self._shard.has_guild(guild):
                self.newest_stored_ids[channel] = message
        names = [f"{self._shard_prefix}{one}" for one in ("connected", "catching_up")]
        start_id, catch_up_start_id = (find_cursor_number(cursors, name) for name in names)
        self._session_start_id = self._session_start_id if start_id is None else start_id
        self._catch_up_start_id = catch_up_start_id or 0
        self._frozen_channel_ids.clear()

    def _parse_channel_cursor(self, name: str, value: str) -> tuple[int, int, int]:
        message_id, _, guild_id = value.partition(" ")
        channel = parse_number(name.removeprefix(self._channel_prefix))
        return channel, parse_number(message_id), parse_number(guild_id)

    def find_catch_up_start_id(self) -> int | None:
        """Return the snowflake after which messages may be missing, or None at the first start."""
        if self._catch_up_start_id:
            return self._catch_up_start_id
        possible_start_ids = [self._session_start_id] if self._session_start_id else []
        if self.newest_stored_ids:
            newest_message_time = snowflake_time(max(self.newest_stored_ids.values()))
            possible_start_ids.append(time_snowflake(newest_message_time - _MAX_OUT_OF_ORDER_DELAY))
        return max(possible_start_ids, default=None)

    def start_catch_up(self) -> dict[str, str]:
        """Record the start of a catch-up; return the cursors to store before fetching messages."""
        self._catch_up_start_id = self.find_catch_up_start_id() or 0
        return {f"{self._shard_prefix}catching_up": str(self._catch_up_start_id)}

    def finish_catch_up(self, session_started_at: datetime) -> dict[str, str]:
        """Record that nothing before `session_started_at` is missing; return cursors to store."""
        self._catch_up_start_id, self._session_start_id = 0, time_snowflake(session_started_at)
        return {
            f"{self._shard_prefix}catching_up": "0",
            f"{self._shard_prefix}connected": str(self._session_start_id),
        }

    def freeze_cursors_until_load(self, channel_ids: Iterable[int]) -> None:
        """Stop advancing the cursors of channels with missing messages, until the next `load`."""
        self._frozen_channel_ids.update(channel_ids)

    def move_past(
        self, events: Iterable[Incoming], newest_bot_messages: Mapping[int, tuple[int, int]]
    ) -> dict[str, str]:
        """Advance the cursors past the received messages, and return the changed cursors.

        `newest_bot_messages` maps channel ids to (message id, guild id).
        """
        messages = [
            (key, *ids) for key, ids in newest_bot_messages.items() if key in self.newest_stored_ids
        ]
        for incoming in events:
            if isinstance(incoming, IncomingMessage) and incoming.message_id is not None:
                guild_ids = [one.rpartition(":")[2] for one in incoming.scopes if ":guild:" in one]
                guild_id = int(guild_ids[0]) if guild_ids else 0
                messages.append((int(incoming.address.chat), int(incoming.message_id), guild_id))
        changed_cursors: dict[str, str] = {}
        for channel, message, guild_id in messages:
            if channel not in self._frozen_channel_ids and message > self.newest_stored_ids.get(
                channel, 0
            ):
                self.newest_stored_ids[channel] = message
                changed_cursors[f"{self._channel_prefix}{channel}"] = f"{message} {guild_id}"
        return changed_cursors
