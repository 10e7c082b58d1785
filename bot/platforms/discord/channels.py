"""Webhooks and pictures of characters, and threads for long answers."""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Collection, Sequence

import msgspec
import structlog

from bot.chat.incoming import Address
from bot.chat.outgoing import Face, MessageThread
from bot.errors import MessageNotFound, Refused, WordsRefused
from bot.platforms.discord.rest import (
    ObjectWithId,
    RestClient,
    RestEndpoint,
    ThreadExists,
    decode_response,
)
from bot.runtime.addresses import is_http_address
from bot.runtime.in_process import BoundedDict
from bot.value_class import value_class

WEBHOOK_NAME = "Troupe"
_THREAD_CHANNEL_TYPES = frozenset({10, 11, 12})
_DIRECT_MESSAGE_CHANNEL_TYPES = frozenset({1, 3})
_INCOMING_TYPE = 1  # the type of webhooks that can post messages
_REFUSAL_PAUSE_SECONDS = 30.0
_MAX_NAME_CHARS = 80
_MAX_AVATAR_URL_CHARS = 2048
# Discord refuses webhook names that contain these words, and names in the set.
_RESERVED_WORD = re.compile(r"(?P<first>dis|cly)(?P<rest>cord|de)", re.IGNORECASE)
_RESERVED_NAMES = frozenset({"everyone", "here"})

_GET_CHANNEL = RestEndpoint("GET", "/channels/{}")
_LIST_WEBHOOKS = RestEndpoint("GET", "/channels/{}/webhooks")
_CREATE_WEBHOOK = RestEndpoint("POST", "/channels/{}/webhooks")
_GET_APPLICATION = RestEndpoint("GET", "/oauth2/applications/@me", bucket_id_count=0)
_LIST_EMOJIS = RestEndpoint("GET", "/applications/{}/emojis")
_ADD_EMOJI = RestEndpoint("POST", "/applications/{}/emojis")
_DELETE_EMOJI = RestEndpoint("DELETE", "/applications/{}/emojis/{}")
_EMOJI_URL = "https://cdn.discordapp.com/emojis/{}.png"
_EMOJI_NAME_PREFIX = "troupe_"
_EMOJI_NAME_HASH_CHARS = 24  # a name has up to 32
_log = structlog.get_logger(__name__)
_OPEN_THREAD = RestEndpoint("POST", "/channels/{}/messages/{}/threads")
_MAX_THREAD_TITLE_CHARS = 100
_MAX_CACHED_CHANNELS = 5000
_THREAD_ID_SEPARATOR = "/"


@value_class
class ChannelWebhook:
    """A webhook with which the bot posts in a channel or thread."""

    id: str
    token: str
    thread_id: str | None
    """The id of the thread to post in, or None for the webhook's own channel."""

    @property
    def url_query(self) -> dict[str, str]:
        return {} if self.thread_id is None else {"thread_id": self.thread_id}


class ChannelWebhooks:
    """Finds the bot's webhook in a channel, and creates it if it is missing."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._webhooks_by_channel = BoundedDict[str, ChannelWebhook](_MAX_CACHED_CHANNELS)
        self._pause_end_times = BoundedDict[str, float](_MAX_CACHED_CHANNELS)
        self.webhook_ids: set[str] = set()
        """The ids of all webhooks found so far."""
        self._lock = asyncio.Lock()  # prevents two webhooks in one channel

    async def find(self, channel_id: str) -> ChannelWebhook | None:
        """Return a channel's webhook, or None if the bot has none there; raises `PlatformError`."""
        webhook = self._webhooks_by_channel.get(channel_id)
        if webhook is not None or self._pause_end_times.get(channel_id, 0.0) > time.monotonic():
            return webhook
        async with self._lock:
            if channel_id not in self._webhooks_by_channel:
                await self._load_webhook_into_cache(channel_id)
            return self._webhooks_by_channel.get(channel_id)

    def forget(self, channel_id: str) -> None:
        """Remove a channel's webhook from the cache, because someone has deleted it on Discord."""
        self._webhooks_by_channel.pop(channel_id, None)

    async def _load_webhook_into_cache(self, channel_id: str) -> None:
        try:
            webhook = await self._find_or_create_webhook(channel_id)
        except Refused as error:  # no permission to manage webhooks, or too many webhooks
            _log.info("webhook_not_allowed", channel=channel_id, reason=str(error))
            webhook = None
        if webhook is None:
            self._pause_end_times[channel_id] = time.monotonic() + _REFUSAL_PAUSE_SECONDS
        else:
            self._webhooks_by_channel[channel_id] = webhook

    async def _find_or_create_webhook(self, channel_id: str) -> ChannelWebhook | None:
        channel_info = decode_response(await self._rest.call(_GET_CHANNEL, channel_id), _Channel)
        if channel_info.type in _DIRECT_MESSAGE_CHANNEL_TYPES:
            return None
        is_thread = channel_info.type in _THREAD_CHANNEL_TYPES
        parent_id = channel_info.parent_id if is_thread and channel_info.parent_id else channel_id
        bot_id = (await self._rest.read_bot_user()).id
        webhooks = decode_response(await self._rest.call(_LIST_WEBHOOKS, parent_id), list[_Webhook])
        own_webhooks = [
            one
            for one in webhooks  # only messages of webhooks that the bot created can have buttons
            if one.type == _INCOMING_TYPE and one.token and one.user and one.user.id == bot_id
        ]
        if not own_webhooks:
            body = {"name": WEBHOOK_NAME}
            response = await self._rest.call(_CREATE_WEBHOOK, parent_id, body=body)
            own_webhooks = [decode_response(response, _Webhook)]
        self.webhook_ids.update(one.id for one in own_webhooks)
        oldest_webhook = min(own_webhooks, key=lambda one: int(one.id))
        thread_id = channel_id if is_thread else None
        token = oldest_webhook.token
        return None if token is None else ChannelWebhook(oldest_webhook.id, token, thread_id)


