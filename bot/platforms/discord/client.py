"""discord.py's client as we need it: at our address, and never waiting for long."""

import asyncio

import discord
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import Route

from bot.errors import PlatformFatal
from bot.platforms.discord.requests import bounded_request
from bot.platforms.discord.settings import DiscordSettings

# Longer waits are ours: the outbox knows how. Must exceed Discord's usual window of 5 s, or
# discord.py refuses what would still fit into it.
_LONGEST_WAIT_SECONDS = 6.0
_GUILDS_SECONDS = 1.0  # the longest pause between two guilds while a new session begins


def set_api_addresses(settings: DiscordSettings) -> None:
    """Send all requests and connections of this process there.

    discord.py keeps both addresses on its classes, and a `Route` takes its own when it is made.
    """
    Route.BASE = settings.api_base.rstrip("/")
    if settings.gateway_url is not None:
        DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(settings.gateway_url)


class DiscordClient(discord.Client):
    """Speaks with Discord's REST API once it is logged in."""

    def __init__(self, settings: DiscordSettings, intents: discord.Intents) -> None:
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # we only write
        super().__init__(
            intents=intents,
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            guild_ready_timeout=_GUILDS_SECONDS,
        )
        self._token = settings.token
        # The constructor would not take less than 30 s.
        self.http.max_ratelimit_timeout = _LONGEST_WAIT_SECONDS

    async def log_in(self) -> discord.ClientUser:
        """Show the token and learn who we are; raises a `PlatformError`."""
        if self._token is None:
            raise PlatformFatal("Discord needs a bot token; set TROUPE_DISCORD__TOKEN")
        async with bounded_request(self):
            await self.login(self._token.get_secret_value())
        if self.user is None:
            raise PlatformFatal("Discord did not say who this bot is")
        return self.user


class RestClient:
    """A client that outlives every gateway connection: answers go out while one is renewed."""

    def __init__(self, settings: DiscordSettings) -> None:
        self._settings = settings
        self._client: DiscordClient | None = None
        self._logging_in = asyncio.Lock()

    async def client(self) -> DiscordClient:
        """Give the client, logged in; raises a `PlatformError` when it cannot be."""
        async with self._logging_in:
            if self._client is None:
                client = DiscordClient(self._settings, discord.Intents(guilds=True))
                try:
                    await client.log_in()
                    self._client = client
                finally:
                    if self._client is None:
                        await client.close()
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
