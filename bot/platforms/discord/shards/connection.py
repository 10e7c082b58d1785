"""The connection of one shard: RESUME where a session is known, else IDENTIFY when it may.

discord.py's own loop identifies at once and without a limit, always resumes from what it has
received, stored or not, and ends a session when it closes.
"""

import random
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import discord
import msgspec
import structlog
import yarl
from discord.backoff import ExponentialBackoff
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from typing_extensions import override

from bot.errors import PlatformError, PlatformFatal, RateLimited, Refused, Unreachable
from bot.platforms.discord.client import DiscordClient
from bot.platforms.discord.requests import bounded_request
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.shards.guild_events import HeldEvents
from bot.platforms.discord.shards.identify_limits import IdentifyLimits
from bot.platforms.discord.shards.shard import GatewaySession, Shard
from bot.ports import Clock

_log = structlog.get_logger(__name__)
_KEEPS_SESSION = 4000
"""The code to close with: after 1000 or 1001 Discord ends the session."""
_ASK_AGAIN_SECONDS = 2.0
_MAX_REFUSED_RESUME_SECONDS = 5.0  # Discord asks for 1 to 5 s before the next IDENTIFY
_MESSAGES = frozenset({"MESSAGE_CREATE", "MESSAGE_UPDATE"})
_CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    aiohttp.ClientError,
    discord.HTTPException,
    discord.GatewayNotFound,
    discord.ConnectionClosed,
)


class _Frame(msgspec.Struct):
    """What the gateway sends; `d` is parsed by whoever handles the event `t`."""

    op: int
    s: int | None = None
    t: str | None = None
    d: msgspec.Raw = msgspec.Raw(b"null")


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_payload = msgspec.json.Decoder().decode


class ShardSocket(DiscordWebSocket):
    """discord.py's connection, which tells that an event was parsed.

    Messages, which are nearly all events, do not go through the library's generic path: each edit
    of a growing answer comes back as one.
    """

    after_event: Callable[[], None] | None = None
    skips: Callable[[str, msgspec.Raw], bool] | None = None
    """Takes the name and the payload of a message's event; whether nobody else has to see it."""

    @override
    async def received_message(self, msg: Any, /) -> None:
        before = self.sequence
        text = self._decompressor.decompress(msg) if isinstance(msg, bytes) else msg
        if text is None:  # a part of one
            return
        if not self._take_message(text):
            await super().received_message(text)
        if self.sequence != before and self.after_event is not None:
            self.after_event()

    def _take_message(self, text: str) -> bool:
        """Handle a new or a changed message; return False for anything else."""
        if self.skips is None:
            return False
        try:
            frame = _decode_frame(text)
            if frame.op != self.DISPATCH or frame.t not in _MESSAGES or frame.s is None:
                return False
            is_skipped = self.skips(frame.t, frame.d)
            payload = None if is_skipped else _decode_payload(frame.d)
        except (msgspec.DecodeError, ValueError):  # the library says what is wrong
            return False
        self.sequence = frame.s
        if self._keep_alive:
            self._keep_alive.tick()
        if not is_skipped:
            self._discord_parsers[frame.t](payload)
        return True