def webhook_fields(face: Face) -> dict[str, str]:
    """Return the fields of a webhook message that show a face's name and, if valid, its picture."""
    fields = {"username": to_webhook_name(face.name)}
    avatar_url = face.avatar or ""
    if len(avatar_url) <= _MAX_AVATAR_URL_CHARS and is_http_address(avatar_url):
        fields["avatar_url"] = avatar_url
    return fields


def to_webhook_name(name: str) -> str:
    """Return a name in a form that Discord accepts: 1 to 80 characters, no reserved words."""
    valid_name = _RESERVED_WORD.sub(r"\g<first>-\g<rest>", " ".join(name.split()))[:_MAX_NAME_CHARS]
    valid_name = valid_name.strip()
    return f"{valid_name}." if valid_name.lower() in _RESERVED_NAMES else valid_name or WEBHOOK_NAME


class PictureEmojis:
    """Hosts the pictures of characters as application emojis, whose URLs never expire.

    Webhooks need a URL for a picture, and the URLs of attachments expire.
    """

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._application_id = ""
        self._unused_picture_ids: set[str] = set()
        """The ids of emojis that no character used at the last check."""
        self._previous_used_urls: Collection[str] | None = None
        """The URLs in use at the last check; None if a picture was uploaded since."""

    async def upload_picture(self, png: bytes) -> str:
        """Upload a picture unless it was uploaded before, and return its URL."""
        self._previous_used_urls = None
        name = _EMOJI_NAME_PREFIX + hashlib.sha256(png).hexdigest()[:_EMOJI_NAME_HASH_CHARS]
        emoji_id = next((one.id for one in await self._list_emojis() if one.name == name), None)
        if emoji_id is None:
            image_data_url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            body = {"name": name, "image": image_data_url}
            response = await self._rest.call(_ADD_EMOJI, self._application_id, body=body)
            emoji_id = decode_response(response, ObjectWithId).id
        return _EMOJI_URL.format(emoji_id)

    async def delete_unused_pictures(self, used_urls: Collection[str]) -> None:
        """Delete pictures whose URL was in `used_urls` neither in this call nor in the last one."""
        if used_urls == self._previous_used_urls and not self._unused_picture_ids:
            return
        picture_ids = [one.id for one in await self._list_emojis()]
        unused_ids = {one for one in picture_ids if _EMOJI_URL.format(one) not in used_urls}
        for one in unused_ids & self._unused_picture_ids:
            await self._rest.call(_DELETE_EMOJI, self._application_id, one)
        self._unused_picture_ids, self._previous_used_urls = unused_ids, used_urls

    async def _list_emojis(self) -> Sequence["_Emoji"]:
        if not self._application_id:
            application = decode_response(await self._rest.call(_GET_APPLICATION), ObjectWithId)
            self._application_id = application.id
        response = await self._rest.call(_LIST_EMOJIS, self._application_id)
        emojis = decode_response(response, _EmojiList).items
        return [one for one in emojis if one.name.startswith(_EMOJI_NAME_PREFIX)]


class _Emoji(msgspec.Struct):
    id: str
    name: str


class _EmojiList(msgspec.Struct):
    items: list[_Emoji]


class _Channel(msgspec.Struct):
    type: int
    parent_id: str | None = None


class _Webhook(msgspec.Struct):
    id: str
    type: int = _INCOMING_TYPE
    token: str | None = None
    user: ObjectWithId | None = None


class AnswerThreads:
    """Opens threads for long answers in channels where the bot has permission."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._open_thread_ids = BoundedDict[str, None](_MAX_CACHED_CHANNELS)
        self._pause_end_times = BoundedDict[str, float](_MAX_CACHED_CHANNELS)

    async def open_thread(self, channel_id: str, thread: MessageThread) -> str | None:
        """Open a thread, or return None if the bot may not; raises `PlatformError`."""
        if thread.message_id in self._open_thread_ids:
            return thread.message_id
        if self._pause_end_times.get(channel_id, 0.0) > time.monotonic():
            return None
        body = {"name": thread.title[:_MAX_THREAD_TITLE_CHARS]}
        try:
            await self._rest.call(_OPEN_THREAD, channel_id, thread.message_id, body=body)
        except ThreadExists:
            pass
        except (MessageNotFound, WordsRefused):
            return None
        except Refused as error:  # no permission to open threads, or a channel without threads
            self.pause_threads(channel_id, str(error))
            return None
        self._open_thread_ids[thread.message_id] = None
        return thread.message_id

    def pause_threads(self, channel_id: str, reason: str) -> None:
        """Open no threads in a channel for the next 30 seconds."""
        _log.info("thread_not_allowed", channel=channel_id, reason=reason)
        self._pause_end_times[channel_id] = time.monotonic() + _REFUSAL_PAUSE_SECONDS


def join_thread_and_message_id(thread_id: str, message_id: str) -> str:
    """Return the id under which we store a message in an answer's thread."""
    return f"{thread_id}{_THREAD_ID_SEPARATOR}{message_id}"


def locate_message(address: Address, message_id: str) -> tuple[str, str]:
    """Return the channel or thread that contains a stored message, and the message's id there."""
    thread_id, separator, discord_message_id = message_id.rpartition(_THREAD_ID_SEPARATOR)
    return (thread_id if separator else address.chat), discord_message_id
