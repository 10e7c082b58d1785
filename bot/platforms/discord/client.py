"""discord.py's client with configurable API addresses and bounded waits for rate limits."""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import discord
import structlog
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import Route
from discord.state import ConnectionState
from discord.utils import utcnow
from typing_extensions import override

from bot.errors import PlatformFatal
from bot.platforms.discord.requests import bounded_request
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.shards.shard import Shard

# The longest wait for a rate limit inside discord.py; the outbox does the longer ones. Must exceed
# Discord's usual window of 5 s, or discord.py refuses requests that would still fit into it.
_MAX_RATE_LIMIT_WAIT_SECONDS = 6.0
_GUILD_READY_TIMEOUT_SECONDS = 1.0  # between two guilds at the start of a session
# What discord.py raises for an event with a field that it does not expect.
_PARSE_ERRORS = (AttributeError, LookupError, TypeError, ValueError)
_MESSAGE_EVENTS = frozenset({"MESSAGE_CREATE", "MESSAGE_UPDATE"})
_ESSENTIAL = frozenset(
    {"id", "channel_id", "guild_id", "webhook_id", "author", "type", "content", "timestamp"}
)
"""The parts of a message without which it would be another one."""
_KEPT = _ESSENTIAL | {"mentions", "mention_roles", "message_reference", "referenced_message"}
"""The parts that stay if several are unreadable."""
_MAX_PARSE_TRIES = 500
_NEW_IN_GUILD = timedelta(minutes=5)
_ONLY = Shard()
_log = structlog.get_logger(__name__)

MessageChannel = (
    discord.TextChannel
    | discord.VoiceChannel
    | discord.StageChannel
    | discord.Thread
    | discord.DMChannel
    | discord.GroupChannel
)
Payload = Any  # a JSON object of Discord's API
Parsed = TypeVar("Parsed")


def set_api_addresses(settings: DiscordSettings) -> None:
    """Make all requests and connections of this process use the configured addresses.

    discord.py keeps both addresses on its classes, and a `Route` takes its own when it is made.
    """
    Route.BASE = settings.api_base.rstrip("/")
    if settings.gateway_url is not None:
        DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(settings.gateway_url)


class DiscordClient(discord.Client):
    """discord.py's client; log in before the first request."""

    def __init__(
        self, settings: DiscordSettings, intents: discord.Intents, shard: Shard = _ONLY
    ) -> None:
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # text only
        super().__init__(
            intents=intents,
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            guild_ready_timeout=_GUILD_READY_TIMEOUT_SECONDS,
            shard_id=None if shard.is_alone else shard.number,
            shard_count=None if shard.is_alone else shard.count,
        )
        self._token = settings.token
        # Set here because the constructor refuses less than 30 s.
        self.http.max_ratelimit_timeout = _MAX_RATE_LIMIT_WAIT_SECONDS

    async def log_in(self) -> discord.ClientUser:
        """Log in with the token and return the bot's user.

        Raises:
            PlatformError: the token is missing or wrong, or Discord cannot be reached.
        """
        if self._token is None:
            raise PlatformFatal("Discord needs a bot token; set TROUPE_DISCORD__TOKEN")
        async with bounded_request(self):
            await self.login(self._token.get_secret_value())
        if self.user is None:
            raise PlatformFatal("Discord did not return the bot's user")
        return self.user

    @override
    def _get_state(self, **options: Any) -> ConnectionState[Any]:
        """Make the library's state; an event that it cannot parse is skipped.

        Without this such an event ends the connection. Of a message only the unreadable part is.
        """
        state = super()._get_state(**options)
        state.parsers = {
            event: _skipping_unreadable(
                event, _skipping_parts(parse) if event in _MESSAGE_EVENTS else parse
            )
            for event, parse in state.parsers.items()
        }
        return state

    def parse_message(
        self, channel: MessageChannel | discord.PartialMessageable, data: Payload
    ) -> discord.Message | None:
        """Parse a message of a channel's history; None, and a log line, if that fails."""

        def create(payload: Payload) -> discord.Message:
            return self._connection.create_message(channel=channel, data=payload)

        return skip_unreadable("MESSAGE", lambda: _skipping_parts(create)(data))


