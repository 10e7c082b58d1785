"""Add buttons, thoughts, files and notices to an answer, and arrange its parts."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from bot.chat.command import ButtonAction, encode_button
from bot.chat.incoming import IncomingMessage, MediaItem, MediaKind
from bot.chat.outgoing import (
    FIRST_FILE_PART,
    FIRST_THREAD_PART,
    AnswerThread,
    Attachment,
    Button,
    ButtonStyle,
    Limits,
    MessageContent,
    OutgoingPart,
)
from bot.chat.session import MAX_TEXT_FILE_BYTES, AttachedFiles, UnreadFile, clean_file_name
from bot.texts.text import Text, join_texts, supported_language, translatable, translate
from bot.value_class import value_class

_ACTION_LABELS = {
    ButtonAction.STOP: translatable("⏹ Stop"),
    ButtonAction.RETRY: translatable("🔄 Retry"),
    ButtonAction.CONTINUE: translatable("▶ Continue"),
    ButtonAction.DELETE: translatable("🗑 Delete"),
    ButtonAction.FORGET: translatable("Forget everything I said"),
    ButtonAction.KEEP_DATA: translatable("Keep it"),
    ButtonAction.CONFIRM_AGE: translatable("I am 18 or older"),
}
_DANGEROUS_ACTIONS = frozenset({ButtonAction.STOP, ButtonAction.DELETE, ButtonAction.FORGET})


def action_buttons(
    part_name: str, locale: str | None, *actions: ButtonAction
) -> tuple[Button, ...]:
    """Return the action buttons for the part with this name; a single button is highlighted."""
    language = supported_language(locale)
    default_style = ButtonStyle.PRIMARY if len(actions) == 1 else ButtonStyle.PLAIN
    return tuple(
        Button(
            translate(_ACTION_LABELS[one], language),
            encode_button(one, part_name),
            ButtonStyle.DANGER if one in _DANGEROUS_ACTIONS else default_style,
        )
        for one in actions
    )


def answer_buttons(
    part_name: str, locale: str | None, version_number: int = 1, version_count: int = 1
) -> tuple[Button, ...]:
    """Return the buttons of one of the versions of a finished answer."""
    actions = (ButtonAction.RETRY, ButtonAction.CONTINUE, ButtonAction.DELETE)
    pagination = page_buttons(ButtonAction.VERSION, part_name, version_number, version_count, row=1)
    return (*action_buttons(part_name, locale, *actions), *pagination)


def page_buttons(
    action: ButtonAction, part_name: str, page: int, page_count: int, *, row: int = 0
) -> tuple[Button, ...]:
    """Return buttons that turn the pages of a list, or () if there is only one page."""
    labels_by_page = {page - 1: "‹", page: f"{page}/{page_count}", page + 1: "›"}
    return tuple(
        Button(label, encode_button(action, part_name, number), row=row)
        for number, label in labels_by_page.items()
        if page_count > 1 and 1 <= number <= page_count
    )


_MIN_UNITS_FOR_THOUGHTS = 300
"""The free units that thoughts need in a message; with fewer, they get their own message."""
_SPOILER_MARKUP_UNITS = 16
"""The units that a platform adds to thoughts: a symbol, spoiler marks, line breaks."""
_ELLIPSIS = " …"
_SPOILER_END_MARKS = re.compile(r"\|(?=\||\Z)|`(?=``)")


def fold_thoughts(
    parts: Sequence[OutgoingPart], thoughts: str, limits: Limits, *, may_add_message: bool
) -> tuple[OutgoingPart, ...]:
    """Add the thoughts to an answer's parts, cut to the available space.

    They go into the last message or, if it is nearly full and `may_add_message`, into a new one.
    """
    # Break up marks in the thoughts that would end the spoiler.
    thoughts = _SPOILER_END_MARKS.sub("\\g<0>\u200b", thoughts.strip())
    message_indexes = [index for index, one in enumerate(parts) if one.file is None]
    if not thoughts or not message_indexes or not limits.folds_thoughts:
        return tuple(parts)
    index, measure = message_indexes[-1], limits.measure
    last = parts[index]
    face = last.content.face
    max_units = limits.without_name_line(face).max_units - _SPOILER_MARKUP_UNITS
    text = last.content.text
    visible_text = limits.to_visible_text(text) if limits.to_visible_text else text
    free_units = max_units - measure(visible_text)
    if free_units >= min(_MIN_UNITS_FOR_THOUGHTS, measure(thoughts)):
        content = replace(last.content, thoughts=_cut_to_fit(thoughts, free_units, measure))
        return (*parts[:index], replace(last, content=content), *parts[index + 1 :])
    if not may_add_message:
        return tuple(parts)
    content = MessageContent("", face, thoughts=_cut_to_fit(thoughts, max_units, measure))
    thoughts_part = replace(last, number=last.number + 1, content=content)
    return (*parts[: index + 1], thoughts_part, *parts[index + 1 :])


def _cut_to_fit(text: str, max_units: int, measure: Callable[[str], int]) -> str:
    if measure(text) <= max_units:
        return text
    max_units -= len(_ELLIPSIS)
    shortened_text = text[:max_units]
    while measure(shortened_text) > max_units:
        shortened_text = shortened_text[: -max(1, (measure(shortened_text) - max_units) // 2)]
    return shortened_text.rstrip() + _ELLIPSIS


LongAnswer: TypeAlias = Literal["parts", "file", "thread"]
_ANSWER_FILE_NAME = "answer.md"
_MAX_PARTS_IN_THREAD = 1_000
"""The maximum number of thread parts per answer, so that answers' part numbers do not overlap."""
_WHOLE_ANSWER_HINT = translatable("📄 The whole answer is in this file.")
_THREAD_TITLE = translatable("The rest of the answer")


