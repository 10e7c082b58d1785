"""Convert what Telegram's messages have besides text: pictures, files, stickers, polls."""

from collections.abc import Callable, Mapping

from aiogram.enums import ChatType, ContentType
from aiogram.types import Message

from bot.chat.incoming import MediaItem, MediaKind

_MEDIA_KINDS: Mapping[str, MediaKind] = {
    ContentType.ANIMATION: MediaKind.ANIMATION,
    ContentType.AUDIO: MediaKind.AUDIO,
    ContentType.CONTACT: MediaKind.CONTACT,
    ContentType.DICE: MediaKind.STICKER,
    ContentType.DOCUMENT: MediaKind.FILE,
    ContentType.GAME: MediaKind.OTHER,
    ContentType.LIVE_PHOTO: MediaKind.IMAGE,
    ContentType.LOCATION: MediaKind.LOCATION,
    ContentType.PAID_MEDIA: MediaKind.OTHER,
    ContentType.PHOTO: MediaKind.IMAGE,
    ContentType.POLL: MediaKind.POLL,
    ContentType.STICKER: MediaKind.STICKER,
    ContentType.STORY: MediaKind.OTHER,
    ContentType.VENUE: MediaKind.LOCATION,
    ContentType.VIDEO: MediaKind.VIDEO,
    ContentType.VIDEO_NOTE: MediaKind.VIDEO,
    ContentType.VOICE: MediaKind.VOICE,
    **dict.fromkeys(
        (
            *(ContentType.CHAT_SHARED, ContentType.CHECKLIST, ContentType.GIFT),
            *(ContentType.GIVEAWAY, ContentType.GIVEAWAY_WINNERS, ContentType.INVOICE),
            *(ContentType.PASSPORT_DATA, ContentType.RICH_MESSAGE, ContentType.UNIQUE_GIFT),
            *(ContentType.USERS_SHARED, ContentType.WEB_APP_DATA),
        ),
        MediaKind.OTHER,
    ),
}
"""The kinds of messages that people send; the others are service messages."""


def attachments_of(message: Message) -> tuple[MediaItem, ...]:
    """Return what a message has besides text; nothing for service messages."""
    content_type = message.content_type
    kind = _MEDIA_KINDS.get(content_type)
    if content_type == ContentType.UNKNOWN and message.chat.type == ChatType.PRIVATE:
        kind = MediaKind.OTHER  # newer than our library: told to be unreadable
    if kind is None:
        return ()
    describe = _DESCRIPTIONS.get(content_type)
    return (describe(message, kind) if describe else MediaItem(kind),)


def _describe_photo(message: Message, kind: MediaKind) -> MediaItem:
    photo = message.photo or (message.live_photo and message.live_photo.photo) or ()
    largest = max(photo, key=lambda one: one.width * one.height, default=None)
    return MediaItem(kind, "", largest.file_size, largest.file_id) if largest else MediaItem(kind)


def _describe_file(message: Message, kind: MediaKind) -> MediaItem:
    file = (
        message.animation
        or message.audio
        or message.document
        or message.video
        or message.voice
        or message.video_note
    )
    if file is None:
        return MediaItem(kind)
    is_image = (getattr(file, "mime_type", None) or "").startswith("image/")
    kind = MediaKind.IMAGE if kind is MediaKind.FILE and is_image else kind
    name = getattr(file, "file_name", None) or ""
    return MediaItem(kind, name, file.file_size, file.file_id)


def _describe_sticker(message: Message, kind: MediaKind) -> MediaItem:
    sticker = message.sticker
    if sticker is None:
        return MediaItem(kind, message.dice.emoji if message.dice else "")
    return MediaItem(kind, sticker.emoji or "", sticker.file_size, sticker.file_id)


def _describe_poll(message: Message, kind: MediaKind) -> MediaItem:
    return MediaItem(kind, message.poll.question if message.poll else "")


_DESCRIPTIONS: Mapping[str, Callable[[Message, MediaKind], MediaItem]] = {
    ContentType.PHOTO: _describe_photo,
    ContentType.LIVE_PHOTO: _describe_photo,
    ContentType.STICKER: _describe_sticker,
    ContentType.DICE: _describe_sticker,
    ContentType.POLL: _describe_poll,
    **dict.fromkeys(
        (
            *(ContentType.ANIMATION, ContentType.AUDIO, ContentType.DOCUMENT, ContentType.VIDEO),
            *(ContentType.VIDEO_NOTE, ContentType.VOICE),
        ),
        _describe_file,
    ),
}
