"""Outgoing messages: parts of answers, rows of the outbox, and channels' limits."""

import math
from collections.abc import Callable, Set
from dataclasses import replace
from enum import StrEnum
from typing import Literal

from bot.chat.incoming import Address
from bot.chat.rate import CallWindow
from bot.value_class import value_class


@value_class
class Limits:
    """The capabilities of a channel. Platforms differ by this data, never by `if platform ==`."""

    max_units: int
    """The longest message, counted in `unit`."""
    unit: Literal["characters", "utf16"]
    """Telegram counts UTF-16 code units, so an emoji is two."""
    seconds_between_edits: float
    typing_seconds: float
    """How long a typing indicator lasts; 0: there is none."""
    chat_calls: tuple[CallWindow, ...] = ()
    """The rate of calls in a chat, messages and edits together; empty: response headers tell it.
    Live edits leave the reserved part to the outbox."""
    bot_calls: tuple[CallWindow, ...] = ()
    """The same for all chats of the bot together."""
    route_calls: tuple[CallWindow, ...] = ()
    """The same for one kind of call in a chat, such as edits."""
    counts_typing: bool = False
    """Whether typing indicators are among `bot_calls`."""
    counts_responses: bool = True
    """Whether responses to native commands and to presses are among any of these calls."""
    has_drafts: bool = False
    """Whether a growing answer is shown as a draft, and sent when it is complete."""
    has_buttons: bool = False
    speaker_line: str = "**{}**"
    """The line that names the speaker where several characters answer."""
    shows_faces: bool = False
    """Whether the surface shows the character itself, and the text needs no such line."""
    names_only_speaker: bool = False
    """Whether that line also stands where only one character answers."""
    closes_code_blocks: bool = True
    """Whether a message that ends inside of a code block is closed, and the next one reopens it."""
    answers_each_message: bool = False
    """Whether every message gets its own answer unless a preset says otherwise, as in a pipe, which
    is read line by line."""
    shows_causes: bool = False
    """Whether readers see why an answer failed, because only the operator reads here."""
    render: Callable[[str], str] | None = None
    """Returns what readers see of a Markdown text, whose units count; None: the text as it is."""
    hides_markup: bool = False
    """Whether marks such as `**` take no units, because readers do not get them."""
    folds_thoughts: bool = False
    """Whether a part of a message can be shown folded, so that readers open it."""
    has_private_chats: bool = False
    """Whether the channel is shared and its members can have private chats with the bot."""
    opens_responses: bool = False
    """Whether a private reply is sent empty and then edited: a send of unknown outcome must not be
    repeated with its content, and an older server would show it to the whole group."""
    reaction: Callable[[str], str] | None = None
    """Returns an emoji in the platform's form for reactions, empty if it is not allowed; None: the
    platform has no reactions."""
    message_link: str = ""
    """A URL template for messages with {server}, {chat} and {message}; empty: no links."""
    has_threads: bool = False
    """Whether a thread can be opened from a message, for the rest of a long answer."""
    can_repeat_faces: bool = True
    """Whether a message with a face can be sent again like any other."""
    reports_deletions: bool = True
    """Whether the platform reports deleted messages. Otherwise an answer whose message is gone when
    it is complete, or answered again, is sent anew."""
    can_repeat_sends: bool = True
    """Whether repeated sends with the same nonce appear once. If not, a send with an unknown
    outcome must be looked up before it is repeated."""

    def units(self, text: str) -> int:
        """Return a text's length in units of `unit`."""
        if self.unit == "characters" or text.isascii():
            return len(text)
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    def limits_below_name(self, face: "Face | None") -> "Limits":
        """Return the limits of the text below its character's name line."""
        line = face.name_line if face is not None and self.shows_faces else ""
        units = len(line.encode("utf-16-le")) // 2
        return replace(self, max_units=self.max_units - units) if units else self


class OutboxOperation(StrEnum):
    SEND = "send"
    EDIT = "edit"
    DELETE = "delete"
    REACT = "react"
    """Put the row's text, an emoji, under the message it replies to; repeatable."""


class OutboxState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    """A request may be under way."""
    UNKNOWN = "unknown"
    """The request may have arrived: reconcile before sending again."""
    SENT = "sent"
    DEAD = "dead"
    """Refused for good."""


@value_class
class Face:
    """The character shown as a message's author."""

    name: str
    avatar: str | None = None
    """The address of its picture."""
    is_one_of_several: bool = False
    """Whether other characters answer in the same channel, so that readers need the name."""

    @property
    def name_line(self) -> str:
        """The line that names the character on platforms without another way."""
        return f"**{self.name}**\n" if self.is_one_of_several else ""


class ButtonStyle(StrEnum):
    """A button's appearance, on platforms with several."""

    PLAIN = "plain"
    PRIMARY = "primary"
    DANGER = "danger"


@value_class
class Button:
    """A button under a message."""

    label: str
    """In the language of its reader."""
    data: str
    """What a press of it brings back (`Pressed.data`); at most 64 bytes."""
    style: ButtonStyle = ButtonStyle.PLAIN
    row: int = 0


