"""Incoming events in platform-independent form, and functions that make their texts storable."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from bot.value_class import value_class


@value_class
class Person:
    """The author of a message."""

    id: str
    """The platform and its user id, such as "discord:81384788765712384"; identifies the person."""
    name: str
    """The display name as the platform sent it, in any script; it may change at any time."""


@value_class
class Address:
    """A chat, thread, or topic on a platform, and one of the message histories kept for it."""

    platform: str
    chat: str
    """The platform's chat id; on Discord a thread is a chat of its own."""
    thread: str | None = None
    """The id of a Telegram topic; None outside topics."""
    bot_id: str = ""
    """The id of an additional bot on the platform; empty: the platform's first bot."""
    history: str = ""
    """A separate history in the channel, "user=7" or "replies=42"; empty: the shared history."""

    @property
    def source(self) -> str:
        """The platform, and the id of an additional bot: "telegram" or "telegram@77"."""
        return source_name(self.platform, self.bot_id) if self.bot_id else self.platform

    @property
    def lane(self) -> str:
        """The key of the chat, in which messages are sent in order and share a rate limit."""
        return f"{self.source if self.bot_id else self.platform}:{self.chat}"

    @property
    def channel(self) -> str:
        """The key of the channel or topic, and of its shared conversation."""
        return self.lane if self.thread is None else f"{self.lane}:{self.thread}"

    @property
    def has_personal_history(self) -> bool:
        """Whether the history is one person's own, separate from the channel's shared history."""
        return self.history.startswith(PERSON_HISTORY_PREFIX)

    @property
    def recap_queue_address(self) -> "Address":
        """The address of a separate queue for `/recap`, so that it can run during an answer."""
        return replace(self, history=f"{_RECAP_HISTORY_PREFIX}{self.history}")

    @property
    def recap_source_address(self) -> "Address":
        """The address of the conversation that `/recap` commands at this address summarize."""
        return replace(self, history=self.history.removeprefix(_RECAP_HISTORY_PREFIX))

    @property
    def conversation(self) -> str:
        """The key of the conversation: messages that share a history and are handled in order."""
        return f"{self.channel}{HISTORY_SEPARATOR}{self.history}" if self.history else self.channel


HISTORY_SEPARATOR = "#"
"""Separates the channel from the history in the key of a conversation."""
PERSON_HISTORY_PREFIX = "user="
"""The prefix of the name of a person's own history."""
_RECAP_HISTORY_PREFIX = "recap="


def parse_address(key: str) -> Address:
    """Return the address with this key, which is the key of a conversation or of a chat."""
    channel, _, history = key.partition(HISTORY_SEPARATOR)
    source, chat, *thread = channel.split(":", 2)
    platform, _, bot_id = source.partition("@")
    return Address(platform, chat, thread[0] if thread else None, bot_id, history)


def source_name(platform: str, bot_id: str) -> str:
    """Return the source name of a bot: "telegram", or "telegram@77" for an additional bot."""
    return f"{platform}@{bot_id}" if bot_id else platform


def parse_source(key: str) -> str:
    """Return the platform and bot in the key of a conversation or chat, such as "telegram@77"."""
    return key.partition(":")[0]


class WakeReason(StrEnum):
    """How a message addresses the bot."""

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
    """An attachment of a message: where its file can be downloaded, not its content."""

    kind: MediaKind
    name: str = ""
    """The file name or title; may be empty."""
    size: int | None = None
    """In bytes, as reported by the platform; None: unknown."""
    source: str = ""
    """The URL or the platform's file id; empty: there is no file."""


@value_class
class Quote:
    """The message that is replied to. Its text is untrusted and never an instruction."""

    author: Person | None
    """None: unknown."""
    message_id: str | None
    text: str
    attachments: tuple[MediaItem, ...] = ()
    is_ours: bool = False
    """Whether the bot itself wrote it."""
    by_webhook: bool = False
    """Whether a webhook wrote it; the webhook is the bot's if the message is in the history."""
    forwarded_from: str = ""
    """For a forwarded message: the id of the person who wrote the original."""


@value_class
class ThreadTitle:
    """The title of a thread or forum post, written by a person."""

    text: str
    person: str
    """The id of the person who opened the thread."""


