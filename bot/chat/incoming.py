"""Incoming events in the form shared by all platforms; their texts can be stored."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from bot.value_class import value_class


@value_class
class Person:
    """The author of a message."""

    id: str
    """The platform and its user id: "discord:81384788765712384". Two persons differ by this."""
    name: str
    """The display name: any script, not cleaned, may change at any time."""


@value_class
class Address:
    """A place on a platform that messages come from and answers go to."""

    platform: str
    chat: str
    """The platform's chat id; on Discord a thread is a chat of its own."""
    thread: str | None = None
    """A Telegram topic."""
    bot_id: str = ""
    """Which bot of the platform; empty: the first one of this installation."""
    history: str = ""
    """Which of the channel's histories: "user=7", "replies=42"; empty: the one that all share."""

    @property
    def source(self) -> str:
        """The platform, with the bot's id if it is an additional bot."""
        return source_name(self.platform, self.bot_id) if self.bot_id else self.platform

    @property
    def lane(self) -> str:
        """The key within which messages are sent in order and share a rate limit."""
        return f"{self.source if self.bot_id else self.platform}:{self.chat}"

    @property
    def channel(self) -> str:
        """The key of the channel or topic, and of its shared conversation."""
        return self.lane if self.thread is None else f"{self.lane}:{self.thread}"

    @property
    def has_personal_history(self) -> bool:
        """Whether the history belongs to one person in the channel."""
        return self.history.startswith(PERSON_HISTORY_PREFIX)

    @property
    def conversation(self) -> str:
        """The key of the conversation, whose messages are in order and share a history."""
        return f"{self.channel}{HISTORY_SEPARATOR}{self.history}" if self.history else self.channel


HISTORY_SEPARATOR = "#"
"""Stands between a channel and one of its histories, in the key of a conversation."""
PERSON_HISTORY_PREFIX = "user="
"""Begins the name of the history of one person."""


def parse_address(key: str) -> Address:
    """Parse a conversation's key to its address."""
    channel, _, history = key.partition(HISTORY_SEPARATOR)
    source, chat, *thread = channel.split(":", 2)
    platform, _, bot_id = source.partition("@")
    return Address(platform, chat, thread[0] if thread else None, bot_id, history)


def source_name(platform: str, bot_id: str) -> str:
    """Name a platform's bot: "telegram", or "telegram@77" for an additional bot."""
    return f"{platform}@{bot_id}" if bot_id else platform


def source_of(key: str) -> str:
    """Return the bot that a lane or conversation belongs to, given its key."""
    return key.partition(":")[0]


class WakeReason(StrEnum):
    """Why a message is meant for the bot."""

    DM = "dm"
    MENTION = "mention"
    REPLY = "reply"
    COMMAND = "command"


class MediaKind(StrEnum):
    """The kind of an attachment; the values are stored in the database."""

    IMAGE = "image"
    ANIMATION = "animation"
    VIDEO = "video"
    AUDIO = "audio"
    VOICE = "voice"
    STICKER = "sticker"
    FILE = "file"
    CONTACT = "contact"
    LOCATION = "location"
    FORWARD = "forward"
    OTHER = "other"


@value_class
class MediaItem:
    """An attachment of a message; it is not downloaded on arrival."""

    kind: MediaKind
    name: str = ""
    """The file name or the title; empty if it has none."""
    size: int | None = None
    """In bytes, as the platform says."""
    source: str = ""
    """The URL or the platform's file id; empty if there is no file."""


@value_class
class Quote:
    """The replied-to message. Its text is somebody's, never an instruction."""

    author: Person | None
    """None: unknown."""
    message_id: str | None
    text: str
    attachments: tuple[MediaItem, ...] = ()
    is_ours: bool = False
    """Whether the bot itself wrote it."""
    by_webhook: bool = False
    """Whether a webhook wrote it: ours, if the history knows the message."""
    forwarded_from: str = ""
    """The id of the person whose words its author has forwarded."""


@value_class
class ThreadTitle:
    """The title of a thread or forum post, written by a person."""

    text: str
    person: str
    """The id of the person who opened the thread."""


