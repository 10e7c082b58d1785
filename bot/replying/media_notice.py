"""Say that a message consists of nothing that can be read here."""

from collections.abc import Mapping, Sequence

from bot.chat.incoming import MediaItem, MediaKind

_NOUNS: Mapping[MediaKind, str] = {
    MediaKind.IMAGE: "look at pictures",
    MediaKind.ANIMATION: "look at animations",
    MediaKind.VIDEO: "watch videos",
    MediaKind.AUDIO: "listen to audio files",
    MediaKind.VOICE: "listen to voice messages",
    MediaKind.STICKER: "see stickers",
    MediaKind.FILE: "read files",
    MediaKind.POLL: "vote in polls",
    MediaKind.CONTACT: "use contacts",
    MediaKind.LOCATION: "use locations",
    MediaKind.FORWARD: "read forwarded messages",
    MediaKind.OTHER: "read messages of this kind",
}


def explain_unreadable(attachments: Sequence[MediaItem]) -> str:
    """Return a sentence that names what cannot be read, and what helps."""
    things = dict.fromkeys(_NOUNS[item.kind] for item in attachments)
    return f"I cannot {' or '.join(things)} here. Please tell me in words what it is about."
