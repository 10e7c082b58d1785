"""Send an answer that is longer than one message as a file or in a thread, as its preset says."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from bot.texts.text import language_of, translatable, translate

LongAnswer: TypeAlias = Literal["parts", "file", "thread"]
_FILE_NAME = "answer.md"
_WHOLE = translatable("📄 This file has the whole answer.")
_REST = translatable("The rest of the answer")


def supported_form(form: LongAnswer, limits: Limits) -> LongAnswer:
    """Return the form that a preset asks for, or parts where the channel has no threads."""
    return "parts" if form == "thread" and not limits.has_threads else form


def shorten(
    parts: Sequence[OutgoingPart],
    text: str,
    form: LongAnswer,
    locale: str | None,
    part_name: Callable[[int], str],
    before: Sequence[OutgoingPart] = (),
) -> tuple[OutgoingPart, ...]:
    """Return the parts of an answer as they are sent.

    Args:
        parts: all of it, split.
        text: all of it.
        form: `parts`: each part is a message; `file`: the first one is, and a file has all of it;
            `thread`: the first one is, and the others stand in a thread that is opened from it.
        locale: of the person who asked.
        part_name: names a part by its number.
        before: the parts of other answers to the same message, as they are sent.
    """
    if form == "parts" or len(parts) < 2:
        return tuple(parts)
    first, *others = parts
    language = language_of(locale)
    if form == "file":
        caption = MessageContent(translate(_WHOLE, language), first.content.face)
        return first, OutgoingPart(FILE_PARTS + first.part, caption, Attachment(_FILE_NAME, text))
    thread = AnswerThread(part_name(first.part), translate(_REST, language))
    number = THREAD_PARTS + sum(one.thread is not None for one in before)
    rest = enumerate(others, number)
    return first, *(replace(one, part=part, thread=thread) for part, one in rest)


def count_messages(parts: Iterable[OutgoingPart]) -> int:
    """Return how many of these parts are messages of the channel, and no files."""
    return sum(one.part < FILE_PARTS for one in parts)


def message_names(names: Iterable[str]) -> list[str]:
    """Return those of these names of parts whose messages others may replace.

    Files and what stands in a thread are no such messages.
    """
    return [name for name in names if int(name.rpartition("/")[2]) < FILE_PARTS]
