"""Channels of the web platform, whose messages only Troupe stores."""

from datetime import datetime

from bot.chat.incoming import Address, Person
from bot.chat.outgoing import Attachment, Button, Face, Menu
from bot.value_class import value_class

WEB_PLATFORM = "web"
"""The platform's name in addresses and people's ids."""


@value_class
class WebChannel:
    """A channel in which users of the console chat."""

    id: str
    name: str
    look: str
    """The platform whose appearance and limits it imitates; empty: none."""
    people: tuple[Person, ...]
    """The people you can write messages as; at least one."""
    created_at: datetime
    locale: str | None = None
    """The language of the people."""
    revision: int = 0
    """Incremented with every change of a message; set by the store."""

    @property
    def address(self) -> Address:
        return Address(WEB_PLATFORM, self.id)


@value_class
class WebMessage:
    """The current state of a message in a web channel."""

    id: str
    """Unique in its channel; for an answer, the key of its outbox row."""
    author: Person | None
    """None: the bot."""
    text: str
    at: datetime
    face: Face | None = None
    buttons: tuple[Button, ...] = ()
    menus: tuple[Menu, ...] = ()
    reply_to: str | None = None
    """The id of the message replied to or, for a button press, of the message with the button."""
    file: Attachment | None = None
    edited_at: datetime | None = None
    is_deleted: bool = False
    """Whether it was deleted; the text is then empty."""
    is_note: bool = False
    """Whether the web page itself wrote it to explain something, such as a missing answer."""
    is_copied: bool = False
    """Whether it was copied from another channel and is already in the history."""
    press: str | None = None
    """The data of a pressed button or menu; such a message is not shown. None: no press."""
    values: tuple[str, ...] = ()
    has_masked_token: bool = False
    position: int = 0
    """The channel's revision when it was added; messages are shown in this order."""
    revision: int = 0
    """The channel's revision when it was last changed."""

    def to_tombstone(self) -> "WebMessage":
        """Return what remains after this message is deleted: its id, author and time."""
        return WebMessage(self.id, self.author, "", self.at, is_deleted=True)

    @property
    def is_shown(self) -> bool:
        """Whether the message is visible to readers."""
        return self.press is None


def web_person(name: str) -> Person:
    """Return the person with this name, ignoring case."""
    return Person(f"{WEB_PLATFORM}:{name.casefold()}", name)


def inbox_key(channel_id: str, message: WebMessage) -> str:
    """Return a message's inbox key, which includes the channel to be unique across channels."""
    return f"{channel_id}:{message.id}"
