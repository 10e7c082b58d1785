"""Say that a message consists of nothing that can be read here."""

from collections.abc import Mapping, Sequence

from bot.chat.incoming import MediaItem, MediaKind
from bot.texts.text import Text, joined, translatable

_NOUNS: Mapping[MediaKind, Text] = {
    MediaKind.IMAGE: translatable("look at pictures"),
    MediaKind.ANIMATION: translatable("look at animations"),
    MediaKind.VIDEO: translatable("watch videos"),
    MediaKind.AUDIO: translatable("listen to audio files"),
    MediaKind.VOICE: translatable("listen to voice messages"),
    MediaKind.STICKER: translatable("see stickers"),
    MediaKind.FILE: translatable("read files"),
    MediaKind.POLL: translatable("vote in polls"),
    MediaKind.CONTACT: translatable("use contacts"),
    MediaKind.LOCATION: translatable("use locations"),
    MediaKind.FORWARD: translatable("read forwarded messages"),
    MediaKind.OTHER: translatable("read messages of this kind"),
}

_OR = translatable(" or ")


def explain_unreadable(attachments: Sequence[MediaItem]) -> Text:
    """Return a sentence that names what cannot be read, and what helps."""
    things = dict.fromkeys(_NOUNS[item.kind] for item in attachments)
    return translatable(
        "I cannot {things} here. Please tell me in words what it is about.",
        things=joined(things, _OR),
    )
