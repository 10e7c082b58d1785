"""Send, edit, delete and find messages on Discord, idempotently and without notifying anyone."""

import contextlib
import unicodedata
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec
from typing_extensions import override

from bot import errors
from bot.chat.incoming import Address
from bot.chat.outgoing import (
    Attachment,
    Button,
    ButtonStyle,
    Face,
    Limits,
    Menu,
    MenuOption,
    MessageContent,
    MessageSearch,
    MessageThread,
    OutgoingMessage,
)
from bot.chat.rate import CallWindow
from bot.markup.graphemes import grapheme_starts
from bot.platforms.discord.channels import (
    AnswerThreads,
    ChannelWebhook,
    ChannelWebhooks,
    join_thread_and_message_id,
    locate_message,
    webhook_fields,
)
from bot.platforms.discord.markup import to_discord_markdown
from bot.platforms.discord.rest import (
    ChannelNotFound,
    ObjectWithId,
    RestClient,
    RestEndpoint,
    WebhookNotFound,
    decode_response,
)
from bot.ports import BucketSurface, Surface

_PAGE_SIZE = 100
_MAX_PAGES = 10
_KEYCAP = "\N{COMBINING ENCLOSING KEYCAP}"


def _to_reaction(text: str) -> str:
    """Return the text if it is exactly one emoji, otherwise ""."""
    is_emoji = any(unicodedata.category(char) == "So" or char == _KEYCAP for char in text)
    return text if is_emoji and len(grapheme_starts(text, 0, len(text))) == 1 else ""


DISCORD_LIMITS = Limits(
    max_units=2000,
    unit="characters",
    seconds_between_edits=1.2,
    typing_seconds=8.0,
    has_buttons=True,
    to_visible_text=to_discord_markdown,
    shows_faces=True,
    can_retry_with_face=False,
    convert_reaction=_to_reaction,
    message_link_template="https://discord.com/channels/{server}/{chat}/{message}",
    has_threads=True,
    has_private_chats=True,
    folds_thoughts=True,
    # "50 requests per second", of which five are reserved for reading. Because of latency, the
    # window is longer than a second.
    bot_call_windows=(CallWindow(45, 1.25, is_learned=True, reserved_count=10),),
    # Observed in response headers; each process sees only those of its own responses.
    route_call_windows=(CallWindow(5, 5.5, is_learned=True),),
    typing_counts_as_call=True,
    # "Interaction endpoints are not bound to the bot's Global Rate Limit"
    responses_count_as_calls=False,
)
_SUPPRESS_EMBEDS_FLAG = 1 << 2

# These calls raise RateLimited immediately, so that other processes learn of the limit.
_SEND_MESSAGE = RestEndpoint("POST", "/channels/{}/messages", waits_for_limit=False)
_EDIT_MESSAGE = RestEndpoint("PATCH", "/channels/{}/messages/{}", waits_for_limit=False)
_DELETE_MESSAGE = RestEndpoint("DELETE", "/channels/{}/messages/{}", waits_for_limit=False)
_ADD_REACTION = RestEndpoint(
    "PUT", "/channels/{}/messages/{}/reactions/{}/@me", waits_for_limit=False
)
READ_MESSAGES = RestEndpoint("GET", "/channels/{}/messages")
READ_MESSAGE = RestEndpoint("GET", "/channels/{}/messages/{}")
_SEARCH_MESSAGES = replace(READ_MESSAGES, waits_for_limit=False)
_SHOW_TYPING = RestEndpoint("POST", "/channels/{}/typing", waits_for_limit=False)
_EXECUTE_WEBHOOK = RestEndpoint("POST", "/webhooks/{}/{}", bucket_id_count=2, waits_for_limit=False)
_EDIT_WEBHOOK_MESSAGE = RestEndpoint(
    "PATCH", "/webhooks/{}/{}/messages/{}", bucket_id_count=2, waits_for_limit=False
)
_DELETE_WEBHOOK_MESSAGE = RestEndpoint(
    "DELETE", "/webhooks/{}/{}/messages/{}", bucket_id_count=2, waits_for_limit=False
)
_EDIT_RESPONSE = RestEndpoint("PATCH", "/webhooks/{}/{}/messages/@original", bucket_id_count=2)
_ROW_TYPE, _BUTTON_TYPE, _MENU_TYPE = 1, 2, 3
_MAX_LABEL_CHARS = 100
_MAX_PLACEHOLDER_CHARS = 150
_BUTTON_STYLES = {ButtonStyle.PRIMARY: 1, ButtonStyle.PLAIN: 2, ButtonStyle.DANGER: 4}


