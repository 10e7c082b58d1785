"""Channels of the web platform, whose messages are stored here because no vendor does."""

from datetime import datetime

from bot.chat.incoming import Address, Person
from bot.chat.outgoing import Attachment, Button, Face, Menu
from bot.value_class import value_class

WEB_PLATFORM = "web"
"""The name of the platform in addresses and in ids of people."""


@value_class
class WebChannel:
    """A channel in which the console's users chat."""

    id: str
    name: str
    look: str
    """The platform that it looks like, whose limits hold; empty: plain."""
    people: tuple[Person, ...]
    """Whom messages can be written as; at least one."""
    created_at: datetime
    locale: str | None = None
    """The language of whoever writes."""
    revision: int = 0
    """Raised by every change of a message; set by the store."""

    @property
    def address(self) -> Address:
        return Address(WEB_PLATFORM, self.id)


@value_class
class WebMessage:
    """A message in a web channel, in its current form."""

    id: str
    """Unique in its channel; that of an answer is the key of its outbox row."""
    author: Person | None
    """None: the bot."""
    text: str
    at: datetime
    face: Face | None = None
    buttons: tuple[Button, ...] = ()
    menus: tuple[Menu, ...] = ()
    reply_to: str | None = None
    """The id of the message that it replies to or, for a press, that the button stands under."""
    file: Attachment | None = None
    edited_at: datetime | None = None
    is_deleted: bool = False
    """Then it has no text any more."""
    is_note: bool = False
    """Whether it only explains something, such as why nobody answers."""
    is_copied: bool = False
    """Whether it was said elsewhere, and is in the history already."""
    press: str | None = None
    """The data of the button or menu that was pressed; such a message is not shown."""
    values: tuple[str, ...] = ()
    has_masked_token: bool = False
    position: int = 0
    """The revision of its channel that it was added by: messages are shown in this order."""
    revision: int = 0
    """The revision of its channel that it was changed by last."""

    def to_tombstone(self) -> "WebMessage":
        """Return what is left of a deleted message: no text, only the fact that it existed."""
        return WebMessage(self.id, self.author, "", self.at, is_deleted=True)

    @property
    def is_shown(self) -> bool:
        """Whether the message is visible to readers."""
        return self.press is None


def web_person(name: str) -> Person:
    """Return the person with this name; equal names are the same person."""
    return Person(f"{WEB_PLATFORM}:{name.casefold()}", name)


def inbox_key(channel_id: str, message: WebMessage) -> str:
    """Return a message's key in the inbox; message ids are only unique within a channel."""
    return f"{channel_id}:{message.id}"
