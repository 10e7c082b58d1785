"""The undocumented parts of discord.py that Troupe uses, and why.

tests/platforms/discord/test_internals.py checks each name, and detects names missing here.

- `Client.dispatch` is overridden to handle events at once and in order. The library starts a task
  for each event, so the stored position in the session could be ahead of the stored events.
- `Client.http` is replaced by an `HTTPClient` whose `HTTPClient.request` uses our REST client, so
  that the login has the same limits, timeouts and URL. `Route.method`, `Route.url` and
  `Route.BASE` describe the request.
- `Client._connection` and `ConnectionState.parsers` parse REST responses like events. They also
  parse an event again without its unreadable part, or after its guild was loaded. New messages of
  bots, most of which are our own, are not parsed.
- `DiscordWebSocket.from_client`, `DiscordWebSocket.poll_event`, `DiscordWebSocket.session_id`,
  `DiscordWebSocket.sequence`, `DiscordWebSocket.gateway`, `DiscordWebSocket.open`,
  `DiscordWebSocket.close` and `ReconnectWebSocket.resume` replace the client's own `connect`, which
  sends IDENTIFY at once, cannot resume a stored session, and ends the session when it closes.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import discord
import msgspec
import structlog
import yarl
from discord.gateway import DiscordWebSocket
from discord.gateway import ReconnectWebSocket as ReconnectWebSocket
from discord.http import HTTPClient, Route
from typing_extensions import override

from bot.platforms.discord.rest import RestClient, RestEndpoint, decode_response
from bot.platforms.discord.shards import GatewaySession, Shard

_GUILD_READY_TIMEOUT_SECONDS = 1.0  # the longest gap between guilds at the start of a session
_RESUMABLE_CLOSE_CODE = 4000
"""The close code that keeps the session; with 1000 or 1001, Discord would end it."""
_MESSAGE_EVENTS = frozenset({"MESSAGE_CREATE", "MESSAGE_UPDATE"})

EventHandler = Callable[..., None]
"""Handles an event; called with discord.py's event name, such as "message", and its arguments."""
PARSE_ERRORS = (AttributeError, LookupError, TypeError, ValueError)
"""Errors that discord.py raises if an event has unexpected fields."""
_FIELDS_OF_THIRD_PARSE = frozenset(
    {"id", "channel_id", "guild_id", "webhook_id", "author", "type", "content", "timestamp"}
)
_FIELDS_OF_SECOND_PARSE = _FIELDS_OF_THIRD_PARSE | {
    "mentions",
    "mention_roles",
    "message_reference",
    "referenced_message",
}
_log = structlog.get_logger(__name__)
Payload = Any  # a JSON object of Discord's API
ParseFunction = Callable[[Payload], None]
ParseResultT = TypeVar("ParseResultT")
Args = ParamSpec("Args")


class RawEvent(msgspec.Struct):
    t: str
    d: Any = None


decode_event = msgspec.json.Decoder(RawEvent).decode


