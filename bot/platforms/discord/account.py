"""Set up a Discord bot: check its account and intents, and find its first admin with a code.

See https://discord.com/developers/docs/resources/application and /events/gateway.
"""

from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import discord
from typing_extensions import override

from bot.errors import PlatformError, Unreachable
from bot.platforms.discord.connection import ShardClient
from bot.platforms.discord.rest import RestClient, RestEndpoint, decode_response
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.shards import IdentifyLimits, Shard
from bot.platforms.spec import AccountSetup, BotAccount, CodeInstructions
from bot.platforms.tokens import BotToken
from bot.runtime.clock import SystemClock
from bot.texts.text import translatable

_INVITE_URL = "https://discord.com/oauth2/authorize"
_GET_APPLICATION = RestEndpoint("GET", "/oauth2/applications/@me", bucket_id_count=0)
_SEND_MESSAGE = RestEndpoint("POST", "/channels/{}/messages")

INVITE_PERMISSIONS = discord.Permissions(
    add_reactions=True,
    view_channel=True,
    send_messages=True,
    embed_links=True,
    attach_files=True,
    read_message_history=True,
    manage_webhooks=True,  # to show the names and pictures of characters
    create_public_threads=True,
    send_messages_in_threads=True,
).value
_INTENTS = discord.Intents(guilds=True, messages=True)  # neither is privileged
_MESSAGE_CONTENT_OFF_NOTE = translatable(
    "Message Content Intent is off, but needed: enable Bot > Message Content Intent in the"
    " developer portal"
)
_MESSAGE_CONTENT_ON_NOTE = translatable("Message Content Intent is on")
# The Message Content Intent; for bots in few servers, the "limited" flag is set instead.
_MESSAGE_CONTENT_FLAGS = discord.ApplicationFlags(
    gateway_message_content=True, gateway_message_content_limited=True
).value


class DiscordAccount(AccountSetup):
    token_source = translatable(
        "the developer portal: https://discord.com/developers/applications > New Application > Bot"
        " > Reset Token"
    )

    def __init__(self, settings: DiscordSettings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._token = BotToken(settings, self._clock)
        self._rest = RestClient(self._token)

    @override
    async def inspect(self) -> BotAccount:
        bot_user = await self._rest.read_bot_user()
        application = decode_response(await self._rest.call(_GET_APPLICATION), dict[str, Any])
        query = {
            "client_id": application["id"],
            "permissions": INVITE_PERMISSIONS,
            "scope": "bot applications.commands",
        }
        can_read_content = bool(application.get("flags", 0) & _MESSAGE_CONTENT_FLAGS)
        return BotAccount(
            bot_user.full_name,
            f"{_INVITE_URL}?{urlencode(query)}",
            translatable("invite it to a server"),
            (_MESSAGE_CONTENT_ON_NOTE if can_read_content else _MESSAGE_CONTENT_OFF_NOTE,),
            can_receive=can_read_content,
        )

    @override
    def code_instructions(self, account: BotAccount, code: str) -> CodeInstructions:
        return CodeInstructions(
            translatable(
                "Send {code} to {name} as a direct message, or mention it with the code in a"
                " channel: @{name} {code} (the bot must be in one of your servers)",
                code=code,
                name=account.name,
            )
        )

    @override
    async def wait_for_code(self, code: str) -> str:
        identify_limits = IdentifyLimits(self._rest, None, "", self._clock)
        async with _PairingCodeListener(
            self._settings, self._rest, _INTENTS, Shard(), identify_limits, self._clock
        ) as listener:
            listener.pairing_code = code
            await listener.login(self._token.read())
            try:
                await listener.stay_connected(None)
            except _CodeReceived as received:
                await self._thank_admin(received.message)
                return str(received.message.author.id)
        raise Unreachable(translatable("the connection to Discord has ended"))

    @override
    async def close(self) -> None:
        await self._rest.close()

    async def _thank_admin(self, message: discord.Message) -> None:
        body = {
            "content": "Thank you! You are now an admin of this bot.",
            "allowed_mentions": {"parse": []},
        }
        with suppress(PlatformError):  # the terminal also reports the success
            await self._rest.call(_SEND_MESSAGE, str(message.channel.id), body=body)


class _CodeReceived(Exception):
    def __init__(self, message: discord.Message) -> None:
        super().__init__()
        self.message = message


class _PairingCodeListener(ShardClient):
    """Receives messages and raises `_CodeReceived` when one of them contains the code."""

    pairing_code = ""

    def on_message(self, message: discord.Message) -> None:
        if self.pairing_code in message.content.split() and not message.author.bot:
            raise _CodeReceived(message)
