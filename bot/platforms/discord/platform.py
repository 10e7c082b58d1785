"""The Discord platform: shards, command registration, permissions, history and files."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce
from hashlib import sha256
from operator import or_
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import discord
import msgspec
import structlog
from typing_extensions import override

from bot.chat.incoming import Address, IncomingMessage, MediaItem, Request, source_name
from bot.errors import PlatformError, Refused, StoreError, TokenRejected, Unreachable
from bot.platforms.discord.channels import PictureEmojis
from bot.platforms.discord.commands import to_command_payload, to_message_command_payload
from bot.platforms.discord.gateway import Gateway
from bot.platforms.discord.incoming import to_incoming_message
from bot.platforms.discord.internals import DiscordClient, parse_or_skip
from bot.platforms.discord.receiver import MessageReceiver
from bot.platforms.discord.rest import ObjectWithId, RestClient, RestEndpoint, decode_response
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.shards import IdentifyLimits, Shard, read_gateway_info
from bot.platforms.discord.surface import READ_MESSAGE, READ_MESSAGES, DiscordSurface
from bot.platforms.spec import PlatformContext
from bot.platforms.tokens import BotToken
from bot.ports import FileSource, HistoryReader, Intake, PictureHost, PrivateChats, ShardedPlatform
from bot.runtime.http_client import ConnectionFailed, download_file
from bot.runtime.in_process import BoundedDict
from bot.runtime.tasks import cancel_and_wait
from bot.texts.text import Text, translatable

T = TypeVar("T")

_log = structlog.get_logger(__name__)
_OFFICIAL_API_HOSTS = frozenset({"discord.com", "discordapp.com"})
_FILE_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_DOWNLOAD_TIMEOUT_SECONDS = 20.0
_ROLE_CACHE_SECONDS = 30.0
_MAX_CACHED_MEMBERS = 1000  # whose roles are cached
_PRIVATE_CHAT_INSTRUCTIONS = translatable(
    "My reply is for you alone, but I cannot send you direct messages. Allow direct messages in"
    " this server's privacy settings, then ask again."
)
_OPEN_PRIVATE_CHAT = RestEndpoint("POST", "/users/@me/channels", bucket_id_count=0)
_REPLACE_COMMANDS = RestEndpoint("PUT", "/applications/{}/commands")
_GET_GUILD = RestEndpoint("GET", "/guilds/{}")
_GET_MEMBER = RestEndpoint("GET", "/guilds/{}/members/{}")


class DiscordPlatform(ShardedPlatform, HistoryReader, FileSource, PrivateChats, PictureHost):
    """A Discord bot, with its guild channels, threads and direct messages."""

    name = "discord"

    def __init__(self, settings: DiscordSettings, context: PlatformContext) -> None:
        self._settings = settings
        self._context = context
        self._token = BotToken(settings, context.clock)
        self._rest = RestClient(self._token)
        self._pictures = PictureEmojis(self._rest)
        self.surface = DiscordSurface(self._rest, uses_webhooks=settings.faces)
        name = source_name("discord", context.bot_id)
        self._identify_limits = IdentifyLimits(self._rest, context.take_lease, name, context.clock)
        self._running_shards: dict[str, tuple[Gateway, MessageReceiver]] = {}  # by shard name
        self._token_problem: str | None = None  # why Discord rejects the token; None once accepted
        self._role_cache = BoundedDict[tuple[str | None, str], tuple[float, tuple[str, ...]]](
            _MAX_CACHED_MEMBERS
        )

    @property
    @override
    def connection_error(self) -> str | None:
        problems = [
            (shard_name, receiver.store_error or gateway.connection_error)
            for shard_name, (gateway, receiver) in self._running_shards.items()
        ]
        first_shard_problem = next(
            ((shard_name, problem) for shard_name, problem in problems if problem), None
        )
        if first_shard_problem is None:
            return None if problems else self._token_problem or "not connected to Discord"
        shard_name, problem = first_shard_problem
        return problem if len(problems) == 1 else f"shard {shard_name}: {problem}"

    @override
    async def run(self, intake: Intake) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for shard in await self.list_shards():
                    tasks.create_task(self.run_shard(shard, intake))
        except ExceptionGroup as error:
            raise _first_error_in_group(error) from error

    @override
    async def list_shards(self) -> Sequence[str]:
        shard_count = self._settings.shards
        if shard_count is None:
            gateway_info = await self._retry_until_token_accepted(
                lambda _: read_gateway_info(self._rest, self._context.clock)
            )
            shard_count = gateway_info.shards
        return [Shard(number, shard_count).name for number in range(shard_count)]

    @override
    async def run_shard(self, shard: str, intake: Intake) -> None:
        receive_from_shard = functools.partial(self._receive_from_shard, shard, intake)
        await self._retry_until_token_accepted(receive_from_shard)

    async def _retry_until_token_accepted(self, use_token: Callable[[str], Awaitable[T]]) -> T:
        """Call `use_token` with the newest token; repeat this while Discord rejects the token."""
        while True:
            token = self._token.read()
            try:
                return await use_token(token)
            except TokenRejected as error:
                self._token_problem = str(error)
                await self._token.wait_for_retry(token, error)

    async def _receive_from_shard(self, shard_name: str, intake: Intake, token: str) -> None:
        shard, bot = Shard.from_name(shard_name), await self._read_bot_user_object()
        arguments = self._settings, self._rest, self._context, bot, shard, self._identify_limits
        async with Gateway(*arguments) as gateway:
            await gateway.login(token)
            if shard.number == 0:
                await self._register_commands(str(gateway.application_id), intake)
            receiver = MessageReceiver(gateway, intake, self._context)
            self._running_shards[shard_name], self._token_problem = (gateway, receiver), None
            try:
                await _run_until_closed(gateway, receiver)
            finally:
                del self._running_shards[shard_name]

    @override
    async def check(self) -> str:
        return (await self._rest.read_bot_user()).full_name

    @override
    async def close(self) -> None:
        await self._rest.close()

    @override
    async def is_admin(self, incoming: Request) -> bool:
        if incoming.author_is_admin is not None:
            return incoming.author_is_admin
        guild_id = self._find_guild_id(incoming)
        if guild_id is None:
            return False
        user_id = incoming.author.id.removeprefix("discord:")
        return await manages_guild(self._rest, guild_id, user_id, self._context.clock.now())

    @override
    async def read_author_roles(self, event: Request) -> tuple[str, ...]:
        key = guild, person = self._find_guild_id(event), event.author.id.removeprefix("discord:")
        if guild is None:
            raise Refused("the server of the message is unknown")
        now, (until, roles) = self._context.clock.monotonic(), self._role_cache.get(key, (0.0, ()))
        if until <= now:
            response = await self._rest.call(_GET_MEMBER, guild, person)
            member = decode_response(response, dict[str, Any])
            roles = tuple(f"discord:{one}" for one in member["roles"])
            self._role_cache[key] = now + _ROLE_CACHE_SECONDS, roles
        return roles

    @override
    async def read_before(self, message: IncomingMessage, limit: int) -> Sequence[IncomingMessage]:
        before_field = {"before": message.message_id} if message.message_id else {}
        query = {"limit": str(limit), **before_field}
        response = await self._rest.call(READ_MESSAGES, message.address.chat, query=query)
        bot = await self._read_bot_user_object()
        messages = decode_response(response, list[dict[str, Any]])
        earlier_messages = (self._parse_message(message, bot, one) for one in reversed(messages))
        return [one for one in earlier_messages if one is not None]

    @override
    async def read_thread_starter(self, message: IncomingMessage) -> IncomingMessage | None:
        thread_id, *parent_ids = [scope.rpartition(":")[2] for scope in message.scopes]
        bot = await self._read_bot_user_object()
        for chat in (*parent_ids[:1], thread_id):  # a forum post contains its first message itself
            with contextlib.suppress(Refused):
                response = await self._rest.call(READ_MESSAGE, chat, thread_id)
                starter_message = decode_response(response, dict[str, Any])
                return self._parse_message(message, bot, starter_message, allows_bots=True)
        return None

    def _parse_message(
        self,
        neighbor: IncomingMessage,
        bot: discord.Object,
        data: dict[str, Any],
        *,
        allows_bots: bool = False,
    ) -> IncomingMessage | None:
        """Convert a message's JSON, which was read from the same channel as `neighbor`."""
        guild = {} if neighbor.is_private else {"guild_id": self._find_guild_id(neighbor) or "0"}
        message = self._message_parser.parse_message({**data, **guild})
        if message is None:
            return None
        convert = functools.partial(to_incoming_message, allows_bots=allows_bots)
        incoming = parse_or_skip("MESSAGE", convert, message, bot, self._context.bot_id)
        # The parser has no guilds, so the scopes are those of the nearby message.
        return incoming and replace(incoming, scopes=neighbor.scopes)

    async def _read_bot_user_object(self) -> discord.Object:
        return discord.Object((await self._rest.read_bot_user()).id)

    @functools.cached_property
    def _message_parser(self) -> DiscordClient:
        """A client that never connects but parses messages; creating one takes milliseconds."""
        return DiscordClient(self._rest, discord.Intents(guilds=True), Shard())

    @override
    async def find_private_chat(self, person_id: str) -> Address:
        body = {"recipient_id": person_id.removeprefix("discord:")}
        chat = decode_response(await self._rest.call(_OPEN_PRIVATE_CHAT, body=body), ObjectWithId)
        return Address("discord", chat.id, bot_id=self._context.bot_id)

    @override
    async def private_chat_instructions(self, person_id: str) -> Text:
        return _PRIVATE_CHAT_INSTRUCTIONS

    @override
    async def download(self, item: MediaItem, max_bytes: int) -> bytes:
        if not _is_hosted_by_discord(item.source, self._settings.api_base):
            raise Refused("the file is not on Discord's servers")
        try:
            return await download_file(item.source, max_bytes, _DOWNLOAD_TIMEOUT_SECONDS)
        except (ConnectionFailed, TimeoutError) as error:
            raise Unreachable(f"cannot download the file from Discord: {error}") from None

    @override
    async def host_picture(self, png: bytes) -> str:
        return await self._pictures.upload_picture(png)

    @override
    async def delete_unused_pictures(self, used_urls: Collection[str]) -> None:
        await self._pictures.delete_unused_pictures(used_urls)

    def _find_guild_id(self, incoming: Request) -> str | None:
        prefix = f"{incoming.address.source}:guild:"
        guild_scope = next((scope for scope in incoming.scopes if scope.startswith(prefix)), None)
        return guild_scope.removeprefix(prefix) if guild_scope is not None else None

    async def _register_commands(self, application_id: str, intake: Intake) -> None:
        """Register the commands if they have changed; only log failures."""
        command_payloads = [
            *(to_command_payload(spec) for spec in self._context.commands),
            *(to_message_command_payload(spec) for spec in self._context.message_commands),
        ]
        cursor_name = f"{source_name('discord', self._context.bot_id)}:commands"
        payload_digest = sha256(msgspec.json.encode(command_payloads)).hexdigest()
        try:
            if (await intake.cursors(cursor_name)).get(cursor_name) != payload_digest:
                await self._rest.call(_REPLACE_COMMANDS, application_id, body=command_payloads)
                await intake.receive((), {cursor_name: payload_digest})
                _log.info("discord_commands_registered", commands=len(command_payloads))
        except (PlatformError, StoreError) as error:
            _log.warning("discord_commands_not_registered", reason=str(error))