def choose_supported_form(form: LongAnswer, limits: Limits) -> LongAnswer:
    """Return `form`, or "parts" if it is "thread" and the channel has no threads."""
    return "parts" if form == "thread" and not limits.has_threads else form


@value_class
class PartDestinations:
    """Where an answer's parts are sent: all to the channel, or all but the first to a thread."""

    first_part_number: int = 0
    """The number of the first part; other characters' parts may precede it."""
    thread: AnswerThread | None = None
    """The thread for all parts but the first one; None: the channel."""
    max_live_parts: int | None = None
    """The maximum number of parts to show during generation; None: all."""

    def to_part(self, index: int, content: MessageContent) -> OutgoingPart:
        """Return an outgoing part with this content; `index` is its position, from 0."""
        if index == 0 or self.thread is None:
            return OutgoingPart(self.first_part_number + index, content)
        part_number = FIRST_THREAD_PART + self.first_part_number * _MAX_PARTS_IN_THREAD + index - 1
        return OutgoingPart(part_number, content, thread=self.thread)


def choose_destinations(
    form: LongAnswer, first_part_number: int, locale: str | None, to_part_name: Callable[[int], str]
) -> PartDestinations:
    """Return the destinations of an answer's parts, numbered from `first_part_number`."""
    if form != "thread":
        return PartDestinations(first_part_number, max_live_parts=1 if form == "file" else None)
    title = translate(_THREAD_TITLE, supported_language(locale))
    thread = AnswerThread(to_part_name(first_part_number), title)
    return PartDestinations(first_part_number, thread)


def arrange_parts(
    parts: Sequence[OutgoingPart],
    text: str,
    form: LongAnswer,
    locale: str | None,
    to_part_name: Callable[[int], str],
) -> tuple[OutgoingPart, ...]:
    """Return an answer's parts in the preset's form for long answers.

    With "parts", each part is a message. With "file", the first part is followed by a file with the
    whole `text`. With "thread", the other parts are sent to a thread opened from the first.
    """
    if form == "parts" or len(parts) < 2:
        return tuple(parts)
    first = parts[0]
    if form == "file":
        hint = translate(_WHOLE_ANSWER_HINT, supported_language(locale))
        caption = MessageContent(hint, first.content.face)
        file = Attachment(_ANSWER_FILE_NAME, text)
        return first, OutgoingPart(FIRST_FILE_PART + first.number, caption, file)
    destinations = choose_destinations(form, first.number, locale, to_part_name)
    return tuple(destinations.to_part(index, one.content) for index, one in enumerate(parts))


def select_message_parts(part_numbers: Iterable[int]) -> list[int]:
    """Return only the part numbers of channel messages, not those of files and threads."""
    return [number for number in part_numbers if number < FIRST_FILE_PART]


_ATTACHMENT_ACTIONS: Mapping[MediaKind, Text] = {
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

_OR_SEPARATOR = translatable(" or ")


def explain_unreadable_attachments(attachments: Sequence[MediaItem]) -> Text:
    """Return a sentence that says which attachments the bot cannot read and what to do instead."""
    actions = dict.fromkeys(_ATTACHMENT_ACTIONS[item.kind] for item in attachments)
    return translatable(
        "I can't {things} here. Please tell me in words instead.",
        things=join_texts(actions, _OR_SEPARATOR),
    )


def is_unreadable(message: IncomingMessage, files: AttachedFiles) -> bool:
    """Return whether a message contains nothing but unreadable files."""
    return bool(files.unread_files) and not (message.text.strip() or files.images or files.texts)


def explain_skipped_files(files: AttachedFiles) -> Text | None:
    """Return a notice about files that were not read completely, or None."""
    sentences = [explain_unread_files(files.unread_files)] if files.unread_files else []
    sentences += [
        translatable(
            "ℹ {name} is long: I read only its first {size} KiB.",
            name=one.name or translatable("The file"),
            size=MAX_TEXT_FILE_BYTES // 1024,
        )
        for one in files.texts
        if one.is_file_truncated
    ]
    return join_texts(sentences) if sentences else None


def explain_unread_files(files: Sequence[UnreadFile]) -> Text:
    """Return sentences that say which files were not read and why."""
    sentences: list[str] = []
    for file in files:
        name = clean_file_name(file.item.name)
        if file.reason is not None and name:
            text = translatable("⚠ I could not read {name}: {why}.", name=name, why=file.reason)
            sentences.append(text)
        elif file.reason is not None:
            sentences.append(translatable("⚠ I could not read the file: {why}.", why=file.reason))
    unread_items = [file.item for file in files if file.reason is None]
    return join_texts(
        [*sentences, explain_unreadable_attachments(unread_items)] if unread_items else sentences
    )
