"""What was read of the files of a message, and how a message with files reads in the history."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from bot.chat.incoming import MediaItem, MediaKind, Said
from bot.chat.prompt import Image
from bot.chat.session import Turn
from bot.texts.text import Text
from bot.value_class import value_class

_MAX_NAME_CHARS = 60
_MAX_KEPT_FILES = 10  # of one question; no more are read
_NOUNS: Mapping[MediaKind, str] = {
    MediaKind.IMAGE: "picture",
    MediaKind.ANIMATION: "animation",
    MediaKind.VIDEO: "video",
    MediaKind.AUDIO: "audio file",
    MediaKind.VOICE: "voice message",
    MediaKind.STICKER: "sticker",
    MediaKind.FILE: "file",
    MediaKind.CONTACT: "contact",
    MediaKind.LOCATION: "location",
    MediaKind.FORWARD: "forwarded message",
    MediaKind.OTHER: "something else",
}
MAX_TEXT_BYTES = 100 * 1024
"""How much of a text file is read."""
READABLE = frozenset({MediaKind.IMAGE, MediaKind.FILE})
"""The kinds that can be read at all; what a file is, only its content tells."""


@value_class
class AttachedText:
    """The text of a file."""

    name: str
    """As the model reads it; may be empty."""
    text: str
    is_cut: bool
    guessed_encoding: str = ""
    """As people know it; empty where it is certain."""


@value_class
class UnreadFile:
    """A file that could not be read."""

    item: MediaItem
    why: Text | None
    """None: files of its kind are not read here."""


@value_class
class AttachedFiles:
    """What was read of the files of a message and of the one that it quotes."""

    images: tuple[Image, ...] = ()
    texts: tuple[AttachedText, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    """Of the message itself only."""

    @property
    def without_images(self) -> "AttachedFiles":
        """The same for a model that does not see."""
        return replace(self, images=()) if self.images else self


NO_FILES = AttachedFiles()


def clean_file_name(name: str) -> str:
    """Return a file name in one line, without folders and without brackets.

    A bracket could end a description.
    """
    _, _, last = name.replace("\\", "/").rpartition("/")
    return " ".join(last.translate(_WITHOUT_BRACKETS).split())[:_MAX_NAME_CHARS]


_WITHOUT_BRACKETS = str.maketrans("[]", "()")


def has_readable_file(said: Said) -> bool:
    """Return whether a message has a file that may be read when it is answered."""
    return any(one.kind in READABLE and one.source for one in said.attachments)


def files_to_keep(said: Said) -> tuple[MediaItem, ...]:
    """Return those attachments of a question that may be read again, without their contents."""
    own = (*said.repeated_files, *said.attachments)
    return tuple(one for one in own if one.kind in READABLE and one.source)[:_MAX_KEPT_FILES]


def with_kept_files(said: Said, question: Turn, before: Sequence[Turn]) -> Said:
    """Return a question that is asked again, with the files that it was asked with.

    Args:
        said: the question; its text is that of the turn.
        question: the question in the history.
        before: the turns before it, oldest first.
    """
    return replace(said, repeated_files=question.files, earlier_files=files_of_gathered(before))


def files_of_gathered(before: Sequence[Turn]) -> tuple[MediaItem, ...]:
    """Return the files of the questions that were answered together with the next one."""
    gathered = list(takewhile(lambda one: one.role == "user", reversed(before)))
    return tuple(file for one in reversed(gathered) for file in one.files)


def described_text(said: Said) -> str:
    """Return the text of a message, and a short line for each of its attachments.

    So it stands in the history, which keeps no files.
    """
    if not said.attachments:
        return said.text
    return "\n".join([*([said.text] if said.text else []), *describe_items(said.attachments)])


def describe_items(items: Sequence[MediaItem]) -> list[str]:
    """Return a short description of each attachment, in brackets."""
    return [f"[{' '.join([_NOUNS[one.kind], clean_file_name(one.name)]).strip()}]" for one in items]
