"""What somebody said, and where: the value that every platform turns its events into."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who writes. Identity is `id`; `name` is only for reading and may change."""

    id: str  # the platform's user id with its platform: "discord:81384788765712384"
    name: str  # as the platform displays it, any script; not cleaned


@dataclass(frozen=True, slots=True)
class Address:
    """A place on a platform that messages come from and answers go to."""

    platform: str  # "discord", "telegram", "terminal"
    chat: str  # the platform's chat id; on Discord a thread is a chat of its own
    thread: str | None = None  # a Telegram topic

    @property
    def lane(self) -> str:
        """The key within which answers keep their order and share one pace."""
        return f"{self.platform}:{self.chat}"

    @property
    def conversation(self) -> str:
        """The key of the history that is kept here; the default scope is the channel or topic."""
        return self.lane if self.thread is None else f"{self.lane}:{self.thread}"


class WakeReason(StrEnum):
    """Why a message is meant for the bot."""

    DM = "dm"
    MENTION = "mention"
    REPLY = "reply"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message or command, free of vendor types; what intake stores and the walk reads."""

    address: Address
    external_key: str  # unique on its platform: what a redelivery is recognised by
    message_id: str | None  # the platform's id of the message, to reply to; None for an interaction
    author: Person
    text: str  # a mention of the bot at its beginning is already taken off
    at: datetime  # aware, UTC
    wake: WakeReason | None  # None: said near the bot, not to it
    scopes: tuple[
        str, ...
    ]  # where settings are looked up, narrowest first; scopes[0] is this place
    author_is_bot: bool = False
    author_is_admin: bool | None = None  # None: the platform must be asked when it matters
    quote: str | None = None  # text of the message this one replies to
    interaction: str | None = None  # what a reply to a native command needs (Discord: its token)