class DiscordClient(discord.Client):
    """discord.py's client, changed to use our REST client and to handle events in order."""

    def __init__(self, rest: RestClient, intents: discord.Intents, shard: Shard) -> None:
        logging.getLogger("discord.client").addFilter(_is_not_about_voice)
        super().__init__(
            intents=intents,
            max_messages=None,
            guild_ready_timeout=_GUILD_READY_TIMEOUT_SECONDS,
            enable_debug_events=True,  # for `on_socket_raw_receive`
            shard_id=None if shard.count == 1 else shard.number,
            shard_count=None if shard.count == 1 else shard.count,
        )
        self.http = _RestHttpClient(rest, self)
        self.last_received_json = ""
        """The JSON text of the event that is being parsed."""
        self._event_handler: EventHandler = self.handle_event
        parsers = self._connection.parsers
        for event in _MESSAGE_EVENTS:
            parsers[event] = partial(self._parse_message, event, parsers[event])

    @override
    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        self._event_handler(event, *args)

    def handle_event(self, event: str, *args: Any) -> None:
        """Call the method `on_<event>`, if there is one."""
        if (handler := getattr(self, f"on_{event}", None)) is not None:
            handler(*args)

    def handle_raw_message(self, event: str, message: Payload) -> bool:
        """Handle a new message as raw JSON and return True, or return False to have it parsed."""
        return False

    def _parse_message(self, event: str, parse: ParseFunction, message: Payload) -> None:
        is_new = self._event_handler == self.handle_event
        if not (is_new and self.handle_raw_message(event, message)):
            parse(message)

    def on_socket_raw_receive(self, text: str) -> None:
        self.last_received_json = text

    def parse(self, event: RawEvent, handler: EventHandler) -> None:
        """Parse an event as if just received, and pass it to `handler`; skip malformed events."""
        event_parser = self._connection.parsers[event.t]
        if event.t in _MESSAGE_EVENTS:
            event_parser = partial(parse_readable_fields, event_parser)
        self._event_handler = handler
        try:
            parse_or_skip(event.t, event_parser, event.d)
        finally:
            self._event_handler = self.handle_event

    def parse_message(self, message: dict[str, Any]) -> discord.Message | None:
        """Parse a REST message to which `guild_id` was added; return None if it is unreadable."""
        messages: list[discord.Message] = []
        self.parse(RawEvent("MESSAGE_CREATE", message), lambda _, parsed: messages.append(parsed))
        return messages[0] if messages else None

    async def open_socket(self, session: GatewaySession | None, gateway_url: str | None) -> None:
        """Connect, then RESUME the session or, without one, IDENTIFY; raises library errors."""
        self.ws = await DiscordWebSocket.from_client(
            self,
            gateway=None if gateway_url is None else yarl.URL(gateway_url),
            shard_id=self.shard_id,
            session=None if session is None else session.id,
            sequence=None if session is None else session.sequence,
            resume=session is not None,
        )

    async def receive(self) -> bool:
        """Handle one message, and return whether it was an event; raises `ReconnectWebSocket`."""
        previous_sequence = self.sequence
        try:
            await self.ws.poll_event()
        except PARSE_ERRORS as error:
            event = decode_event(self.last_received_json)
            if event.t in _MESSAGE_EVENTS:
                self.parse(event, self.handle_event)
            else:
                log_skipped_event(event.t, error)
        return self.sequence != previous_sequence

    @property
    def sequence(self) -> int:
        return self.ws.sequence or 0

    @property
    def session(self) -> GatewaySession | None:
        """The session with the sequence number of the last received event, or None."""
        if self.ws is None:  # before the first connection
            return None
        if self.ws.session_id is None or self.ws.sequence is None:
            return None
        return GatewaySession(self.ws.session_id, self.ws.sequence, str(self.ws.gateway))

    @property
    def is_connected(self) -> bool:
        if self.ws is None:
            return False
        return self.ws.open

    @override
    async def close(self) -> None:
        """Disconnect without ending the session, so that it can be resumed."""
        if self.is_connected:
            await self.ws.close(_RESUMABLE_CLOSE_CODE)
        await super().close()


class _RestHttpClient(HTTPClient):
    def __init__(self, rest: RestClient, client: discord.Client) -> None:
        super().__init__(client.loop)
        self._rest = rest

    @override
    async def request(self, route: Route, **options: Any) -> Any:
        endpoint = RestEndpoint(route.method, route.url.removeprefix(Route.BASE), bucket_id_count=0)
        return decode_response(await self._rest.call(endpoint), dict[str, Any])


def _is_not_about_voice(record: logging.LogRecord) -> bool:
    return "voice" not in record.getMessage()


def parse_or_skip(
    event: str, parse: Callable[Args, ParseResultT], *args: Args.args, **options: Args.kwargs
) -> ParseResultT | None:
    """Call `parse` and return its result; if the data is malformed, log that and return None."""
    try:
        return parse(*args, **options)
    except PARSE_ERRORS as error:
        log_skipped_event(event, error)
        return None


def log_skipped_event(event: str, error: Exception) -> None:
    # A ValueError quotes the value, which may be private.
    reason = type(error).__name__ if isinstance(error, ValueError) else repr(error)
    _log.warning("discord_event_skipped", event_type=event, reason=reason)


def parse_readable_fields(parse: ParseFunction, message: Payload) -> None:
    """Parse a message; if discord.py fails, parse it again with only its most important fields."""
    try:
        return parse(message)
    except PARSE_ERRORS as error:
        _log.warning("discord_message_parts_skipped", reason=type(error).__name__)
    try:
        parse({key: value for key, value in message.items() if key in _FIELDS_OF_SECOND_PARSE})
    except PARSE_ERRORS:
        parse({key: value for key, value in message.items() if key in _FIELDS_OF_THIRD_PARSE})