@value_class
class IncomingMessage:
    """A message or command in platform-independent form; stored in the inbox as JSON."""

    address: Address
    external_key: str
    """Unique on its platform: recognizes a message that is delivered again."""
    message_id: str | None
    """The platform's id of the message, to reply to; None for an interaction."""
    author: Person
    text: str
    """Without a leading mention of the bot, unless there is nothing else; a caption is a text."""
    at: datetime
    """Aware, UTC."""
    wake: WakeReason | None
    """None: the message is observed only; it does not address the bot."""
    scopes: tuple[str, ...]
    """Where settings are looked up, narrowest first; the first is this channel."""
    author_is_bot: bool = False
    author_is_admin: bool | None = None
    """None: the platform must be asked when it matters."""
    author_roles: tuple[str, ...] | None = ()
    """Ids of the author's roles in the server: "discord:41771983423143937"; None: unknown."""
    quote: Quote | None = None
    interaction: str | None = None
    """What a response to a native command needs; on Discord its token."""
    has_public_response: bool = False
    """Whether everybody reads the response to a native command, and not its author alone."""
    attachments: tuple[MediaItem, ...] = ()
    in_thread: bool = False
    """Whether the channel is a thread or a forum post that belongs to one topic of talk."""
    opened_from: str | None = None
    """The message that the thread was opened from, if the bot has opened it for a long answer."""
    thread_title: ThreadTitle | None = None
    """The title of the thread or forum post, if people have opened it."""
    mentions: tuple[str, ...] = ()
    """Ids of the people, bots and roles that the text mentions, this bot not included."""
    locale: str | None = None
    """The author's language as the platform tells it, such as "pt-BR"."""
    is_private: bool = False
    """Whether the author is alone with the bot on a platform where anybody may write to it."""
    is_age_restricted: bool | None = None
    """Whether the channel is age-restricted; None: unknown."""
    has_masked_token: bool = False
    """Whether a token or key was removed from the text before it was stored."""
    is_late: bool = False
    """Whether it was delivered too late to be answered."""
    album: str | None = None
    """The id that the messages of an album share; each has one picture or file."""
    earlier_files: tuple[MediaItem, ...] = ()
    """Attachments of earlier messages that are answered together with this one."""
    is_forward: bool = False
    """Whether the text is that of a message which the author has forwarded."""
    forwarded_from: str = ""
    """The id of the person who wrote the forwarded message, if the platform tells."""
    is_withheld: bool = False
    """Whether the author has opted out: text, files and names were removed before storage."""
    asked_again_by: str | None = None
    """The id of the person who asked for another answer; None: the author did."""
    repeated_files: tuple[MediaItem, ...] = ()
    """Attachments of a question that is asked again; its text names them already."""
    asked_with: tuple[str, ...] = ()
    """Ids of others whose questions are answered together with this one, the newest first."""

    @property
    def charged_people(self) -> tuple[str, ...]:
        """The ids of everybody whose question is answered, newest first; one of them is charged."""
        others = () if self.asked_again_by else self.asked_with
        return tuple(dict.fromkeys((self.charged_person, *others)))

    @property
    def charged_person(self) -> str:
        """The id of the person whose limits and budgets an answer is charged to."""
        return self.asked_again_by or self.author.id

    @property
    def own_text(self) -> str:
        """The author's own text; empty for a forwarded message, which addresses nobody."""
        return "" if self.is_forward else self.text


@value_class
class Edited:
    """An author edited a message."""

    external_key: str
    """Unique for each edit."""
    said: IncomingMessage
    """The whole message as it reads now."""
    at: datetime
    interaction: None = None

    @property
    def locale(self) -> str | None:
        return self.said.locale

    @property
    def address(self) -> Address:
        return self.said.address

    @property
    def message_id(self) -> str | None:
        return self.said.message_id

    @property
    def scopes(self) -> tuple[str, ...]:
        return self.said.scopes


@value_class
class Deleted:
    """Messages of one channel were deleted on the platform, by anybody."""

    address: Address
    external_key: str
    message_ids: tuple[str, ...]
    at: datetime
    scopes: tuple[str, ...]
    message_id: None = None
    interaction: None = None
    locale: None = None


@value_class
class Pressed:
    """A person pressed a button or chose from a menu under one of the bot's messages."""

    address: Address
    external_key: str
    message_id: str | None
    """The message with the button."""
    author: Person
    data: str
    at: datetime
    scopes: tuple[str, ...]
    values: tuple[str, ...] = ()
    """What was chosen from a menu, or entered into a form."""
    author_is_admin: bool | None = None
    author_roles: tuple[str, ...] | None = ()
    interaction: str | None = None
    locale: str | None = None
    is_private: bool = False
    is_age_restricted: bool | None = None
    has_masked_token: bool = False
    in_thread: bool = False
    thread_title: ThreadTitle | None = None
    shown_at: datetime | None = None
    """When the message with the button was sent, if the platform tells."""
    is_ephemeral: bool = False
    """Whether only the person who pressed sees the button's message."""


class Reaction(StrEnum):
    """The reactions that mean something under an answer."""

    GOOD = "👍"
    BAD = "👎"
    RETRY = "🔁"
    DELETE = "🗑"


_TONES = re.compile("[\U0001f3fb-\U0001f3ff\ufe0f]")


