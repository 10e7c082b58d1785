"""Set up a bot on Discord: whose token it is, its intents, and a code from its first admin.

See https://discord.com/developers/docs/resources/application and /events/gateway.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
from typing_extensions import override

from bot.errors import PlatformError, RateLimited, Refused, TokenRejected, Unreachable
from bot.platforms.account import AccountSetup, BotAccount, CodeRequest
from bot.platforms.discord.rest.client import USER_AGENT
from bot.platforms.discord.settings import BOT_REJECTED, DiscordSettings
from bot.platforms.json_api import JsonApi
from bot.runtime.tasks import cancel_and_wait
from bot.texts.text import translatable

_TOKEN = re.compile(r"[\x21-\x7e]+")
_INVITE = "https://discord.com/oauth2/authorize"
_CONNECT_SECONDS = 10

# What the bot does in a server (Discord's permission bits).
PERMISSIONS = sum(
    1 << bit
    for bit in (
        6,  # add reactions
        10,  # view channels
        11,  # send messages
        14,  # embed links
        15,  # attach files
        16,  # read message history
        29,  # manage webhooks, for the names and pictures of characters
        35,  # create public threads
        38,  # send messages in threads
    )
)
_MESSAGE_CONTENT = 1 << 18 | 1 << 19  # application flags: for verified bots, and for small ones
_INTENTS = 1 << 9 | 1 << 12  # messages in servers and direct messages; neither is privileged
_MESSAGE_CONTENT_OFF = translatable(
    "Message Content Intent is off, but needed: enable Bot > Message Content Intent in the"
    " developer portal"
)
_MESSAGE_CONTENT_ON = translatable("Message Content Intent is on")


class DiscordAccount(AccountSetup):
    """One bot user, by its token."""

    where_from = translatable(
        "the developer portal: https://discord.com/developers/applications > New Application > Bot"
        " > Reset Token"
    )

    def __init__(self, settings: DiscordSettings) -> None:
        self._settings = settings
        self._token = settings.token.get_secret_value() if settings.token else ""
        headers = {
            "Authorization": f"Bot {self._token}",
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
        }
        self._api = JsonApi("Discord", settings.api_base.rstrip("/"), headers)

    @override
    async def inspect(self) -> BotAccount:
        if not _TOKEN.fullmatch(self._token):
            raise TokenRejected(BOT_REJECTED)
        me = await self._call("GET", "/users/@me")
        application = await self._call("GET", "/oauth2/applications/@me")
        query = {
            "client_id": application.get("id"),
            "permissions": PERMISSIONS,
            "scope": "bot applications.commands",
        }
        has_content = int(application.get("flags") or 0) & _MESSAGE_CONTENT
        return BotAccount(
            _full_name(me),
            f"{_INVITE}?{urlencode(query)}",
            translatable("invite it to a server"),
            (_MESSAGE_CONTENT_ON if has_content else _MESSAGE_CONTENT_OFF,),
            can_receive=bool(has_content),
        )

    @override
    def request_code(self, account: BotAccount, code: str) -> CodeRequest:
        return CodeRequest(
            translatable(
                "Send {code} to {name} as a direct message, or mention it with the code in a"
                " channel: @{name} {code} (it must be in a server of yours)",
                code=code,
                name=account.name,
            )
        )

    @override
    async def wait_for_code(self, code: str) -> str:
        async with self._connected() as events:
            async for event in events:
                match event:
                    case {
                        "content": str(content),
                        "author": {"id": str(person), **author},
                        "channel_id": str(channel),
                    } if code in content.split() and not author.get("bot"):
                        await self._thank(channel)
                        return person
        raise Unreachable(translatable("the connection to Discord has ended"))

    @override
    async def close(self) -> None:
        await self._api.close()

    async def _thank(self, channel: str) -> None:
        body = {
            "content": "Thank you. You are an admin of this bot now.",
            "allowed_mentions": {"parse": []},
        }
        try:
            await self._call("POST", f"/channels/{channel}/messages", body)
        except PlatformError:
            return  # the terminal says it, too

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        status, answer = await self._api.call(method, path, body)
        match status, answer:
            case HTTPStatus.OK | HTTPStatus.CREATED, dict():
                return answer
            case HTTPStatus.UNAUTHORIZED, _:
                raise TokenRejected(BOT_REJECTED)
            case HTTPStatus.TOO_MANY_REQUESTS, {"retry_after": int() | float() as seconds}:
                raise RateLimited(float(seconds))
            case _, {"message": str(message)}:
                refusal = f"{message} ({status})"
                raise Refused(translatable("Discord refuses: {refusal}", refusal=refusal))
            case _:
                raise Unreachable(
                    translatable(
                        "what answers with status {status} is not Discord; correct"
                        " TROUPE_DISCORD__API_BASE",
                        status=status,
                    )
                )

    async def _gateway_address(self) -> str:
        address = self._settings.gateway_url
        if address is None:
            address = str((await self._call("GET", "/gateway")).get("url"))
        parts = urlsplit(address)
        return parts._replace(path=parts.path or "/", query="v=10&encoding=json").geturl()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Connect to the gateway; yields the messages that people write."""
        address = await self._gateway_address()
        async with aiohttp.ClientSession(trust_env=True) as session:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    socket = await session.ws_connect(address, max_msg_size=0)
                    hello = await socket.receive_json()
                    await socket.send_json({"op": 2, "d": self._identity()})
            except (aiohttp.ClientError, TimeoutError, TypeError, ValueError) as error:
                name = type(error).__name__
                raise Unreachable(
                    translatable("the Discord gateway cannot be reached ({reason})", reason=name)
                ) from None
            interval = hello["d"]["heartbeat_interval"] / 1000
            heartbeats = asyncio.create_task(_send_heartbeats(socket, interval))
            try:
                yield _messages(socket)
            finally:
                await cancel_and_wait([heartbeats])
                await socket.close()

    def _identity(self) -> dict[str, Any]:
        properties = {"os": "linux", "browser": "troupe", "device": "troupe"}
        return {"token": self._token, "intents": _INTENTS, "properties": properties}


async def _messages(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the payloads of new messages until the connection ends.

    Raises:
        PlatformFatal: Discord does not accept the token.
        Unreachable: it ended for another reason.
    """
    async for frame in socket:
        match frame.json():
            case {"op": 0, "t": "MESSAGE_CREATE", "d": dict() as message}:
                yield message
            case {"op": 7 | 9}:  # reconnect, or an invalid session
                break
            case _:
                pass
    if socket.close_code == 4004:
        raise TokenRejected(BOT_REJECTED)
    raise Unreachable(f"the Discord gateway closed the connection with {socket.close_code}")


async def _send_heartbeats(socket: aiohttp.ClientWebSocketResponse, seconds: float) -> None:
    while not socket.closed:
        await asyncio.sleep(seconds)
        await socket.send_json({"op": 1, "d": None})


def _full_name(user: dict[str, Any]) -> str:
    number = str(user.get("discriminator") or "0")
    return f"{user.get('username')}#{number}" if int(number) else str(user.get("username"))


def make(settings: DiscordSettings) -> AccountSetup:
    return DiscordAccount(settings)
