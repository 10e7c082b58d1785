"""Convert what Telegram's messages hold: text with its links, polls, pictures, files, stickers."""

from collections.abc import Callable, Mapping, Sequence

from aiogram.enums import ChatType, ContentType, MessageEntityType
from aiogram.types import Message, MessageEntity, Poll

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


def text_of(message: Message) -> str:
    """Return the text, caption or poll of a message, with the addresses of its links."""
    if message.poll is not None:
        return "\n".join(filter(None, [message.caption or "", _poll_text(message.poll)]))
    if message.text:
        return with_addresses(message.text, message.entities)
    return with_addresses(message.caption or "", message.caption_entities)


def with_addresses(text: str, entities: Sequence[MessageEntity] | None) -> str:
    """Insert the address behind each part of a text that only its formatting links to."""
    links = [one for one in entities or () if one.type == MessageEntityType.TEXT_LINK and one.url]
    if not links:
        return text
    units = text.encode("utf-16-le", "surrogatepass")  # in which Telegram counts
    for link in sorted(links, key=lambda one: one.offset, reverse=True):
        start, end = 2 * max(0, link.offset), 2 * max(0, link.offset + link.length)
        label = units[start:end].decode("utf-16-le", "replace")
        if label.strip() != link.url:
            units = units[:end] + f" ({link.url})".encode("utf-16-le") + units[end:]
    return units.decode("utf-16-le", "replace")


def _poll_text(poll: Poll) -> str:
    """Return a question with its options, and the votes as far as the bot may see them."""
    heading = f"[{'closed poll' if poll.is_closed else 'poll'}] {poll.question}"
    votes = [f": {one.voter_count}" if poll.total_voter_count else "" for one in poll.options]
    options = (f"- {one.text}{count}" for one, count in zip(poll.options, votes, strict=True))
    return "\n".join([heading, *options])


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


_DESCRIPTIONS: Mapping[str, Callable[[Message, MediaKind], MediaItem]] = {
    ContentType.PHOTO: _describe_photo,
    ContentType.LIVE_PHOTO: _describe_photo,
    ContentType.STICKER: _describe_sticker,
    ContentType.DICE: _describe_sticker,
    **dict.fromkeys(
        (
            *(ContentType.ANIMATION, ContentType.AUDIO, ContentType.DOCUMENT, ContentType.VIDEO),
            *(ContentType.VIDEO_NOTE, ContentType.VOICE),
        ),
        _describe_file,
    ),
}
