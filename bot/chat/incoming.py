"""Incoming messages: the value that every platform converts its events to."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Person:
    """Who wrote a message."""

    id: str
    """The platform and its user id: "discord:81384788765712384". Two persons differ by this."""
    name: str
    """The display name: any script, not cleaned, may change at any time."""


@dataclass(frozen=True, slots=True)
class Address:
    """A channel on a platform, where messages come from and answers are sent to."""

    platform: str
    """The platform's name, such as "discord"."""
    chat: str
    """The platform's chat id; on Discord a thread is a chat of its own."""
    thread: str | None = None
    """A Telegram topic."""
    bot_id: str = ""
    """Which bot of the platform; empty: the first one of this installation."""

    @property
    def source(self) -> str:
        """The platform, and the bot on it where an installation has several."""
        return source_name(self.platform, self.bot_id)

    @property
    def lane(self) -> str:
        """The key within which messages are sent in order and share one rate limit."""
        return f"{self.source}:{self.chat}"

    @property
    def conversation(self) -> str:
        """The key of the conversation: a channel or a topic has one history."""
        return self.lane if self.thread is None else f"{self.lane}:{self.thread}"


def split_conversation_key(key: str) -> tuple[str, str | None]:
    """Return the lane and the thread of a conversation's key."""
    source, chat, *thread = key.split(":", 2)
    return f"{source}:{chat}", thread[0] if thread else None


def source_name(platform: str, bot_id: str) -> str:
    """Name a bot of a platform: "telegram", or "telegram@77" for one that is not the first."""
    return f"{platform}@{bot_id}" if bot_id else platform


def source_of(key: str) -> str:
    """Return the bot that a lane or a conversation belongs to, from its key."""
    return key.partition(":")[0]


class WakeReason(StrEnum):
    """Why a message is meant for the bot."""

    DM = "dm"
    MENTION = "mention"
    REPLY = "reply"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message or command without vendor types; stored in the inbox as JSON."""

    address: Address
    external_key: str
    """Unique on its platform: recognises a message that is delivered again."""
    message_id: str | None
    """The platform's id of the message, to reply to; None for an interaction."""
    author: Person
    text: str
    """Without a leading mention of the bot."""
    at: datetime
    """Aware, UTC."""
    wake: WakeReason | None
    """None: the message is observed only; it does not address the bot."""
    scopes: tuple[str, ...]
    """Where settings are looked up, narrowest first; the first is this channel."""
    author_is_bot: bool = False
    author_is_admin: bool | None = None
    """None: the platform must be asked when it matters."""
    quote: str | None = None
    """The text of the message that this one replies to."""
    interaction: str | None = None
    """What a response to a native command needs; on Discord its token."""

    @property
    def is_answered_in_public(self) -> bool:
        """Whether this is a native command that can no longer be answered to its author alone."""
        is_native_command = self.wake is WakeReason.COMMAND and self.message_id is None
        return is_native_command and self.interaction is None
