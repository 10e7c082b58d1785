"""A conversation's stored history, changes to it, and texts for attached files."""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from itertools import dropwhile, takewhile
from typing import Any, TypeAlias

from bot.chat.incoming import (
    Incoming,
    IncomingMessage,
    MediaItem,
    MediaKind,
    Person,
    Reaction,
    WakeReason,
)
from bot.chat.outgoing import FIRST_FILE_PART, MessageContent, OutboxRow, OutgoingPart
from bot.chat.prompt import Image, Role
from bot.chat.receipt import Receipt
from bot.texts.text import Text
from bot.value_class import value_class

ACCESS_KEY_PREFIX = "access "
"""The key prefix of chat settings that control who may use the bot."""
CHANNEL_TITLE_KEY = "title"
"""The setting with a channel's title, as its platform shows it; read from messages."""
BANNED_WORDS_KEY = "words"
"""The chat setting with the words banned from answers, one per line."""


@value_class
class Turn:
    """One message in the history of a session."""

    role: Role
    text: str
    speaker: Person | None
    """None: the bot."""
    at: datetime
    preset: str | None = None
    """The preset that answered; None for a person's turn."""
    preset_version: int | None = None
    message_id: str | None = None
    """The platform's id of a person's message."""
    part_names: tuple[str, ...] = ()
    """For an answer: the names of its parts, one per sent message."""
    is_observed: bool = False
    """Whether the message did not address the bot and is only background for later answers."""
    files: tuple[MediaItem, ...] = ()
    """The attachments of a person's question, read again if the question is asked again."""

    def is_from(self, person: Person) -> bool:
        return self.speaker is not None and self.speaker.id == person.id


