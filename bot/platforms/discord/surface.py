"""Answers on Discord: one idempotent REST call each, without pings."""

import contextlib
import json
from collections.abc import Mapping, Set
from typing import Any

import discord
from discord.http import Route
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, Limits, MessageContent, OutgoingMessage
from bot.errors import MessageNotFound, OutcomeUnknown, Refused
from bot.platforms.discord.buttons import to_components
from bot.platforms.discord.client import RestClient
from bot.platforms.discord.requests import bounded_request
from bot.ports import Surface

_PAGE_SIZE = 100
_MAX_PAGES = 10
_LIMITS = Limits(max_units=2000, unit="characters", seconds_between_edits=1.2, typing_seconds=8.0)
_SUPPRESS_EMBEDS = 1 << 2


class DiscordSurface(Surface):
    """Sends through REST, whether or not the gateway is connected."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    @override
    def limits(self, address: Address) -> Limits:
        return _LIMITS

    @override
    async def send(self, message: OutgoingMessage) -> str:
        interaction, file = message.interaction, message.file
        if interaction is not None and file is not None:
            return await self._respond(interaction, message.content, file)
        if interaction is not None:
            with contextlib.suppress(Refused):  # its token has expired: send it to the channel
                return await self._respond(interaction, message.content)
        body = {**_render(message.content), "nonce": message.nonce, "enforce_nonce": True}
        if message.reply_to is not None:
            body["message_reference"] = {
                "message_id": message.reply_to,
                "fail_if_not_exists": False,
            }
        channel = message.address.chat
        route = Route("POST", "/channels/{channel_id}/messages", channel_id=channel)
        return str((await self._call(route, **_with_file(body, file)))["id"])

    @override
    async def edit(self, address: Address, message_id: str, content: MessageContent) -> None:
        await self._call(_message_route("PATCH", address, message_id), json=_render(content))

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        with contextlib.suppress(MessageNotFound):
            await self._call(_message_route("DELETE", address, message_id))

    @override
    async def typing(self, address: Address) -> None:
        await self._call(Route("POST", "/channels/{channel_id}/typing", channel_id=address.chat))

    @override
    async def find(
        self, message: OutgoingMessage, *, after: str | None, known: Set[str]
    ) -> str | None:
        bot, newest = (await self._rest.logged_in_client()).user, after
        for _ in range(_MAX_PAGES):
            page = await self._page(message.address, newest)
            for found in page:
                if found["id"] not in known and _is_ours(bot, found, message):
                    return str(found["id"])
            if len(page) < _PAGE_SIZE or newest is None:
                return None
            newest = page[-1]["id"]
        raise OutcomeUnknown(
            f"more than {_MAX_PAGES * _PAGE_SIZE} messages came after the one to find"
        )

    async def _page(self, address: Address, after: str | None) -> list[dict[str, Any]]:
        """Return the messages after this one, oldest first; without one, the newest of all."""
        params = {"limit": str(_PAGE_SIZE)} | ({"after": after} if after else {})
        route = Route("GET", "/channels/{channel_id}/messages", channel_id=address.chat)
        page: list[dict[str, Any]] = await self._call(route, params=params)
        return page[::-1]

    async def _respond(
        self, interaction: str, content: MessageContent, file: Attachment | None = None
    ) -> str:
        """Edit the deferred response of a command; doing it twice is the same as once."""
        application, _, token = interaction.partition(":")
        route = Route(
            "PATCH",
            "/webhooks/{webhook_id}/{webhook_token}/messages/@original",
            webhook_id=application,
            webhook_token=token,
        )
        return str((await self._call(route, **_with_file(_render(content), file)))["id"])

    async def _call(self, route: Route, **request: Any) -> Any:
        client = await self._rest.logged_in_client()
        async with bounded_request(client):
            return await client.http.request(route, **request)


def _is_ours(
    bot: discord.ClientUser | None, found: Mapping[str, Any], sent: OutgoingMessage
) -> bool:
    by_us = bot is not None and found["author"]["id"] == str(bot.id)
    files = [one["filename"] for one in found["attachments"]]
    # Discord strips white space at both ends.
    same_text = found["content"].strip() == sent.text.strip()
    return by_us and same_text and files == ([sent.file.name] if sent.file else [])


def _with_file(body: dict[str, Any], file: Attachment | None) -> dict[str, Any]:
    """Return arguments for a request: JSON, or a form with the JSON and the file."""
    if file is None:
        return {"json": body}
    # Listing the attachments replaces those that are there: a response that is edited twice would
    # otherwise have the file twice.
    payload = {**body, "attachments": [{"id": 0, "filename": file.name}]}
    return {
        "form": [
            {"name": "payload_json", "value": json.dumps(payload, ensure_ascii=False)},
            {
                "name": "files[0]",
                "value": file.text.encode(),
                "filename": file.name,
                "content_type": "text/plain; charset=utf-8",
            },
        ]
    }


def _render(content: MessageContent) -> dict[str, Any]:
    """Return the fields of a message; an edit that leaves one out would not change it."""
    # An edit needs the allowed mentions again. A link preview would fetch any address that a model
    # was talked into writing, with data of the conversation in it.
    no_mentions = {"parse": [], "replied_user": False}
    return {
        "content": content.text,
        "allowed_mentions": no_mentions,
        "flags": _SUPPRESS_EMBEDS,
        "components": to_components(content.buttons),
    }


def _message_route(method: str, address: Address, message_id: str) -> Route:
    path = "/channels/{channel_id}/messages/{message_id}"
    return Route(method, path, channel_id=address.chat, message_id=message_id)