@value_class
class MenuOption:
    """One choice in a menu."""

    label: str
    value: str
    """What choosing it brings back (`Pressed.values`); at most 10 bytes."""
    description: str = ""
    is_chosen: bool = False


@value_class
class Menu:
    """A list of choices under a message."""

    data: str
    """What a choice brings back (`Pressed.data`); with a value, at most 64 bytes."""
    title: str
    """What to choose, in the language of its reader."""
    options: tuple[MenuOption, ...]
    """At most 25."""


@value_class
class MessageContent:
    """A message's text and other content, which each surface renders for its platform."""

    text: str
    """Markdown, as the model wrote it."""
    face: Face | None = None
    """None: the bot speaks in its own name."""
    buttons: tuple[Button, ...] = ()
    menus: tuple[Menu, ...] = ()
    thoughts: str = ""
    """What the model thought, shown folded below the text; only where `Limits.folds_thoughts`."""
    is_plain: bool = False
    """Whether it is sent as plain text, because the platform refused its formatting."""

    @property
    def named_text(self) -> str:
        """The text, prefixed with its character's name where needed."""
        return self.text if self.face is None else self.face.name_line + self.text


@value_class
class Attachment:
    """A text file sent together with its message."""

    name: str
    """A plain file name that no platform has to escape."""
    text: str


@value_class
class MessageThread:
    """A thread to open from a message, unless it exists."""

    message_id: str
    title: str


@value_class
class PrivateDelivery:
    """How one person alone gets a message: as a response that only they see, else by private chat.

    If both are refused, a line in the group tells them how to open a chat, unless it `is_quiet`.
    """

    person: str
    """Their id."""
    locale: str | None = None
    is_quiet: bool = False
    group: str = ""
    """The channel where they asked, once the message is on its way to their private chat."""
    reply_to: str | None = None
    """Their message there."""


@value_class
class OutgoingMessage:
    """One message for a platform; every attempt to send it uses the same value."""

    address: Address
    content: MessageContent
    nonce: str
    """Unique to this message, at most 25 characters. A platform with idempotency keys returns the
    first message when the same nonce is sent again."""
    reply_to: str | None = None
    """The platform's id of the message that is answered."""
    interaction: str | None = None
    """The token of the native command that is answered."""
    file: Attachment | None = None
    thread: MessageThread | None = None
    """Where it is sent, if the platform allows a thread there; else it is sent to the channel."""
    private_to: str | None = None
    """The id of the only person who may see it: it must not be sent to the whole channel."""


@value_class
class MessageSearch:
    """How to find a message whose outcome is unknown."""

    after: str | None
    """Only newer messages than this one are considered."""
    known: Set[str]
    """The ids of messages that are accounted for."""
    duplicate_of: str | None = None
    """The message that it became when it was sent again. Then another copy is looked for, which may
    be older than known messages; nothing else of the bot's may be on its way to the chat."""


@value_class
class AnswerThread:
    """The thread for the rest of a long answer."""

    first_part: str
    """The name of the part (`InboxMessage.part_name`) whose message it is opened from."""
    title: str
    """In the language of who asked."""


@value_class
class OutgoingPart:
    """The final text of one part of an answer; the parts of a turn are numbered from 0.

    A part with a file is never opened early: it is sent as a whole, and its text is one short line,
    because some platforms limit the text beside a file.
    """

    part: int
    content: MessageContent
    file: Attachment | None = None
    is_response: bool = False
    """Whether it takes the place of the message whose button was pressed, or of the response to a
    native command; where no part says so, the first one is the response to a native command."""
    is_shown: bool = False
    """Whether the message that it was opened as shows this already, and needs no edit."""
    thread: AnswerThread | None = None
    """The thread that it is sent to; it is never opened early either."""
    is_private: bool = False
    """Whether only the author of what it replies to may read it."""
    reader: str = ""
    """The id of another person who alone may read it instead."""
    is_quiet: bool = False
    """Whether nothing is said in the group if they cannot be reached alone."""


FILE_PARTS = 5_000
"""Parts from here on are files that go with an answer: no other message takes their place."""
REACTION_PART = 5_999
"""The part whose text is an emoji, put as a reaction under the message being answered."""
THREAD_PARTS = 6_000
"""Parts from here on stand in a thread that was opened from an answer; as with files, no other
message takes their place."""
NOTICE_PARTS = 1_000_000
"""Parts from here on say that the service is busy; they are dropped if an answer waits behind."""


@value_class
class OutboxRow:
    """An outbox row as a sender sees it."""

    id: int
    turn: str
    """The name of the turn; the nonce is derived from it and `part`."""
    address: Address
    part: int
    op: OutboxOperation
    content: MessageContent
    reply_to: str | None
    interaction: str | None
    state: OutboxState
    attempts: int
    external_id: str | None
    """For an edit or a deletion: the platform's id of the message to change. For a message that is
    sent because such an edit was refused: of the one that it replaces."""
    not_before: float
    file: Attachment | None = None
    thread: AnswerThread | None = None
    send_before: float = math.inf
    """Deadline by `Clock.monotonic`: no request begins after it."""
    private: PrivateDelivery | None = None
    """None: everybody in the channel may read it."""
    problem: str | None = None
    """Why the row cannot be read; then nothing of it is sent."""