def skip_unreadable(event: str, parse: Callable[[], Parsed]) -> Parsed | None:
    """Return what `parse` returns; None, and a log line, where Discord's data is malformed."""
    try:
        return parse()
    except _PARSE_ERRORS as error:
        # The text of a ValueError quotes the value, which may be what somebody wrote.
        reason = type(error).__name__ if isinstance(error, ValueError) else repr(error)
        _log.warning("discord_event_skipped", event_type=event, reason=reason)
        return None


def _skipping_parts(parse: Callable[[Payload], Parsed]) -> Callable[[Payload], Parsed]:
    """Return a parser of messages that leaves out what the library cannot parse.

    The smallest part whose removal helps is left out; if several are unreadable, nearly all are.
    The library raises before it reports a message, so it can be asked again.
    """

    def parse_readable(data: Payload) -> Parsed:
        data = _with_poll_expiry(data)
        try:
            return parse(data)
        except _PARSE_ERRORS as error:
            first_error = error
        paths = sorted(_paths(data), key=len, reverse=True)[:_MAX_PARSE_TRIES]
        for path in (one for one in paths if not (len(one) == 1 and one[0] in _ESSENTIAL)):
            try:
                parsed = parse(_without(data, path))
            except _PARSE_ERRORS:
                continue
            names, reason = ".".join(map(str, path)), type(first_error).__name__
            _log.warning("discord_message_part_skipped", part=names, reason=reason)
            return parsed
        parsed = parse({key: value for key, value in data.items() if key in _KEPT})
        _log.warning("discord_message_part_skipped", part="all", reason=type(first_error).__name__)
        return parsed

    return parse_readable


def _with_poll_expiry(data: Payload) -> Payload:
    """Give polls without an end one: the library requires it."""
    poll, original = data.get("poll"), data.get("referenced_message")
    if isinstance(poll, Mapping) and poll.get("expiry") is None:
        data = {**data, "poll": {**poll, "expiry": data.get("timestamp")}}
    if isinstance(original, Mapping) and original.get("poll"):
        data = {**data, "referenced_message": _with_poll_expiry(original)}
    return data


def _paths(value: Payload) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys of everything in a JSON value."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, child in items:
        yield (key,)
        if isinstance(child, Mapping | list):
            yield from ((key, *path) for path in _paths(child))


def _without(value: Payload, path: tuple[str | int, ...]) -> Payload:
    """Return a JSON value without what is at a path."""
    key, *rest = path
    copy = value.copy()
    if rest:
        copy[key] = _without(value[key], tuple(rest))
    else:
        del copy[key]
    return copy


def noting_arrivals(
    parse: Callable[[Payload], None],
    find: Callable[[int], discord.Guild | None],
    take: Callable[[discord.Guild], None],
) -> Callable[[Payload], None]:
    """Return a parser of servers that also takes those which the bot has just joined.

    Discord sends servers as available again after an outage; the store knows the old ones.
    """

    def take_if_new(data: Payload) -> None:
        guild = find(int(data["id"])) if data.get("unavailable") is False else None
        arrived = guild.me.joined_at if guild is not None and data.get("channels") else None
        if guild is not None and arrived is not None and utcnow() - arrived < _NEW_IN_GUILD:
            take(guild)

    take_or_skip = _skipping_unreadable("GUILD_CREATE", take_if_new)

    def parse_and_take(data: Payload) -> None:
        parse(data)
        take_or_skip(data)

    return parse_and_take


def _skipping_unreadable(event: str, parse: Callable[[Payload], None]) -> Callable[[Payload], None]:
    return lambda data: skip_unreadable(event, lambda: parse(data))