@value_class(kw_only=True)
class PersonEvent:
    """An event that a person caused in a chat."""

    author_is_admin: bool | None = None
    """None: unknown until the platform is asked."""
    author_roles: tuple[str, ...] | None = ()
    """Ids of the author's roles in the server: "discord:41771983423143937"; None: unknown."""
    interaction: str | None = None
    """The token for responding to a native command or button press; None for other events."""
    in_thread: bool = False
    """Whether the channel is a thread or a forum post, which has one topic."""
    thread_title: ThreadTitle | None = None
    """The title of the thread or forum post; None: not a thread, or the bot opened it."""
    locale: str | None = None
    """The author's language as reported by the platform, such as "pt-BR"."""
    is_private: bool = False
    """Whether the chat is private, on a platform where anybody can message the bot."""
    is_age_restricted: bool | None = None
    """Whether the channel is age-restricted; None: unknown."""
    has_masked_token: bool = False
    """Whether a token or key was removed from the text before it was stored."""


@value_class
class IncomingMessage(PersonEvent):
    """A message or command from a person; stored in the inbox as JSON."""

    address: Address
    external_key: str
    """Unique on its platform; the same when the platform delivers the message again."""
    message_id: str | None
    """The platform's message id, used to reply; None for a native command."""
    author: Person
    text: str
    """The text or caption; a leading mention of the bot is removed unless it is the whole text."""
    at: datetime
    """When it was sent, timezone-aware, in UTC."""
    wake: WakeReason | None
    """How it addresses the bot; None: it does not, and is only observed."""
    scopes: tuple[str, ...]
    """The scopes whose settings apply, narrowest first: this channel, ..., its server or chat."""
    author_is_bot: bool = False
    quote: Quote | None = None
    has_public_response: bool = False
    """Whether everybody sees the response to the native command, not only its author."""
    attachments: tuple[MediaItem, ...] = ()
    opened_from: str | None = None
    """The id of the message from which the bot opened this thread for a long answer."""
    channel_title: str = ""
    """The names of the server, channel and thread, or of the group; empty: private or unknown."""
    mentions: tuple[str, ...] = ()
    """Ids of the people, bots and roles that the text mentions, this bot not included."""
    is_late: bool = False
    """Whether the message arrived too late to be answered."""
    album: str | None = None
    """The id shared by the messages of an album, each with one picture or file."""
    earlier_files: tuple[MediaItem, ...] = ()
    """Attachments of earlier messages that the same answer covers."""
    is_forward: bool = False
    """Whether the author forwarded this message, so the text is not the author's own."""
    forwarded_from: str = ""
    """The id of the person who wrote the forwarded message; empty: unknown."""
    is_withheld: bool = False
    """Whether the author opted out, so that text, files and names were removed before storage."""
    asked_again_by: str | None = None
    """The id of the person who asked for a new answer; None: the author did."""
    repeated_files: tuple[MediaItem, ...] = ()
    """Attachments of a question that is asked again; the question's text already mentions them."""
    asked_with: tuple[str, ...] = ()
    """Ids of other people whose questions the same answer covers, newest first."""

    @property
    def charged_person_ids(self) -> tuple[str, ...]:
        """The ids of everybody whose question is answered, newest first; only one of them pays."""
        other_asker_ids = () if self.asked_again_by else self.asked_with
        return tuple(dict.fromkeys((self.charged_person_id, *other_asker_ids)))

    @property
    def charged_person_id(self) -> str:
        """The id of the person whose rate limits and budgets the answer counts against."""
        return self.asked_again_by or self.author.id

    @property
    def authored_text(self) -> str:
        """The author's own text; empty for a forwarded message, which addresses nobody."""
        return "" if self.is_forward else self.text


@value_class
class MessageEdit:
    """An author edited a message."""

    external_key: str
    """Unique for each edit."""
    said: IncomingMessage
    """The complete edited message."""
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
class MessageDeletion:
    """Somebody deleted messages of one channel on the platform."""

    address: Address
    external_key: str
    message_ids: tuple[str, ...]
    at: datetime
    scopes: tuple[str, ...]
    message_id: None = None
    interaction: None = None
    locale: None = None


@value_class
class ButtonPress(PersonEvent):
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
    """The options chosen from a menu, or the texts entered into a form."""
    shown_at: datetime | None = None
    """When the message with the button was sent; None: unknown."""
    is_ephemeral: bool = False
    """Whether the message with the button is visible only to the person who pressed it."""


class Reaction(StrEnum):
    """The emoji reactions that the bot acts on."""

    GOOD = "👍"
    BAD = "👎"
    RETRY = "🔁"
    DELETE = "🗑"
    PIN = "📌"
    WRITE_DOWN = "✍"
    """For Telegram, whose reactions do not include 📌."""


