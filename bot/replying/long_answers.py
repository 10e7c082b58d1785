"""Send an answer that is longer than one message as a file or in a thread, as its preset says."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from bot.chat.outgoing import (
    FILE_PARTS,
    THREAD_PARTS,
    AnswerThread,
    Attachment,
    Limits,
    MessageContent,
    OutgoingPart,
)
from bot.frozen_dataclass import frozen_dataclass
from bot.texts.text import language_of, translatable, translate

LongAnswer: TypeAlias = Literal["parts", "file", "thread"]
_FILE_NAME = "answer.md"
_MAX_THREAD_PARTS = 1_000
"""Of one answer; further ones would have the numbers of the next answer's."""
_WHOLE = translatable("📄 This file has the whole answer.")
_REST = translatable("The rest of the answer")


def supported_form(form: LongAnswer, limits: Limits) -> LongAnswer:
    """Return the form that a preset asks for, or parts where the channel has no threads."""
    return "parts" if form == "thread" and not limits.has_threads else form


@frozen_dataclass
class PartPlaces:
    """Where the parts of one answer are sent: in its channel, or in a thread of the first one."""

    first_part: int = 0
    """The number of the first part; others may have answered before."""
    thread: AnswerThread | None = None
    """Where all parts but the first one stand; None: in the channel, too."""
    most_live: int | None = None
    """How many parts are shown while the answer grows; None: all."""

    def place(self, index: int, content: MessageContent) -> OutgoingPart:
        """Return a part of the answer by its index from 0."""
        if index == 0 or self.thread is None:
            return OutgoingPart(self.first_part + index, content)
        number = THREAD_PARTS + self.first_part * _MAX_THREAD_PARTS + index - 1
        return OutgoingPart(number, content, thread=self.thread)


def find_places(
    form: LongAnswer, first_part: int, locale: str | None, part_name: Callable[[int], str]
) -> PartPlaces:
    """Return where the parts of an answer are sent.

    Args:
        form: of a long answer.
        first_part: the number of its first part.
        locale: of the person who asked.
        part_name: names a part by its number.
    """
    if form == "thread":
        title = translate(_REST, language_of(locale))
        return PartPlaces(first_part, AnswerThread(part_name(first_part), title))
    return PartPlaces(first_part, most_live=1 if form == "file" else None)


def shorten(
    parts: Sequence[OutgoingPart],
    text: str,
    form: LongAnswer,
    locale: str | None,
    part_name: Callable[[int], str],
) -> tuple[OutgoingPart, ...]:
    """Return the parts of an answer as they are sent.

    Args:
        parts: all of it, split.
        text: all of it.
        form: `parts`: each part is a message; `file`: the first one is, and a file has all of it;
            `thread`: the first one is, and the others stand in a thread that is opened from it.
        locale: of the person who asked.
        part_name: names a part by its number.
    """
    if form == "parts" or len(parts) < 2:
        return tuple(parts)
    first = parts[0]
    if form == "file":
        caption = MessageContent(translate(_WHOLE, language_of(locale)), first.content.face)
        return first, OutgoingPart(FILE_PARTS + first.part, caption, Attachment(_FILE_NAME, text))
    places = find_places(form, first.part, locale, part_name)
    return tuple(places.place(index, one.content) for index, one in enumerate(parts))


def count_messages(parts: Iterable[OutgoingPart]) -> int:
    """Return how many of these parts are messages of the channel, and no files."""
    return len(messages_of(one.part for one in parts))


def message_names(names: Iterable[str]) -> list[str]:
    """Return those of these names of parts whose messages others may replace.

    Files and what stands in a thread are no such messages.
    """
    return [name for name in names if int(name.rpartition("/")[2]) < FILE_PARTS]


def messages_of(numbers: Iterable[int]) -> list[int]:
    """Return those of these numbers of parts that are messages of the channel, and no files."""
    return [number for number in numbers if number < FILE_PARTS]