def strip_skin_tone(emoji: str) -> str:
    """Return an emoji without skin tones and variation selectors."""
    return _TONES.sub("", emoji)


def parse_reaction(emoji: str) -> Reaction | None:
    """Return a reaction, whatever its skin tone; None for all others."""
    plain = strip_skin_tone(emoji)
    return Reaction(plain) if plain in set(Reaction) else None


@value_class
class Reacted:
    """A person added a reaction to a message, or removed theirs."""

    address: Address
    """Without a topic: Telegram tells only the chat."""
    external_key: str
    message_id: str
    author: Person
    reaction: Reaction
    at: datetime
    scopes: tuple[str, ...]
    is_removed: bool = False
    author_is_admin: bool | None = None
    author_roles: tuple[str, ...] | None = ()
    is_private: bool = False
    is_age_restricted: bool | None = None
    in_thread: bool = False
    thread_title: ThreadTitle | None = None
    interaction: None = None
    locale: None = None


@value_class
class Joined:
    """The bot was added to a group or server, or a chat was opened; the bot may send a greeting."""

    address: Address
    external_key: str
    author: Person | None
    """Who added it, if the platform tells."""
    at: datetime
    scopes: tuple[str, ...]
    message_id: None = None
    interaction: None = None
    locale: str | None = None
    opens_chat: bool = False
    """Whether a person has opened a chat, whose conversation may have begun before."""
    is_age_restricted: bool | None = None

    @property
    def is_private(self) -> bool:
        return self.opens_chat


@value_class
class ForgetRequested:
    """A request to delete a person's messages in a conversation."""

    address: Address
    external_key: str
    person_id: str | None
    """None: forget what everybody said."""
    at: datetime
    scopes: tuple[str, ...]
    message_id: None = None
    interaction: None = None
    locale: None = None


@value_class
class SayRequested:
    """An API request to send a message to a channel as the bot."""

    address: Address
    external_key: str
    """A hash of the token's name, the channel and the idempotency key."""
    text: str
    at: datetime
    scopes: tuple[str, ...]
    message_id: None = None
    interaction: None = None
    locale: None = None


def create_forget_requests(
    keys: Iterable[str],
    name: str,
    person_id: str | None,
    at: datetime,
    changed: Sequence[str] = (),
) -> list[ForgetRequested]:
    """Return a request for each of these conversations; their external keys start with `name`.

    `changed`: other scopes whose settings were deleted.
    """
    return [
        ForgetRequested(parse_address(key), f"{name}:{key}", person_id, at, scopes=(key, *changed))
        for key in keys
    ]


Incoming: TypeAlias = (
    IncomingMessage | Edited | Deleted | Pressed | Reacted | Joined | ForgetRequested | SayRequested
)


def person_ids_in(event: Incoming) -> tuple[str, ...]:
    """Return the ids of the people whose words an event holds, its author first."""
    match event:
        case Edited(said=message) | (IncomingMessage() as message):
            found = [message.author.id, message.forwarded_from]
            if message.quote is not None:
                quoted = message.quote.author
                found += [quoted.id if quoted else "", message.quote.forwarded_from]
            found += [message.thread_title.person] if message.thread_title else []
            return tuple(one for one in found if one)
        case (
            Pressed(author=author, thread_title=title) | Reacted(author=author, thread_title=title)
        ):
            return (author.id,) if title is None else (author.id, title.person)
        case Joined(author=Person(id=person)):
            return (person,)
        case _:
            return ()


Request: TypeAlias = IncomingMessage | Pressed
"""A command or the press of a button, which its author may have no right to."""


_SURROGATE = re.compile("[\ud800-\udfff]")


def to_storable_text(text: str) -> str:
    """Replace NUL (PostgreSQL) and lone surrogates (UTF-8) by U+FFFD, and join surrogate pairs."""
    if "\0" not in text and text.isascii():
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")


def to_storable_json(value: Any) -> Any:
    """Apply `to_storable_text` to all texts of a JSON value."""
    match value:
        case str():
            return to_storable_text(value)
        case list():
            return [to_storable_json(one) for one in value]
        case dict():
            return {to_storable_text(name): to_storable_json(one) for name, one in value.items()}
        case _:
            return value


class SurrogateJoiner:
    """Joins surrogate pairs that are split between two pieces of a stream."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the text; an incomplete pair at its end is kept for the next piece."""
        if not self._held and not _SURROGATE.search(text):
            return text
        text = self._held + text
        self._held = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        whole = text[: len(text) - len(self._held)]
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def flush(self) -> str:
        """Return a replacement character if the stream ended with an incomplete pair."""
        held, self._held = self._held, ""
        return "\ufffd" if held else ""
