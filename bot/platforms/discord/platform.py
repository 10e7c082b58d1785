"""Discord as a platform: the connection's life, its commands, and who may change things."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import discord
import structlog
from discord.http import Route
from typing_extensions import override

from bot.chat.command import CommandSpec
from bot.chat.incoming import Incoming
from bot.errors import PlatformError, PlatformFatal, Unreachable
from bot.platforms.discord.commands import Complete, differ, to_payload
from bot.platforms.discord.gateway import Gateway
from bot.platforms.discord.hearing import Hearing
from bot.platforms.discord.requests import UNKNOWN_BOT, asking, translate
from bot.platforms.discord.surface import DiscordSurface
from bot.ports import Clock, Intake, Platform
from bot.settings import DiscordSettings

_log = structlog.get_logger(__name__)


class DiscordPlatform(Platform):
    """Guild channels, threads and direct messages of one bot user."""

    def __init__(
        self,
        settings: DiscordSettings,
        *,
        commands: Sequence[CommandSpec],
        complete: Complete,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._commands = commands
        self._complete = complete
        self._clock = clock
        self._surface = DiscordSurface()
        self._gateway: Gateway | None = None
        self._hearing: Hearing | None = None

    @property
    @override
    def name(self) -> str:
        return "discord"

    @property
    @override
    def surface(self) -> DiscordSurface:
        return self._surface

    @property
    @override
    def trouble(self) -> str | None:
        if self._gateway is None or self._hearing is None:
            return "not connected to Discord"
        return self._gateway.trouble or self._hearing.trouble

    @override
    async def run(self, intake: Intake) -> None:
        if self._settings.token is None:
            raise PlatformFatal("Discord needs a bot token; set TROUPE_DISCORD__TOKEN")
        async with Gateway(self._settings, self._complete) as gateway:
            async with asking(gateway):
                await gateway.login(self._settings.token.get_secret_value())
            try:
                self._surface.speak_through(gateway)
                await self._offer_commands(gateway)
                await self._listen(gateway, intake)
            finally:
                self._surface.speak_through(None)
                self._gateway = self._hearing = None

    @override
    async def is_admin(self, incoming: Incoming) -> bool:
        if incoming.author_is_admin is not None:
            return incoming.author_is_admin
        guild = self._guild(incoming)
        if guild is None or self._gateway is None:
            return False
        try:
            async with asking(self._gateway):
                member = await guild.fetch_member(int(incoming.author.id.removeprefix("discord:")))
        except PlatformError as error:
            _log.warning("somebody's permissions are not known", error=str(error))
            return False
        may = member.guild_permissions
        return may.administrator or may.manage_guild

    def _guild(self, incoming: Incoming) -> discord.Guild | None:
        prefix = "discord:guild:"
        scope = next((scope for scope in incoming.scopes if scope.startswith(prefix)), None)
        if scope is None or self._gateway is None:
            return None
        return self._gateway.get_guild(int(scope.removeprefix(prefix)))

    async def _listen(self, gateway: Gateway, intake: Intake) -> None:
        bot = gateway.user
        if bot is None:
            raise Unreachable("Discord did not say who the bot is")
        self._gateway, self._hearing = gateway, Hearing(gateway, bot, intake, self._clock)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._hearing.run())
                await gateway.connect()
                raise Unreachable("the connection to Discord has ended")
        except ExceptionGroup as failed:
            raise _why(failed, gateway) from failed

    async def _offer_commands(self, gateway: Gateway) -> None:
        """Register our commands if Discord has others; without them people can still talk."""
        ours = [to_payload(spec) for spec in self._commands]
        path = "/applications/{application_id}/commands"
        application = gateway.application_id
        try:
            async with asking(gateway):
                route = Route("GET", path, application_id=application)
                theirs: list[dict[str, Any]] = await gateway.http.request(route)
                if differ(ours, theirs):
                    route = Route("PUT", path, application_id=application)
                    await gateway.http.request(route, json=ours)
                    _log.info("commands registered", commands=len(ours))
        except PlatformError as error:
            _log.warning("commands could not be registered", error=str(error))


def _why(error: Exception, gateway: Gateway) -> Exception:
    """Say why the connection ended; what is no failure of Discord's stays what it is."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    match error:
        case PlatformError():
            return error
        case discord.PrivilegedIntentsRequired():
            return PlatformFatal(
                "Discord does not let this bot read messages; switch on Bot > Message Content"
                " Intent in the developer portal"
            )
        case discord.ConnectionClosed():
            return _closed(error.code)
        case AttributeError() if gateway.ws is None:
            # What discord.py stumbles over after a first connection that failed.
            return Unreachable("the Discord gateway cannot be reached")
        case discord.DiscordException() | aiohttp.ClientError() | OSError():
            return translate(error)
        case _:
            return error


def _closed(code: int) -> PlatformError:
    match code:
        case 4004:
            return PlatformFatal(UNKNOWN_BOT)
        case 4011:
            return PlatformFatal("this bot is in too many Discord servers for one connection")
        case _:
            return Unreachable(f"the Discord gateway closed the connection with {code}")