def _is_hosted_by_discord(source: str, api_base: str) -> bool:
    """Return whether a URL is on Discord's file servers, or on the configured API server."""
    file_url, api_url = urlsplit(source), urlsplit(api_base)
    if api_url.hostname in _OFFICIAL_API_HOSTS:
        return file_url.scheme == "https" and file_url.netloc in _FILE_HOSTS
    return (file_url.scheme, file_url.netloc) == (api_url.scheme, api_url.netloc)


async def _run_until_closed(gateway: Gateway, receiver: MessageReceiver) -> NoReturn:
    tasks: list[asyncio.Task[None]] = []
    try:
        connection_coroutine = gateway.stay_connected(await receiver.load_session())
        tasks = [asyncio.create_task(receiver.run()), asyncio.create_task(connection_coroutine)]
        ended_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await gateway.close()  # because discord.py may swallow a cancellation
        await cancel_and_wait(tasks)
    if (error := ended_tasks.pop().exception()) is not None:
        raise _first_error_in_group(error)
    raise Unreachable(translatable("the connection to Discord has ended"))


def _first_error_in_group(error: BaseException) -> BaseException:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def manages_guild(rest: RestClient, guild_id: str, user_id: str, now: float) -> bool:
    """Return whether a member owns a guild or may manage it; raises `PlatformError`."""
    guild = decode_response(await rest.call(_GET_GUILD, guild_id), dict[str, Any])
    member = decode_response(await rest.call(_GET_MEMBER, guild_id, user_id), dict[str, Any])
    role_ids = {guild["id"], *member["roles"]}  # @everyone has the id of the guild
    role_permissions = (
        int(role["permissions"]) for role in guild["roles"] if role["id"] in role_ids
    )
    permissions = discord.Permissions(reduce(or_, role_permissions, 0))
    if guild["owner_id"] == user_id or permissions.administrator:
        return True
    silenced_until = member.get("communication_disabled_until")
    is_silenced = silenced_until and datetime.fromisoformat(silenced_until).timestamp() > now
    return permissions.manage_guild and not is_silenced