class ShardClient(DiscordClient):
    """discord.py's client for one shard of a bot."""

    def __init__(
        self,
        settings: DiscordSettings,
        intents: discord.Intents,
        shard: Shard,
        identify_limits: IdentifyLimits,
        clock: Clock,
    ) -> None:
        self.shard = shard
        self._identify_limits = identify_limits
        self._clock = clock
        self._unsettled: dict[int, int] = {}  # interactions in progress -> their sequence numbers
        self._socket: ShardSocket | None = None  # the latest; discord.py knows it as `ws`
        self.is_replaying = False
        """Whether a session is being resumed, and what arrives is not new."""
        self._held = HeldEvents(self._is_known, self._load_guild, lambda: self.ws.sequence)
        super().__init__(settings, intents, shard)

    @abstractmethod
    def on_progress(self) -> None:
        """Note that an event was parsed, so that `progress` is another one."""

    @abstractmethod
    def skip_message(self, event: str, payload: msgspec.Raw) -> bool:
        """Handle a message that the library need not know; return whether it is one."""

    async def stay_connected(
        self, session: GatewaySession | None, before_identify: Callable[[], Awaitable[None]]
    ) -> None:
        """Receive until closed.

        Args:
            session: the one to resume.
            before_identify: is awaited before each IDENTIFY.

        Raises:
            Unreachable: there was no connection yet.
            discord.ConnectionClosed: Discord ended it for good.
        """
        backoff: ExponentialBackoff[Any] = ExponentialBackoff()
        while not self.is_closed():
            try:
                self.ws = self._socket = await self._open(session, before_identify)
                while True:
                    await self._socket.poll_event()
            except ReconnectWebSocket as error:
                self.dispatch("disconnect")
                session = self._resumable if error.resume else None
                if session is None:
                    await self._clock.sleep(random.uniform(1, _MAX_REFUSED_RESUME_SECONDS))  # noqa: S311
            except _CONNECTION_ERRORS as error:
                self.dispatch("disconnect")
                if _is_final(error):
                    raise
                if self._socket is None and not (session and session.resume_url):
                    reason = str(error) or type(error).__name__
                    raise Unreachable(
                        f"the Discord gateway cannot be reached ({reason})"
                    ) from error
                session = self._resumable or session
                if session is not None:  # its server may be what is gone
                    session = GatewaySession(session.id, session.sequence, "")
                await self._clock.sleep(backoff.delay())

    @override
    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Do nothing: what has to be waited for was before there was a connection."""

    @override
    async def close(self) -> None:
        """Disconnect, so that the session can be resumed by whoever receives next."""
        self._held.clear()
        if self._socket is not None and self._socket.open:
            await self._socket.close(code=_KEEPS_SESSION)
        await super().close()

    async def _open(
        self, session: GatewaySession | None, before_identify: Callable[[], Awaitable[None]]
    ) -> ShardSocket:
        shard: dict[str, Any] = {} if self.shard.is_alone else {"shard_id": self.shard.number}
        self.is_replaying = session is not None
        if session is not None:
            _log.info("discord_resuming", shard=self.shard.name)
            socket = await ShardSocket.from_client(
                self,
                gateway=yarl.URL(session.resume_url) if session.resume_url else None,
                session=session.id,
                sequence=session.sequence,
                resume=True,
                **shard,
            )
        else:
            await before_identify()
            async with self._identify_limits.turn(self.shard.number):
                _log.info("discord_identifying", shard=self.shard.name)
                socket = await ShardSocket.from_client(self, **shard)
        socket.after_event, socket.skips = self.on_progress, self.skip_message
        return socket

    @property
    def _resumable(self) -> GatewaySession | None:
        socket = self._socket
        if socket is None or socket.session_id is None or socket.sequence is None:
            return None
        return GatewaySession(socket.session_id, socket.sequence, str(socket.gateway))

    @property
    def progress(self) -> GatewaySession | None:
        """How far the events of the session were queued; None while there is none."""
        session = self._resumable
        if session is None:
            return None
        open_numbers = [*self._unsettled.values()]
        if (held := self._held.first_held) is not None:
            open_numbers.append(held)
        sequence = min(session.sequence, min(open_numbers, default=session.sequence + 1) - 1)
        return GatewaySession(session.id, sequence, session.resume_url)

    def _is_known(self, guild_id: int) -> bool:
        return self.get_guild(guild_id) is not None

    async def _load_guild(self, guild_id: int) -> None:
        """Fetch a guild with its channels; without them where Discord refuses."""
        while not self.is_closed():
            try:
                async with bounded_request(self):
                    guild = await self.http.get_guild(guild_id, with_counts=False)
                    channels = await self.http.get_all_guild_channels(guild_id)
                    threads = await self.http.get_active_threads(guild_id)
            except (Refused, PlatformFatal) as error:
                _log.warning("discord_guild_not_loaded", guild=guild_id, reason=str(error))
                return
            except RateLimited as limited:
                await self._clock.sleep(limited.retry_after_seconds)
            except PlatformError:
                await self._clock.sleep(_ASK_AGAIN_SECONDS)
            else:
                described: Any = {**guild, "channels": channels, "threads": threads["threads"]}
                if not self._is_known(guild_id):
                    self._connection._add_guild_from_data(described)  # noqa: SLF001
                return


def _is_final(error: Exception) -> bool:
    return isinstance(error, discord.ConnectionClosed) and error.code != 1000