MEMORY_REACTIONS = frozenset({Reaction.PIN, Reaction.WRITE_DOWN})
"""The reactions that ask the bot to remember a message, even if it is not an answer."""
_SKIN_TONES = re.compile("[\U0001f3fb-\U0001f3ff\ufe0f]")


def strip_skin_tone(emoji: str) -> str:
    """Remove skin tones and variation selectors from an emoji."""
    return _SKIN_TONES.sub("", emoji)


def parse_reaction(emoji: str) -> Reaction | None:
    """Return the reaction for an emoji of any skin tone, or None if the bot ignores it."""
    plain_emoji = strip_skin_tone(emoji)
    return Reaction(plain_emoji) if plain_emoji in set(Reaction) else None


@value_class
class ReactionChange(PersonEvent):
    """A person added a reaction to a message, or removed theirs."""

    address: Address
    """The chat, without a topic: Telegram does not report the topic of a reaction."""
    external_key: str
    message_id: str
    author: Person
    reaction: Reaction
    at: datetime
    scopes: tuple[str, ...]
    is_removed: bool = False


@value_class
class ChatJoin:
    """The bot was added to a group or server, or somebody opened a chat with it."""

    address: Address
    external_key: str
    author: Person | None
    """Who added the bot; None: unknown."""
    at: datetime
    scopes: tuple[str, ...]
    message_id: None = None
    interaction: None = None
    locale: str | None = None
    opens_chat: bool = False
    """Whether a person opened a private chat; its conversation may already have messages."""
    is_age_restricted: bool | None = None

    @property
    def is_private(self) -> bool:
        return self.opens_chat


@value_class
class ForgetRequest:
    """A request to delete a person's messages in a conversation."""

    address: Address
    external_key: str
    person_id: str | None
    """None: delete everybody's messages."""
    at: datetime
    scopes: tuple[str, ...]
    message_id: None = None
    interaction: None = None
    locale: None = None


@value_class
class SayRequest:
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
    conversation_keys: Iterable[str],
    request_prefix: str,
    person_id: str | None,
    requested_at: datetime,
    scopes: Sequence[str] = (),
) -> list[ForgetRequest]:
    """Create a request per conversation to delete the messages of a person or of everybody.

    The external keys of the requests start with `request_prefix`. `scopes` lists scopes whose
    settings were deleted as well.
    """
    return [
        ForgetRequest(
            parse_address(key), f"{request_prefix}:{key}", person_id, requested_at, (key, *scopes)
        )
        for key in conversation_keys
    ]


Incoming: TypeAlias = (
    IncomingMessage
    | MessageEdit
    | MessageDeletion
    | ButtonPress
    | ReactionChange
    | ChatJoin
    | ForgetRequest
    | SayRequest
)


def find_person_ids(event: Incoming) -> tuple[str, ...]:
    """Return the ids of the people whose words an event contains, the author first."""
    match event:
        case MessageEdit(said=message) | (IncomingMessage() as message):
            ids = [message.author.id, message.forwarded_from]
            if message.quote is not None:
                quoted_author = message.quote.author
                ids += [quoted_author.id if quoted_author else "", message.quote.forwarded_from]
            ids += [message.thread_title.person] if message.thread_title else []
            return tuple(one for one in ids if one)
        case (
            ButtonPress(author=author, thread_title=title)
            | ReactionChange(author=author, thread_title=title)
        ):
            return (author.id,) if title is None else (author.id, title.person)
        case ChatJoin(author=Person(id=person)):
            return (person,)
        case _:
            return ()


Request: TypeAlias = IncomingMessage | ButtonPress
"""A message or button press; its author may lack the permission for what it requests."""


_SURROGATE = re.compile("[\ud800-\udfff]")


def to_storable_text(text: str) -> str:
    """Make a text acceptable to databases: NUL and lone surrogates become U+FFFD."""
    if "\0" not in text and text.isascii():
        return text
    repaired_text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return repaired_text.replace("\0", "\ufffd")


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
    """Joins surrogate pairs that are split between two chunks of a stream."""

    def __init__(self) -> None:
        self._high_surrogate = ""

    def feed(self, text: str) -> str:
        """Return the text of a chunk, but hold back half a surrogate pair at its end."""
        if not self._high_surrogate and not _SURROGATE.search(text):
            return text
        text = self._high_surrogate + text
        self._high_surrogate = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        complete_text = text[: len(text) - len(self._high_surrogate)]
        return complete_text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def flush(self) -> str:
        """Return U+FFFD if the stream ended with half a surrogate pair, otherwise an empty text."""
        unpaired_surrogate, self._high_surrogate = self._high_surrogate, ""
        return "\ufffd" if unpaired_surrogate else ""
