"""Say what cannot be read here of a message."""

from collections.abc import Mapping, Sequence

from bot.chat.attachments import (
    MAX_TEXT_BYTES,
    AttachedFiles,
    UnreadFile,
    clean_file_name,
)
from bot.chat.incoming import MediaItem, MediaKind, Said
from bot.texts.text import Text, joined, translatable

_NOUNS: Mapping[MediaKind, Text] = {
    MediaKind.IMAGE: translatable("look at pictures"),
    MediaKind.ANIMATION: translatable("look at animations"),
    MediaKind.VIDEO: translatable("watch videos"),
    MediaKind.AUDIO: translatable("listen to audio files"),
    MediaKind.VOICE: translatable("listen to voice messages"),
    MediaKind.STICKER: translatable("see stickers"),
    MediaKind.FILE: translatable("read files"),
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


def is_unreadable(said: Said, files: AttachedFiles) -> bool:
    """Return whether a message has nothing but files that could not be read."""
    return bool(files.unread) and not (said.text.strip() or files.images or files.texts)


def explain_files(files: AttachedFiles) -> Text | None:
    """Say which files could not be read or only in part, and whose encoding was guessed."""
    sentences = [explain_unread(files.unread)] if files.unread else []
    sentences += [
        translatable(
            "ℹ {name} is long: I read only its first {size} KiB.",
            name=one.name or translatable("The file"),
            size=MAX_TEXT_BYTES // 1024,
        )
        for one in files.texts
        if one.is_cut
    ]
    sentences += [
        translatable(
            "ℹ I read {name} as {encoding}. If its letters were wrong, please send it in UTF-8.",
            name=one.name or translatable("the file"),
            encoding=one.guessed_encoding,
        )
        for one in files.texts
        if one.guessed_encoding
    ]
    return joined(sentences) if sentences else None


def explain_unread(files: Sequence[UnreadFile]) -> Text:
    """Return a sentence for each reason why files could not be read."""
    sentences: list[str] = []
    for file in files:
        if file.why is not None:
            name = clean_file_name(file.item.name)
            sentences.append(
                translatable("⚠ I could not read {name}: {why}.", name=name, why=file.why)
                if name
                else translatable("⚠ I could not read the file: {why}.", why=file.why)
            )
    unknown = [file.item for file in files if file.why is None]
    if unknown:
        sentences.append(explain_unreadable(unknown))
    return joined(sentences)
