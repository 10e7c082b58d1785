"""Send an answer that is longer than one message as a file, where its preset says so."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from bot.chat.outgoing import FILE_PARTS, Attachment, MessageContent, OutgoingPart
from bot.texts.text import language_of, translatable, translate

LongAnswer: TypeAlias = Literal["parts", "file"]
_FILE_NAME = "answer.md"
_WHOLE = translatable("📄 This file has the whole answer.")


def shorten(
    parts: Sequence[OutgoingPart], text: str, mode: LongAnswer, locale: str | None
) -> tuple[OutgoingPart, ...]:
    """Return the parts of an answer as they are sent.

    Args:
        parts: all of it, split.
        text: all of it.
        mode: `parts`: each part is a message; `file`: the first one is, and a file has all of it.
        locale: of the person who asked.
    """
    if mode == "parts" or len(parts) < 2:
        return tuple(parts)
    first = parts[0]
    caption = MessageContent(translate(_WHOLE, language_of(locale)), first.content.face)
    file = OutgoingPart(FILE_PARTS + first.part, caption, Attachment(_FILE_NAME, text))
    return first, file


def count_messages(parts: Iterable[OutgoingPart]) -> int:
    """Return how many of these parts are no files."""
    return sum(one.part < FILE_PARTS for one in parts)


def message_names(names: Iterable[str]) -> list[str]:
    """Return those of these names of parts that are no files, so that others may replace them."""
    return [name for name in names if int(name.rpartition("/")[2]) < FILE_PARTS]