class DiscordSurface(Surface, BucketSurface):
    """Sends messages with the REST API; needs no gateway connection.

    A message with a face (a character's name and picture) is sent by the channel's webhook. Webhook
    messages have no nonces and cannot be replies, so after a lost response, `find` searches for the
    message in the channel (docs/delivery.md#unknown-outcomes).
    """

    def __init__(self, rest: RestClient, *, uses_webhooks: bool = True) -> None:
        self._rest = rest
        self._webhooks = ChannelWebhooks(rest)
        self._answer_threads = AnswerThreads(rest)
        self._uses_webhooks = uses_webhooks

    @override
    def limits(self, address: Address) -> Limits:
        return DISCORD_LIMITS

    @override
    async def select_send_bucket(self, message: OutgoingMessage) -> str:
        face = message.content.face if message.interaction is None else None
        chat = message.address.chat if message.thread is None else message.thread.message_id
        return await self._select_bucket(message.address, chat, face)

    @override
    async def select_edit_bucket(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> str:
        face = content.face if interaction is None else None
        return await self._select_bucket(address, locate_message(address, message_id)[0], face)

    async def _select_bucket(self, address: Address, channel_id: str, face: Face | None) -> str:
        """Return the rate limit bucket of a message: its chat, or the webhook that sends it.

        A webhook has one limit for its channel and the channel's threads ("per-resource":
        https://discord.com/developers/docs/topics/rate-limits).
        """
        webhook = await self._find_webhook(address, face)
        if webhook is None:
            return f"{address.source}:{channel_id}"
        return f"{address.source}:webhook={webhook.id}"

    @override
    async def send(self, message: OutgoingMessage) -> str:
        interaction, content, file = message.interaction, message.content, message.file
        if interaction is not None:
            is_private = message.private_to is not None or file is not None
            return await self._edit_response(interaction, content, file, is_private=is_private)
        if message.thread is not None:
            message_id = await self._send_to_thread(message, message.thread)
            if message_id is not None:
                return message_id
        return await self._send_to_channel(message)

    async def _send_to_thread(self, message: OutgoingMessage, thread: MessageThread) -> str | None:
        channel_id = message.address.chat
        thread_id = await self._answer_threads.open_thread(channel_id, thread)
        if thread_id is None:
            return None
        thread_address = replace(message.address, chat=thread_id)
        try:
            thread_message = replace(message, address=thread_address, reply_to=None)
            message_id = await self._send_to_channel(thread_message)
        except (errors.ContentRefused, errors.MessageNotFound):
            raise
        except errors.Refused as error:  # no permission, or the thread was locked or deleted
            self._answer_threads.pause_threads(channel_id, str(error))
            return None
        return join_thread_and_message_id(thread_id, message_id)

    async def _send_to_channel(self, message: OutgoingMessage) -> str:
        webhook = await self._find_webhook(message.address, message.content.face)
        if webhook is not None:
            return await self._send_by_webhook(webhook, message)
        body = {**_to_bot_message(message.content), "nonce": message.nonce, "enforce_nonce": True}
        if message.reply_to is not None:
            reply_reference = {"message_id": message.reply_to, "fail_if_not_exists": False}
            body["message_reference"] = reply_reference
        chat, file = message.address.chat, message.file
        response = await self._rest.call(_SEND_MESSAGE, chat, body=body, file=file)
        return decode_response(response, ObjectWithId).id

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        if interaction is not None:
            await self._edit_response(interaction, content)
            return
        chat, message_id = locate_message(address, message_id)
        address = replace(address, chat=chat)
        if content.face is not None and await self._edit_by_webhook(address, message_id, content):
            return
        try:
            body = _to_bot_message(content)
            await self._rest.call(_EDIT_MESSAGE, address.chat, message_id, body=body)
        except (errors.MessageNotFound, errors.ContentRefused):
            raise
        except errors.Refused:  # the message was sent by a webhook
            if not await self._edit_by_webhook(address, message_id, content):
                raise

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        chat, message_id = locate_message(address, message_id)
        with contextlib.suppress(errors.MessageNotFound):
            try:
                await self._rest.call(_DELETE_MESSAGE, chat, message_id)
            except errors.MessageNotFound:
                raise
            except errors.Refused:  # a webhook sent it, and the bot may not manage messages
                webhook = await self._webhooks.find(chat)
                if webhook is None:
                    raise
                ids = (webhook.id, webhook.token, message_id)
                await self._rest.call(_DELETE_WEBHOOK_MESSAGE, *ids, query=webhook.url_query)

    @override
    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._rest.call(_ADD_REACTION, *locate_message(address, message_id), quote(emoji))

    @override
    async def typing(self, address: Address) -> None:
        await self._rest.call(_SHOW_TYPING, address.chat)

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        if message.thread is not None:
            thread = message.thread.message_id
            address = replace(message.address, chat=thread)
            thread_message = replace(message, address=address)
            known_ids = {locate_message(address, one)[1] for one in search.excluded_ids}
            with contextlib.suppress(ChannelNotFound):  # the thread was never opened
                message_id = await self._search_channel(thread_message, thread, known_ids)
                if message_id is not None:
                    return join_thread_and_message_id(thread, message_id)
        return await self._search_channel(message, search.after, search.excluded_ids)

    async def _search_channel(
        self, message: OutgoingMessage, after_id: str | None, known_ids: Set[str]
    ) -> str | None:
        newest_id = after_id
        for _ in range(_MAX_PAGES):
            query = {"limit": str(_PAGE_SIZE)} | ({"after": newest_id} if newest_id else {})
            response = await self._rest.call(_SEARCH_MESSAGES, message.address.chat, query=query)
            page = decode_response(response, list[_FoundMessage])[::-1]
            await self._find_webhook(message.address, message.content.face)
            sender_ids = {(await self._rest.read_bot_user()).id, *self._webhooks.webhook_ids}
            for candidate in page:
                is_new = candidate.id not in known_ids
                if is_new and _is_same_message(candidate, message, sender_ids):
                    return candidate.id
            if len(page) < _PAGE_SIZE or newest_id is None:
                return None
            newest_id = page[-1].id
        limit = _MAX_PAGES * _PAGE_SIZE
        raise errors.OutcomeUnknown(f"the search reached its limit of {limit} messages")

    async def _find_webhook(self, address: Address, face: Face | None) -> ChannelWebhook | None:
        """Return the webhook to send a face with, or None if the bot must send as itself."""
        if face is None or not self._uses_webhooks:
            return None
        return await self._webhooks.find(address.chat)

    async def _send_by_webhook(self, webhook: ChannelWebhook, message: OutgoingMessage) -> str:
        content = message.content
        fields = webhook_fields(content.face) if content.face is not None else {}
        try:
            response = await self._rest.call(
                _EXECUTE_WEBHOOK,
                webhook.id,
                webhook.token,
                body={**_to_message_body(content, content.text), **fields},
                file=message.file,
                query={"wait": "true", **webhook.url_query},
            )
        except WebhookNotFound as error:  # deleted by someone; a retry creates a new one
            self._webhooks.forget(message.address.chat)
            raise errors.Unreachable(str(error)) from None
        return decode_response(response, ObjectWithId).id

    async def _edit_by_webhook(
        self, address: Address, message_id: str, content: MessageContent
    ) -> bool:
        """Edit a message with the channel's webhook; return False if another sender posted it."""
        webhook = await self._webhooks.find(address.chat) if self._uses_webhooks else None
        if webhook is None:
            return False
        ids = (webhook.id, webhook.token, message_id)
        body = _to_message_body(content, content.text)
        try:
            await self._rest.call(_EDIT_WEBHOOK_MESSAGE, *ids, body=body, query=webhook.url_query)
        except errors.MessageNotFound:
            return False
        except WebhookNotFound:
            self._webhooks.forget(address.chat)
            return False
        return True

    async def _edit_response(
        self,
        interaction: str,
        content: MessageContent,
        file: Attachment | None = None,
        *,
        is_private: bool = False,
    ) -> str:
        """Fill in the deferred response to a command, or edit the message whose button was pressed.

        Return the message's id. The call may be repeated. When the interaction's token has expired
        (after 15 minutes), raises `ResponseRefused`, or `Refused` if the content is private.
        """
        application_id, _, token = interaction.partition(":")
        body = _to_bot_message(content)
        try:
            ids = application_id, token
            response = await self._rest.call(_EDIT_RESPONSE, *ids, body=body, file=file)
        except errors.ContentRefused:
            raise
        except errors.Refused as error:
            if is_private:
                raise
            raise errors.ResponseRefused(str(error)) from None
        return decode_response(response, ObjectWithId).id


class _FoundMessage(msgspec.Struct):
    id: str
    content: str
    author: ObjectWithId
    webhook_id: str | None = None
    attachments: list[dict[str, Any]] = []


def _is_same_message(
    candidate: _FoundMessage, message: OutgoingMessage, sender_ids: Set[str]
) -> bool:
    files = [one["filename"] for one in candidate.attachments]
    content = message.content
    text = content.text_with_name_line if candidate.webhook_id is None else content.text
    plain_content = replace(message.content, is_plain=True)
    texts = {_render_text(text, content).strip() for content in (message.content, plain_content)}
    return (
        (candidate.webhook_id or candidate.author.id) in sender_ids
        and candidate.content.strip() in texts  # Discord strips whitespace at both ends
        and files == ([message.file.name] if message.file else [])
    )


def _to_bot_message(content: MessageContent) -> dict[str, Any]:
    return _to_message_body(content, content.text_with_name_line)


def _to_message_body(content: MessageContent, text: str) -> dict[str, Any]:
    """Return the JSON fields of a message, or of an edit, which leaves other fields unchanged."""
    # An edit needs the allowed mentions again. Embeds are suppressed, because Discord would fetch
    # URLs, and a model could be tricked into writing parts of the conversation into a URL.
    no_mentions = {"parse": [], "replied_user": False}
    return {
        "content": _render_text(text, content),
        "allowed_mentions": no_mentions,
        "flags": _SUPPRESS_EMBEDS_FLAG,
        "components": to_components(content.buttons, content.menus),
    }


def _render_text(text: str, content: MessageContent) -> str:
    """Return a text in Discord's dialect, followed by the model's thoughts as a spoiler.

    Plain content is returned unformatted, truncated to the length limit of a message.
    """
    if content.is_plain:
        return text[: DISCORD_LIMITS.max_units]
    markdown = to_discord_markdown(text)
    return f"{markdown}\n💭 ||{content.thoughts}||".lstrip("\n") if content.thoughts else markdown


def to_components(buttons: Sequence[Button], menus: Sequence[Menu] = ()) -> list[dict[str, object]]:
    """Return component rows, of which Discord accepts five: one per menu, then the button rows."""
    button_rows: dict[int, list[dict[str, object]]] = {}
    for one in buttons:
        fields = {"style": _BUTTON_STYLES[one.style], "label": one.label, "custom_id": one.data}
        button_rows.setdefault(one.row, []).append({"type": _BUTTON_TYPE, **fields})
    return [
        *({"type": _ROW_TYPE, "components": [_to_menu(one)]} for one in menus),
        *({"type": _ROW_TYPE, "components": button_rows[row]} for row in sorted(button_rows)),
    ]


def _to_menu(menu: Menu) -> dict[str, object]:
    # Discord refuses a menu with several selected options if only one can be chosen.
    is_one_chosen = sum(option.is_chosen for option in menu.options) == 1
    return {
        "type": _MENU_TYPE,
        "custom_id": menu.data,
        "placeholder": menu.title[:_MAX_PLACEHOLDER_CHARS],
        "options": [
            _to_option(one, is_chosen=is_one_chosen and one.is_chosen) for one in menu.options
        ],
    }


def _to_option(option: MenuOption, *, is_chosen: bool) -> dict[str, object]:
    fields = {"label": option.label[:_MAX_LABEL_CHARS], "value": option.value, "default": is_chosen}
    description = option.description[:_MAX_LABEL_CHARS]
    return {**fields, "description": description} if description else fields
