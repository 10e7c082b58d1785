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
from bot.chat.outgoing import FILE_PARTS, MessageContent, OutboxRow, OutgoingPart
from bot.chat.prompt import Image, Role
from bot.chat.receipt import Receipt
from bot.texts.text import Text
from bot.value_class import value_class

ACCESS_KEY_PREFIX = "access "
"""Begins the keys of the chat settings that say who may use the bot."""
WORDS_KEY = "words"
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
    sent_as: tuple[str, ...] = ()
    """The names of the parts that an answer was sent as."""
    observed: bool = False
    """Whether it addressed nobody: background for later answers."""
    files: tuple[MediaItem, ...] = ()
    """Where the platform has the files of a person's question, for when it is asked again."""

    def is_said_by(self, person: Person) -> bool:
        return self.speaker is not None and self.speaker.id == person.id


@value_class
class TurnRange:
    """Consecutive turns of a session, counted back from the newest."""

    newer: int
    count: int

    def remove_from(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return `turns`, the newest of the session, without those in this range."""
        end = max(len(turns) - self.newer, 0)
        return (*turns[: max(end - self.count, 0)], *turns[end:])


@value_class
class Claim:
    """The right to process a conversation; a claim with a higher epoch fences earlier ones."""

    conversation: str
    epoch: int
    owner: str


MAX_OWN_CRASHES = 3
"""Deaths of the process that only this message explains before it is set aside."""
MAX_CRASHES = 24
"""The same for deaths beside other messages, as a last resort."""


class Attempt(IntEnum):
    """What a process is doing with a message; stored, for use after a crash."""

    NONE = 0
    """Nothing that could kill the process."""
    BESIDE_OTHERS = 1
    """It is processed; others that could kill the process are as well, or may be."""
    ALONE = 2
    """It is processed, and nothing else explains the deaths that it was in flight at."""
    DEFERRED = 3
    """It waits for some seconds, and a death meanwhile has another cause."""


@value_class
class InboxMessage:
    """An inbox row that is being processed."""

    id: int
    incoming: Incoming
    crashes: int
    """How often a process died while it worked on this message."""
    own_crashes: int = 0
    """How often only this message can have been the cause."""
    received_at: float = 0.0
    """When it was stored, in Unix seconds."""
    has_messages_waiting: bool = False
    """Whether more of its conversation was unanswered when it was begun."""
    gathered: tuple["InboxMessage", ...] = ()
    """Later messages that are answered together with it, in their order."""
    refused: tuple["InboxMessage", ...] = ()
    """Later messages that are finished with it without an answer: too many waited."""

    @property
    def newest(self) -> "InboxMessage":
        """The newest message that this one's answer covers."""
        return self.gathered[-1] if self.gathered else self

    @property
    def replied_to(self) -> "InboxMessage":
        """The message that the answer replies to: the newest, or the captioned one of an album."""
        newest = self.newest
        album = newest.incoming.album if isinstance(newest.incoming, IncomingMessage) else None
        if album is None:
            return newest
        parts = [
            (one, one.incoming.text)
            for one in (self, *self.gathered)
            if isinstance(one.incoming, IncomingMessage) and one.incoming.album == album
        ]
        return next((one for one, text in parts if text), parts[0][0])

    @property
    def turn(self) -> str:
        """The name of the turn that answers it, identical on every attempt."""
        return f"{self.incoming.address.source}:{self.incoming.external_key}"

    @property
    def error_id(self) -> str:
        """A short id of its failure, for users and the log."""
        return short_error_id(self.turn)

    def part_name(self, part: int) -> str:
        """Name a part of the answer; its messages keep this name permanently."""
        return f"{self.turn}/{part}"

    def reused_part_name(self, replaced: Sequence[str], part: int) -> str:
        """Name a part of an answer that reuses earlier messages, except files."""
        names = [name for name in replaced if int(name.rpartition("/")[2]) < FILE_PARTS]
        return names[part] if part < len(names) else self.part_name(part)


def short_error_id(turn: str) -> str:
    """Return the short id of a turn's failure."""
    return hashlib.sha256(turn.encode()).hexdigest()[:6]


@value_class
class ClaimedMessage:
    """A claimed conversation, and its oldest unanswered message."""

    claim: Claim
    message: InboxMessage


@value_class
class HistoryChange:
    """Changes to stored turns, by their ids."""

    texts: Mapping[int, str] = field(default_factory=dict)
    """The new texts of people's messages."""
    versions: Mapping[int, Turn] = field(default_factory=dict)
    """New versions, each in the place of a turn, which is kept as an inactive version."""
    superseded: Collection[int] = ()
    """What leaves the history, and is kept as an inactive version."""
    restored: Collection[int] = ()
    """Inactive versions that are among the new ones: their rows are deleted."""
    deleted: Collection[int] = ()
    """What is deleted permanently, with everything derived from it."""
    replaced: Collection[int] = ()
    """Turns with a new version that are not kept as versions themselves."""
    observed: Mapping[int, bool] = field(default_factory=dict)
    """Whether nobody is asked in people's messages now."""
    files: Mapping[int, tuple[MediaItem, ...]] = field(default_factory=dict)
    """Where the platform has the files of people's messages now."""


@value_class
class Feedback:
    """What a person thinks of an answer, or thinks no longer."""

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
    """One for each character that answered."""
    new_session: bool = False
    """Whether the turns start a new session."""
    removes: TurnRange | None = None
    """What is deleted from the history first."""
    supersedes: TurnRange | None = None
    """Turns that leave the history first, and are kept as inactive versions."""
    was_stopped: bool = False
    """Whether an answer was ended early: a message that was opened for it may be left over."""
    is_withdrawn: bool = False
    """Whether its question was deleted, so that nothing of it may be left in files either."""
    next_part: int = 0
    """The lowest number of a part that was not opened while the answer was made."""
    change: HistoryChange | None = None
    unanswered: Sequence[Turn] = ()
    """Questions whose answer failed: kept as versions that are not active, to be asked again."""
    in_place_of: Sequence[str] = ()
    """Names of parts that were sent before: the outgoing parts take their places one by one, and
    those that are left over are deleted."""
    earlier: Sequence[Turn] = ()
    """Turns that precede the message: what was said before anything of the channel was stored."""
    feedback: Feedback | None = None


@value_class
class FinishedTurn:
    """What to do after a message is finished."""

    next_message: InboxMessage | None
    """The next one of the conversation; None: it was released."""
    row: OutboxRow | None
    """The first row of its lane, taken for sending; None: another sender has the lane."""


@value_class
class OpenedPart:
    """The first message of an answer, queued while the answer is still being written."""

    row_id: int
    row: OutboxRow | None

    def shows_content(self, content: MessageContent) -> bool:
        """Return whether this message has this content; a crashed process may have opened it."""
        row = self.row
        return row is not None and row.id == self.row_id and row.content == content


@value_class
class Session:
    """A session loaded from the database."""

    number: int
    """/new starts the next one; earlier ones are kept."""
    turns: tuple[Turn, ...]
    """The newest turns, oldest first."""
    memo: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Values computed from the turns; they are cached, and forgotten with the turns."""

    @property
    def is_answered(self) -> bool:
        """Whether any turn answers a question; greetings do not count."""
        since_question = dropwhile(lambda one: one.observed or one.role != "user", self.turns)
        return any(one.role == "assistant" for one in since_question)


TurnFilter: TypeAlias = Callable[[Sequence[Turn]], Awaitable[Sequence[Turn]]]
"""Leaves out turns that models may not read."""


async def keep_all_turns(turns: Sequence[Turn]) -> Sequence[Turn]:
    return turns


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
    before: Session
    is_newest: bool
    """Whether the question is in the current session and nothing later was answered there."""
    parts: tuple[str, ...]
    """The names of the parts that the answers were sent as and that can still be changed."""
    versions: tuple[tuple[StoredTurn, ...], ...] = ()
    """Of each answer all versions, the active one among them, oldest first."""


@value_class
class Summary:
    """A summary of a session's turns up to one of them."""

    session: int
    covers_to: int
    """The id of the last turn that is covered."""
    fingerprint: str
    """Of all covered turns, from `fingerprint_turns`."""
    text: str


@value_class
class SessionTurns:
    """A whole session, oldest turn first, and the summary of its beginning."""

    session: int
    turns: tuple[StoredTurn, ...]
    summary: Summary | None

    @property
    def has_stale_summary(self) -> bool:
        """Whether any summarized turn was edited or deleted since."""
        if self.summary is None:
            return False
        covered = [one for one in self.turns if one.id <= self.summary.covers_to]
        return fingerprint_turns(covered) != self.summary.fingerprint


def fingerprint_turns(turns: Iterable[StoredTurn]) -> str:
    """Hash the ids and texts of turns, to detect later changes."""
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
    def first(
        cls, found: Mapping[str, Mapping[str, str]], scopes: Sequence[str], key: str
    ) -> "ChatSetting | None":
        """Return the value of the first of these scopes that has one; None: none has."""
        for scope in scopes:
            values = found.get(scope, {})
            if key in values:
                return cls(scope, values[key])
        return None


CONSENT_KEY = "consent"
"""The chat setting of a person's own scope with their `Consent`."""


class Consent(StrEnum):
    """What a person lets the bot do with their words; the values are stored."""

    OFF = "off"
    """Nothing of theirs is stored or sent to a provider."""
    HERE = "here"
    """The default: what they say stays in its chat."""
    SERVER = "server"
    """Memories of them may be recalled in the whole server."""
    EVERYWHERE = "everywhere"


def person_scopes(person_id: str, scopes: Sequence[str]) -> list[str]:
    """Return the scopes of a person's own settings, narrowest first: the channel's, then all."""
    return [*[f"{person_id}@{scope}" for scope in scopes], person_id]


OWNER_SEPARATOR = "/"
"""Stands between the owner of a character and its name; other presets' names cannot have it."""
CHARACTER_KEY = "character "
"""The prefix of the settings that list an owner's characters."""


def shown_name(name: str) -> str:
    """Return a preset's name as people see it: that of a character without its owner."""
    return name.rpartition(OWNER_SEPARATOR)[2]


@value_class
class PresetVersion:
    name: str
    content: str
    """As strict JSON; empty: the preset was deleted."""
    version: int
    """Its number; of a preset to save, the lowest number that it may get."""
    owner: str | None = None
    """The person or server whose character it is; None: it is the operator's."""


class HistoryScope(StrEnum):
    """Whose messages share a history in a channel; the values are stored."""

    SHARED = "shared"
    """Everybody in a channel; a thread or a topic is a channel of its own."""
    USER = "user"
    """Each person alone."""
    THREAD = "thread"
    """Everybody in a thread or a topic, whatever was chosen for the channel around it."""
    REPLIES = "replies"
    """Each chain of replies; a second reply to the same message begins a branch."""


@value_class
class MessagePlace:
    """A platform message's place in the histories of its channel."""

    conversation: str
    turn: int | None
    """The id of its turn; None: it is a part of an answer that is not finished."""
    is_last: bool
    """Whether nothing follows it or waits to, so that a reply continues from here."""


@value_class
class MessageNote:
    key: str
    content: str
    person: str | None = None
    """The id of the person whose words it quotes."""


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
    name: str
    """As the model reads it; may be empty."""
    text: str
    is_cut: bool


@value_class
class UnreadFile:
    """A file that could not be read."""

    item: MediaItem
    why: Text | None
    """None: files of its kind are not read here."""


@value_class
class AttachedFiles:
    """The contents of the files of a message and of the message it quotes."""

    images: tuple[Image, ...] = ()
    texts: tuple[AttachedText, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    """Of the message itself only."""


NO_FILES = AttachedFiles()


def clean_file_name(name: str) -> str:
    """Return a file name in one line, without folders or brackets, which could end a note."""
    _, _, last = name.replace("\\", "/").rpartition("/")
    return " ".join(last.translate(_WITHOUT_BRACKETS).split())[:_MAX_NAME_CHARS]


_WITHOUT_BRACKETS = str.maketrans("[]", "()")


def has_readable_file(message: IncomingMessage) -> bool:
    """Return whether a message has a file that can be read when answering."""
    return any(one.kind in READABLE and one.source for one in message.attachments)


def files_to_keep(message: IncomingMessage) -> tuple[MediaItem, ...]:
    """Return a question's attachments that can be read again later, without their contents."""
    own = (*message.repeated_files, *message.attachments)
    return tuple(one for one in own if one.kind in READABLE and one.source)[:_MAX_KEPT_FILES]


def ask_again(by: IncomingMessage, question: Turn, before: Sequence[Turn]) -> IncomingMessage:
    """Return a question as repeated by somebody, with its original files."""
    return replace(
        by,
        text=question.text,
        author=question.speaker or by.author,
        asked_again_by=by.author.id,
        message_id=question.message_id,
        quote=None,
        wake=WakeReason.DM,
        repeated_files=question.files,
        earlier_files=gathered_files(before),
    )


def gathered_files(before: Sequence[Turn]) -> tuple[MediaItem, ...]:
    """Return the files of the questions that the same answer covers, oldest first."""
    gathered = list(takewhile(lambda one: one.role == "user", reversed(before)))
    return tuple(file for one in reversed(gathered) for file in one.files)


def text_with_attachments(message: IncomingMessage) -> str:
    """Return a message's text, with a short line for each attachment."""
    if not message.attachments:
        return message.text
    return "\n".join(
        [*([message.text] if message.text else []), *describe_attachments(message.attachments)]
    )


def describe_attachments(items: Sequence[MediaItem]) -> list[str]:
    """Describe each attachment briefly, in brackets."""
    return [f"[{' '.join([_NOUNS[one.kind], clean_file_name(one.name)]).strip()}]" for one in items]
