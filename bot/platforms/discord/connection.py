"""The gateway connection of one shard: RESUME a known session, or IDENTIFY for a new one."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import discord
import structlog
from typing_extensions import override

from bot import errors
from bot.platforms.discord.internals import (
    DiscordClient,
    RawEvent,
    ReconnectWebSocket,
    decode_event,
)
from bot.platforms.discord.rest import RestClient, RestEndpoint, decode_response
from bot.platforms.discord.settings import TOKEN_REJECTED_TEXT, DiscordSettings
from bot.platforms.discord.shards import GatewaySession, IdentifyLimits, Shard
from bot.ports import Clock
from bot.texts.text import translatable

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 2.0
_MAX_IDENTIFY_DELAY_SECONDS = 5.0  # Discord asks for 1 to 5 s before the next IDENTIFY
_MAX_RECONNECT_DELAY_SECONDS = 60.0
_NORMAL_CLOSE_CODE = 1000
_GUILD_EVENTS = frozenset(
    {
        *("message", "raw_message_edit", "raw_message_delete", "raw_bulk_message_delete"),
        *("raw_reaction_add", "raw_reaction_remove"),
    }
)
_CONNECTION_ERRORS = (OSError, aiohttp.ClientError, discord.ConnectionClosed)
_GET_CHANNEL = RestEndpoint("GET", "/channels/{}")
_GET_MESSAGES = RestEndpoint("GET", "/channels/{}/messages")


class ShardClient(DiscordClient):
    def __init__(
        self,
        settings: DiscordSettings,
        rest: RestClient,
        intents: discord.Intents,
        shard: Shard,
        identify_limits: IdentifyLimits,
        clock: Clock,
    ) -> None:
        self.shard = shard
        self._gateway_url = settings.gateway_url
        self._rest = rest
        self._identify_limits = identify_limits
        self._clock = clock
        self._unanswered_interactions: dict[int, int] = {}  # sequence number by interaction id
        self._held_events: dict[int, list[tuple[int, str]]] = {}
        """Events of guilds that are not loaded yet, with their sequence numbers, by guild id."""
        self.last_handled_sequence = 0
        """The sequence number of the last message, edit, deletion or reaction handled."""
        self._loading_tasks: set[asyncio.Task[None]] = set()
        super().__init__(rest, intents, shard)

    async def stay_connected(self, session: GatewaySession | None) -> None:
        """Connect, first by resuming `session`; reconnect until closed. Raises `PlatformError`."""
        failure_count = 0
        while not self.is_closed():
            try:
                await self._connect(session)
                while True:
                    if await self.receive():
                        failure_count = 0
            except ReconnectWebSocket as error:
                self.dispatch("disconnect")
                session = self.session if error.resume else None
                if session is None:
                    await self._clock.sleep(random.uniform(1, _MAX_IDENTIFY_DELAY_SECONDS))  # noqa: S311
            except _CONNECTION_ERRORS as error:
                self.dispatch("disconnect")
                if isinstance(error, discord.ConnectionClosed) and error.code != _NORMAL_CLOSE_CODE:
                    raise _close_code_error(error.code) from error
                if self.ws is None and not (session and session.resume_url):
                    reason = str(error) or type(error).__name__
                    raise errors.Unreachable(
                        translatable(
                            "the Discord gateway cannot be reached ({reason})", reason=reason
                        )
                    ) from error
                session = self.session or session
                if session is not None:  # the server at its resume URL may be down
                    session = GatewaySession(session.id, session.sequence, "")
                failure_count += 1
                max_delay_seconds = min(2.0**failure_count, _MAX_RECONNECT_DELAY_SECONDS)
                await self._clock.sleep(random.uniform(0, max_delay_seconds))  # noqa: S311

    @override
    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Do nothing: `IdentifyLimits.gateway_url_at_turn` has already waited."""

    @override
    async def close(self) -> None:
        self.drop_events_of_unloaded_guilds()
        await super().close()

    @override
    def handle_event(self, event: str, *args: Any) -> None:
        """Handle an event, or hold it until its guild is loaded (RESUME does not load guilds)."""
        guild_id = _find_guild_id(args[0]) if event in _GUILD_EVENTS else 0
        if self.is_guild_loaded(guild_id):
            if event in _GUILD_EVENTS:
                self.last_handled_sequence = self.sequence
            super().handle_event(event, *args)
            return
        if guild_id not in self._held_events:
            self._held_events[guild_id] = []
            task = asyncio.create_task(self._load_guild_and_release_events(guild_id))
            self._loading_tasks.add(task)
            task.add_done_callback(self._loading_tasks.discard)
        self._held_events[guild_id].append((self.sequence, self.last_received_json))

    def is_guild_loaded(self, guild_id: int) -> bool:
        """Return whether a guild is loaded; always true for the id 0, meaning direct messages."""
        has_held_events = guild_id in self._held_events
        return not guild_id or (not has_held_events and self.get_guild(guild_id) is not None)

    async def _load_guild_and_release_events(self, guild_id: int) -> None:
        await self._load_guild(guild_id)
        for sequence, event_json in self._held_events.pop(guild_id, ()):
            self.last_handled_sequence = sequence
            self.parse(decode_event(event_json), super().handle_event)

    def drop_events_of_unloaded_guilds(self) -> None:
        """Drop the events held for unloaded guilds; they are received or fetched again later."""
        for task in self._loading_tasks:
            task.cancel()
        self._held_events.clear()

    async def _connect(self, session: GatewaySession | None) -> None:
        if session is not None:
            _log.info("discord_resuming", shard=self.shard.name)
            await self.open_socket(session, session.resume_url or self._gateway_url)
            return
        async with self._identify_limits.gateway_url_at_turn(self.shard.number) as gateway_url:
            _log.info("discord_identifying", shard=self.shard.name)
            await self.open_socket(None, self._gateway_url or gateway_url)

    @property
    def resumable_session(self) -> GatewaySession | None:
        """The session that a restart can resume without losing events, or None."""
        session = self.session
        if session is None:
            return None
        unhandled_sequences = [
            *self._unanswered_interactions.values(),
            *(events[0][0] for events in self._held_events.values()),
        ]
        sequence = min(session.sequence, min(unhandled_sequences, default=session.sequence + 1) - 1)
        return GatewaySession(session.id, sequence, session.resume_url)

    async def read_history(self, channel_id: int, after: int, limit: int) -> list[dict[str, Any]]:
        """Return a channel's messages after an id as JSON, oldest first. Raises `PlatformError`."""
        guild_id_field = await self._read_guild_id_field(channel_id)
        query = {"after": str(after), "limit": str(limit)}
        response = await self._rest.call(_GET_MESSAGES, str(channel_id), query=query)
        messages = decode_response(response, list[dict[str, Any]])
        return [{**each, **guild_id_field} for each in reversed(messages)]

    async def _read_guild_id_field(self, channel_id: int) -> dict[str, str]:
        """Return a channel's `guild_id` field, or {} for direct messages; cache a thread."""
        guild_channel = self.get_channel(channel_id)
        if guild_channel is not None and not isinstance(guild_channel, discord.abc.PrivateChannel):
            return {"guild_id": str(guild_channel.guild.id)}
        response = await self._rest.call(_GET_CHANNEL, str(channel_id))
        channel = decode_response(response, dict[str, Any])
        if "thread_metadata" in channel:
            self.parse(RawEvent("THREAD_CREATE", channel), lambda *_: None)
        return {"guild_id": channel["guild_id"]} if "guild_id" in channel else {}

    async def retry_until_answered(self, send_request: Callable[[], Awaitable[T]]) -> T:
        """Retry a request until Discord answers it; raises `Refused` or `PlatformFatal`."""
        while True:
            try:
                return await send_request()
            except (errors.Refused, errors.PlatformFatal):
                raise
            except errors.RateLimited as limited:
                await self._clock.sleep(limited.retry_after_seconds)
            except errors.PlatformError:
                await self._clock.sleep(_RETRY_SECONDS)

    async def _load_guild(self, guild_id: int) -> None:

        async def fetch(path_suffix: str, result_type: type[T]) -> T:
            endpoint = RestEndpoint("GET", f"/guilds/{{}}{path_suffix}")
            return decode_response(await self._rest.call(endpoint, str(guild_id)), result_type)

        try:
            retry = self.retry_until_answered
            guild = await retry(lambda: fetch("", dict[str, Any]))
            channels = await retry(lambda: fetch("/channels", list[Any]))
            threads_response = await retry(lambda: fetch("/threads/active", dict[str, Any]))
        except (errors.Refused, errors.PlatformFatal) as error:
            _log.warning("discord_guild_not_loaded", guild=guild_id, reason=str(error))
            return
        if self.get_guild(guild_id) is None:
            guild_data = {**guild, "channels": channels, "threads": threads_response["threads"]}
            self.parse(RawEvent("GUILD_CREATE", guild_data), lambda *_: None)


def _find_guild_id(event: Any) -> int:
    """Return the guild id of a message, edit, deletion or reaction, or 0 for direct messages."""
    message = event if isinstance(event, discord.Message) else getattr(event, "message", None)
    if message is None:
        return event.guild_id or 0
    guild = message.guild
    return guild.id if guild is not None else getattr(message.channel, "guild_id", None) or 0


def _close_code_error(code: int) -> errors.PlatformError:
    match code:
        case 4004:
            return errors.TokenRejected(TOKEN_REJECTED_TEXT)
        case 4011:
            return errors.PlatformFatal(
                "this bot is in too many Discord servers for this number of shards; raise or unset"
                " TROUPE_DISCORD__SHARDS"
            )
        case 4014:
            return errors.PlatformFatal(
                "Discord does not let this bot read messages; enable Bot > Message Content"
                " Intent in the developer portal"
            )
        case _:
            return errors.Unreachable(f"the Discord gateway closed the connection (code {code})")