@value_class
class TurnRange:
    """`count` consecutive turns of a session, followed by `newer_turn_count` newer turns."""

    newer_turn_count: int
    count: int

    def remove_from(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return the turns without this range. `turns` are the newest turns of the session."""
        range_end = max(len(turns) - self.newer_turn_count, 0)
        return (*turns[: max(range_end - self.count, 0)], *turns[range_end:])


@value_class
class Claim:
    """The right to process a conversation; a later claim has a higher epoch and invalidates it."""

    conversation: str
    epoch: int
    owner: str


MAX_OWN_CRASHES = 3
"""After this many crashes that no other message can have caused, a message is a dead letter."""
MAX_CRASHES = 24
"""How many crashes while a message is processed make it a dead letter."""


class AttemptState(IntEnum):
    """How a message is being processed, stored to find which message may have caused a crash."""

    NONE = 0
    """The message is not being processed."""
    WITH_OTHERS = 1
    """The message is being processed, possibly together with other messages."""
    RUNS_ALONE = 2
    """The message is processed alone, so another crash must be its fault."""
    DEFERRED = 3
    """The message waits some seconds after a crash; a crash meanwhile has another cause."""


@value_class
class InboxMessage:
    """An inbox row that is being processed."""

    id: int
    incoming: Incoming
    crash_count: int
    """How many times a process died while processing this message."""
    own_crash_count: int = 0
    """The number of those crashes that only this message can have caused."""
    received_at: float = 0.0
    """When the message was stored, in Unix seconds."""
    has_messages_waiting: bool = False
    """Whether later messages of the conversation were already waiting when it was claimed."""
    gathered_messages: tuple["InboxMessage", ...] = ()
    """Later messages that the same answer covers, oldest first."""
    refused_messages: tuple["InboxMessage", ...] = ()
    """Later messages that are finished unanswered because too many were waiting."""

    @property
    def newest_message(self) -> "InboxMessage":
        """The newest message that the answer covers."""
        return self.gathered_messages[-1] if self.gathered_messages else self

    @property
    def reply_target(self) -> "InboxMessage":
        """The message to reply to: the newest or, if that is in an album, the captioned one."""
        newest = self.newest_message
        album_id = newest.incoming.album if isinstance(newest.incoming, IncomingMessage) else None
        if album_id is None:
            return newest
        album_texts = [
            (one, one.incoming.text)
            for one in (self, *self.gathered_messages)
            if isinstance(one.incoming, IncomingMessage) and one.incoming.album == album_id
        ]
        return next((one for one, text in album_texts if text), album_texts[0][0])

    @property
    def turn_name(self) -> str:
        """The unique name of the turn that answers this message. It never changes."""
        return f"{self.incoming.address.source}:{self.incoming.external_key}"

    @property
    def error_id(self) -> str:
        """The short id under which a failure of this turn is shown to users and logged."""
        return short_error_id(self.turn_name)

    def part_name(self, number: int) -> str:
        """Return the permanent name of a part of the answer."""
        return f"{self.turn_name}/{number}"

    def choose_part_name(self, replaced_names: Sequence[str], number: int) -> str:
        """Return the name of a part: that of the earlier message it replaces, or else a new one."""
        names = [name for name in replaced_names if int(name.rpartition("/")[2]) < FIRST_FILE_PART]
        return names[number] if number < len(names) else self.part_name(number)


def short_error_id(turn_name: str) -> str:
    """Return the short id under which a turn's failure is shown to users and logged."""
    return hashlib.sha256(turn_name.encode()).hexdigest()[:6]


@value_class
class ClaimedMessage:
    """A claimed conversation, and its oldest unanswered message."""

    claim: Claim
    message: InboxMessage


@value_class
class HistoryChange:
    """Changes to stored turns, by turn id."""

    new_texts: Mapping[int, str] = field(default_factory=dict)
    """The new texts of people's messages."""
    new_versions: Mapping[int, Turn] = field(default_factory=dict)
    """New versions of turns; the replaced turns are kept as inactive versions."""
    superseded_ids: Collection[int] = ()
    """Turns that are removed from the history but kept as inactive versions."""
    restored_ids: Collection[int] = ()
    """Inactive versions whose rows are deleted because `new_versions` contains them again."""
    deleted_ids: Collection[int] = ()
    """Turns that are deleted permanently, with all data derived from them."""
    overwritten_ids: Collection[int] = ()
    """Turns that get a new version and are not kept as inactive versions."""
    observed_flags: Mapping[int, bool] = field(default_factory=dict)
    """The new values of `Turn.is_observed` of people's messages."""
    files: Mapping[int, tuple[MediaItem, ...]] = field(default_factory=dict)
    """The new attachments of people's messages."""


@value_class
class Feedback:
    """A person's reaction to an answer, added or removed."""

    receipt: int
    """The number of the answer's receipt."""
    person: str
    reaction: Reaction
    is_removed: bool


@value_class
class TurnResult:
    """The result of processing one inbox message; stored in one transaction."""

    turns: Sequence[Turn] = ()
    outgoing: Sequence[OutgoingPart] = ()
    """The final text of every part of the answer."""
    receipts: Sequence[Receipt] = ()
    """One receipt per character that answered."""
    starts_session: bool = False
    """Whether the turns start a new session."""
    removed_range: TurnRange | None = None
    """Turns that are deleted from the history first."""
    replaced_range: TurnRange | None = None
    """Turns that are first removed from the history but kept as inactive versions."""
    was_stopped: bool = False
    """Whether an answer was stopped, after which sent messages without content may remain."""
    may_have_sent: bool = False
    """Whether to delete messages that an interrupted attempt at an answer may have sent."""
    is_question_deleted: bool = False
    """Whether the question was deleted, so that it must be erased from database files too."""
    next_part_number: int = 0
    """The lowest part number for which no message was sent during generation."""
    change: HistoryChange | None = None
    unanswered_questions: Sequence[Turn] = ()
    """Questions without an answer, kept as inactive versions so that they can be asked again."""
    replaced_part_names: Sequence[str] = ()
    """Names of already sent parts. The outgoing parts replace them one by one; the remaining
    ones are deleted."""
    channel_turns: Sequence[Turn] = ()
    """Turns before the message that were read from the channel because none were stored yet."""
    feedback: Feedback | None = None


@value_class
class RemainingWork:
    """The work left after a message: the next message to process, and the first row to send."""

    next_message: InboxMessage | None
    """The conversation's next message; None: there was none, so the claim was released."""
    row: OutboxRow | None
    """The lane's first outbox row, reserved for sending; None: another sender has the lane."""


@value_class
class OpenPart:
    """The first message of an answer, queued while the answer is still being written."""

    row_id: int
    row: OutboxRow | None

    def shows_content(self, content: MessageContent) -> bool:
        """Return whether the queued message, perhaps of a crashed process, has this content."""
        row = self.row
        return row is not None and row.id == self.row_id and row.content == content


@value_class
class Session:
    """A session loaded from the database."""

    number: int
    """`/new` starts a session with the next number; earlier sessions are kept."""
    turns: tuple[Turn, ...]
    """The newest turns, oldest first."""
    cache: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """A cache of values computed from the turns, dropped together with them."""

    @property
    def has_answer(self) -> bool:
        """Whether the session contains an answer to a question; greetings do not count."""
        turns_since_question = dropwhile(
            lambda one: one.is_observed or one.role != "user", self.turns
        )
        return any(one.role == "assistant" for one in turns_since_question)


TurnFilter: TypeAlias = Callable[[Sequence[Turn]], Awaitable[Sequence[Turn]]]
"""Returns the turns that models may read."""


@value_class
class StoredTurn:
    """A turn with its row id, which a summary refers to."""

    id: int
    turn: Turn


@value_class
class Exchange:
    """A person's message in the history, and its answers."""

    question: StoredTurn
    answers: tuple[StoredTurn, ...]
    earlier_session: Session
    is_newest_exchange: bool
    """Whether the question is in the current session and no later question was answered."""
    parts: tuple[str, ...]
    """The names of the answers' parts whose messages can still be edited."""
    versions: tuple[tuple[StoredTurn, ...], ...] = ()
    """All versions of each answer, oldest first, including the active one."""


@value_class
class Summary:
    """A summary of a session from its start to a certain turn."""

    session_number: int
    last_turn_id: int
    """The id of the last summarized turn."""
    turns_hash: str
    """The result of `fingerprint_turns` for the summarized turns."""
    text: str


@value_class
class SessionTurns:
    """A whole session, oldest turn first, and the summary of its beginning."""

    session_number: int
    turns: tuple[StoredTurn, ...]
    summary: Summary | None

    @property
    def has_stale_summary(self) -> bool:
        """Whether a summarized turn was edited or deleted after the summary was written."""
        if self.summary is None:
            return False
        covered_turns = [one for one in self.turns if one.id <= self.summary.last_turn_id]
        return fingerprint_turns(covered_turns) != self.summary.turns_hash


def fingerprint_turns(turns: Iterable[StoredTurn]) -> str:
    """Hash the ids and texts of turns, so that later changes are detected."""
    digest = hashlib.sha256()
    for one in turns:
        digest.update(f"{one.id}:{len(one.turn.text)}:{one.turn.text}".encode())
    return digest.hexdigest()


@value_class
class ChatSetting:
    """The value of a setting made in a chat, and its scope."""

    scope: str
    value: str

    @classmethod
    def find_setting(
        cls, settings: Mapping[str, Mapping[str, str]], scopes: Sequence[str], key: str
    ) -> "ChatSetting | None":
        """Return the setting with this key from the first scope that has it, or None."""
        for scope in scopes:
            scope_values = settings.get(scope, {})
            if key in scope_values:
                return cls(scope, scope_values[key])
        return None


CONSENT_KEY = "consent"
"""The chat setting that stores a person's `Consent`, in the scope of that person."""


class Consent(StrEnum):
    """What a person allows the bot to do with their messages; the values are stored."""

    OFF = "off"
    """Their messages are neither stored nor sent to a provider."""
    HERE = "here"
    """The default: their messages are used only in the chat they were written in."""
    SERVER = "server"
    """Memories about them may be recalled anywhere in the same server."""
    EVERYWHERE = "everywhere"


def setting_scopes(person_id: str, scopes: Sequence[str]) -> list[str]:
    """Return the scopes of a person's settings: the person in each of `scopes`, then everywhere."""
    return [*[f"{person_id}@{scope}" for scope in scopes], person_id]


OWNER_SEPARATOR = "/"
"""Separates the owner of a character from its name; no other preset's name may contain it."""
CHARACTER_KEY_PREFIX = "character "
"""The key prefix of the settings that list an owner's characters."""


def display_name(preset_name: str) -> str:
    """Return the name of a preset or character as people see it, without the owner."""
    return preset_name.rpartition(OWNER_SEPARATOR)[2]


@value_class
class PresetVersion:
    name: str
    content: str
    """The preset as strict JSON; empty: the preset was deleted."""
    version: int
    """The version number; when a preset is saved, the lowest number to use."""
    owner: str | None = None
    """The person or server that owns this character; None: an operator's preset."""


class HistoryScope(StrEnum):
    """Which messages of a channel share a history; the values are stored."""

    SHARED = "shared"
    """All messages of a channel; each thread or topic counts as a channel."""
    USER = "user"
    """Each person has a separate history."""
    THREAD = "thread"
    """All messages of a thread or topic, even if the surrounding channel has another scope."""
    REPLIES = "replies"
    """Each chain of replies; a second reply to the same message starts a branch."""


@value_class
class MessageLocation:
    """The conversation and turn that a platform's message belongs to."""

    conversation: str
    turn_id: int | None
    """The id of its turn; None: it is part of an unfinished answer."""
    is_newest_message: bool
    """Whether it is the newest message of the history, so that a reply continues the history."""


@value_class
class MessageNote:
    """A record about a message, such as the log of its failure, stored for a limited time."""

    key: str
    content: str
    person_id: str | None = None
    """The id of the person whom the note quotes."""


_MAX_NAME_CHARS = 60
_MAX_KEPT_FILES = 10  # of one question; no more are read
_ATTACHMENT_NOUNS: Mapping[MediaKind, str] = {
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
MAX_TEXT_FILE_BYTES = 100 * 1024
"""The maximum number of bytes that are read from a text file."""
READABLE_KINDS = frozenset({MediaKind.IMAGE, MediaKind.FILE})
"""The kinds of attachments that can be read; only the content shows what a file really is."""


@value_class
class AttachedText:
    name: str
    """The file name as shown to the model; may be empty."""
    text: str
    is_file_truncated: bool


@value_class
class UnreadFile:
    """A file that could not be read."""

    item: MediaItem
    reason: Text | None
    """The reason; None: files of this kind are never read."""


@value_class
class AttachedFiles:
    """Contents of the files attached to a message and to the message it quotes."""

    images: tuple[Image, ...] = ()
    texts: tuple[AttachedText, ...] = ()
    unread_files: tuple[UnreadFile, ...] = ()
    """Unreadable files of the message itself, without those of the quoted message."""


NO_FILES = AttachedFiles()


def clean_file_name(name: str) -> str:
    """Return the file name at the end of a path, on one line and without brackets."""
    _, _, file_name = name.replace("\\", "/").rpartition("/")
    return " ".join(file_name.translate(_BRACKET_REPLACEMENTS).split())[:_MAX_NAME_CHARS]


_BRACKET_REPLACEMENTS = str.maketrans("[]", "()")


def has_readable_file(message: IncomingMessage) -> bool:
    """Return whether a message has an attachment that the bot can read for its answer."""
    return any(one.kind in READABLE_KINDS and one.source for one in message.attachments)


def files_to_keep(message: IncomingMessage) -> tuple[MediaItem, ...]:
    """Return the attachments of a question to store, so that they can be read again later."""
    files = (*message.repeated_files, *message.attachments)
    readable_files = [one for one in files if one.kind in READABLE_KINDS and one.source]
    return tuple(readable_files[:_MAX_KEPT_FILES])


def build_repeated_question(
    command: IncomingMessage, question: Turn, earlier_turns: Sequence[Turn]
) -> IncomingMessage:
    """Return an earlier question as a new message that `command` asks the bot to answer."""
    return replace(
        command,
        text=question.text,
        author=question.speaker or command.author,
        asked_again_by=command.author.id,
        message_id=question.message_id,
        quote=None,
        wake=WakeReason.DM,
        repeated_files=question.files,
        earlier_files=files_of_unanswered_questions(earlier_turns),
    )


def files_of_unanswered_questions(earlier_turns: Sequence[Turn]) -> tuple[MediaItem, ...]:
    """Return the files of the questions at the end of `earlier_turns`, which have no answer yet."""
    unanswered_questions = list(takewhile(lambda one: one.role == "user", reversed(earlier_turns)))
    return tuple(file for one in reversed(unanswered_questions) for file in one.files)


def text_with_attachments(message: IncomingMessage) -> str:
    """Return a message's text and, for each attachment, a line such as "[picture cat.jpg]"."""
    return "\n".join(filter(None, [message.text, *describe_attachments(message.attachments)]))


def describe_attachments(items: Sequence[MediaItem]) -> list[str]:
    """Return a text such as "[picture cat.jpg]" for each attachment."""
    return [
        f"[{' '.join([_ATTACHMENT_NOUNS[one.kind], clean_file_name(one.name)]).strip()}]"
        for one in items
    ]
