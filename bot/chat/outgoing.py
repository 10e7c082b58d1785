"""Outgoing messages: parts of answers, outbox rows, and what a channel supports."""

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
    """The capabilities of a channel, so that other code does not depend on the platform."""

    max_units: int
    """The maximum length of a message, counted in `unit`."""
    unit: Literal["characters", "utf16"]
    """Telegram counts UTF-16 code units, so an emoji is two."""
    seconds_between_edits: float
    typing_seconds: float
    """How long a typing indicator stays visible; 0: there is none."""
    chat_call_windows: tuple[CallWindow, ...] = ()
    """Rate limit of API calls in a chat, messages and edits together; empty: learned from headers.
    Live edits leave the reserved calls to the outbox."""
    bot_call_windows: tuple[CallWindow, ...] = ()
    """Rate limit of API calls in all chats of the bot together."""
    route_call_windows: tuple[CallWindow, ...] = ()
    """Rate limit of one kind of API call in a chat, such as edits."""
    typing_counts_as_call: bool = False
    """Whether typing indicators count as `bot_call_windows`."""
    responses_count_as_calls: bool = True
    """Whether responses to native commands and button presses count against these limits."""
    has_drafts: bool = False
    """Whether an unfinished answer is shown as a draft and sent once it is complete."""
    has_buttons: bool = False
    name_line_format: str = "**{}**"
    """The format of the line with the character's name, used where several characters answer."""
    shows_faces: bool = False
    """Whether messages show the character as author, so that no name line is needed."""
    always_shows_name: bool = False
    """Whether `name_line_format` is added even where only one character answers."""
    reopens_code_blocks: bool = True
    """Whether a code block split over two messages is closed in one and reopened in the next."""
    answers_each_message: bool = False
    """Whether, by default, every message gets its own answer instead of one answer for several;
    true for a pipe, which is read line by line."""
    shows_error_causes: bool = False
    """Whether error messages include the technical cause, because only the operator reads them."""
    to_visible_text: Callable[[str], str] | None = None
    """Converts Markdown to the visible text, whose units are counted; None: it is not rendered."""
    hides_markup: bool = False
    """Whether marks such as `**` do not count as units, because they are not sent."""
    folds_thoughts: bool = False
    """Whether a section of a message can be collapsed until a reader opens it."""
    has_private_chats: bool = False
    """Whether this is a group whose members can open private chats with the bot."""
    fills_private_replies_by_edit: bool = False
    """Whether a private reply is sent empty and then edited. A send with unknown outcome must not
    be repeated with its content, because an older server would show it to the whole group."""
    convert_reaction: Callable[[str], str] | None = None
    """Converts an emoji to the platform's reaction form, or to "" if it is not allowed; None: the
    platform has no reactions."""
    message_link_template: str = ""
    """The URL template of a message, with {server}, {chat} and {message}; empty: no links."""
    has_threads: bool = False
    """Whether a thread can be opened from a message, to send the rest of a long answer there."""
    can_retry_with_face: bool = True
    """Whether a message with a face can safely be sent again with the same nonce."""
    reports_deletions: bool = True
    """Whether the platform reports deleted messages. If not, an answer whose message has vanished
    when it is completed or replaced is sent as a new message."""
    deduplicates_sends: bool = True
    """Whether sending twice with the same nonce creates one message. If not, a send with unknown
    outcome must be looked up before it is repeated."""

    def measure(self, text: str) -> int:
        """Return the length of a text, counted in `unit`."""
        if self.unit == "characters" or text.isascii():
            return len(text)
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    def without_name_line(self, face: "Face | None") -> "Limits":
        """Return limits minus the length of the line with the character's name, if it is sent."""
        name_line = face.name_line if face is not None and self.shows_faces else ""
        line_units = len(name_line.encode("utf-16-le")) // 2
        return replace(self, max_units=self.max_units - line_units) if line_units else self


class OutboxOperation(StrEnum):
    SEND = "send"
    EDIT = "edit"
    DELETE = "delete"
    REACT = "react"
    """React with the row's text, an emoji, to the message it replies to. Safe to repeat."""


class OutboxState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    """A request may be in progress."""
    UNKNOWN = "unknown"
    """The request may have succeeded; look the message up before sending it again."""
    SENT = "sent"
    DEAD = "dead"
    """Refused permanently."""


@value_class
class Face:
    """A character's name and picture, shown as the author of a message."""

    name: str
    avatar: str | None = None
    """The URL of the picture."""
    is_one_of_several: bool = False
    """Whether several characters answer in the channel, so that the name must be shown."""

    @property
    def name_line(self) -> str:
        """The line with the character's name, for platforms that cannot show another author."""
        return f"**{self.name}**\n" if self.is_one_of_several else ""


class ButtonStyle(StrEnum):
    """A button's appearance, on platforms with several styles."""

    PLAIN = "plain"
    PRIMARY = "primary"
    DANGER = "danger"


@value_class
class Button:
    """A button under a message."""

    label: str
    """In the reader's language."""
    data: str
    """Returned as `ButtonPress.data` when the button is pressed; at most 64 bytes."""
    style: ButtonStyle = ButtonStyle.PLAIN
    row: int = 0


@value_class
class MenuOption:
    """One choice in a menu."""

    label: str
    value: str
    """Returned in `ButtonPress.values` when the option is chosen; at most 10 bytes."""
    description: str = ""
    is_chosen: bool = False


@value_class
class Menu:
    """A list of choices under a message."""

    data: str
    """Returned as `ButtonPress.data` when an option is chosen; at most 64 bytes with its value."""
    title: str
    """The placeholder that says what to choose, in the reader's language."""
    options: tuple[MenuOption, ...]
    """At most 25."""


@value_class
class MessageContent:
    """The content of a message, which each surface renders for its platform."""

    text: str
    """Markdown, as the model wrote it."""
    face: Face | None = None
    """None: the bot speaks in its own name."""
    buttons: tuple[Button, ...] = ()
    menus: tuple[Menu, ...] = ()
    thoughts: str = ""
    """The model's reasoning, shown collapsed below the text where `Limits.folds_thoughts`."""
    is_plain: bool = False
    """Whether it is sent as plain text because the platform rejected the formatting."""

    @property
    def text_with_name_line(self) -> str:
        """The text, with the character's name line before it if several characters answer."""
        return self.text if self.face is None else self.face.name_line + self.text


@value_class
class Attachment:
    """A text file that is sent with a message."""

    name: str
    """A file name without characters that a platform would escape."""
    text: str


@value_class
class MessageThread:
    """A thread that starts at a message. It is opened if it does not exist."""

    message_id: str
    title: str


@value_class
class PrivateDelivery:
    """The delivery of a message that only one person can read.

    The message is a response that only this person sees or, if that fails, a message in a private
    chat. If both fail, the group gets a hint on how to open a private chat, unless `is_quiet`.
    """

    person: str
    """The person's id."""
    locale: str | None = None
    is_quiet: bool = False
    group: str = ""
    """The channel where they asked; set once the message is redirected to a private chat."""
    reply_to: str | None = None
    """The id of their message in that channel."""


@value_class
class OutgoingMessage:
    """A message to send; every attempt to send it uses exactly this value."""

    address: Address
    content: MessageContent
    nonce: str
    """Unique for this message, at most 25 characters. A platform with idempotency keys returns the
    existing message when the same nonce is sent again."""
    reply_to: str | None = None
    """The platform's id of the message being answered."""
    interaction: str | None = None
    """The token of the native command being answered."""
    file: Attachment | None = None
    thread: MessageThread | None = None
    """The thread to send it to; without one, or if it cannot be opened, it goes to the channel."""
    private_to: str | None = None
    """The id of the only person who may see it; None: the whole channel may."""


@value_class
class MessageSearch:
    """How to find out whether a message was sent, after a request whose outcome is unknown."""

    after: str | None
    """The id of a message; only newer messages are considered."""
    excluded_ids: Set[str]
    """The ids of other messages, which are not the one that is searched for."""
    copy_id: str | None = None
    """The id of the copy if the message was sent again; then the first one is searched for, even if
    it is older than `excluded_ids`. No other message of the bot may be in flight to the chat."""


@value_class
class AnswerThread:
    """The thread that receives the rest of a long answer."""

    first_part: str
    """The name of the part (`InboxMessage.part_name`) from whose message it is opened."""
    title: str
    """In the asker's language."""


@value_class
class OutgoingPart:
    """The final text of one part of an answer. Parts are numbered from 0.

    A part with a file is sent only when it is complete. Its text is one short line, because some
    platforms limit the text that is sent with a file.
    """

    number: int
    content: MessageContent
    file: Attachment | None = None
    is_response: bool = False
    """Whether it replaces the message whose button was pressed, or is the response to a native
    command; if no part is marked, the first one is the response to the native command."""
    is_already_shown: bool = False
    """Whether the message sent during generation already shows this content and needs no edit."""
    thread: AnswerThread | None = None
    """The thread to send it to; such a part is also sent only when it is complete."""
    private_delivery: PrivateDelivery | None = None
    """The only person who may read it; None: everybody in the channel may."""


FIRST_FILE_PART = 5_000
"""Parts from this number on are files of an answer, never replaced by another message."""
REACTION_PART = 5_999
"""The part whose text is an emoji to react with to the message being answered."""
FIRST_THREAD_PART = 6_000
"""Parts from this number on are in a thread that was opened from an answer; like files, they are
never replaced by another message."""
FIRST_NOTICE_PART = 1_000_000
"""Parts from this number on say that the service is busy; an answer queued later drops them."""


@value_class
class OutboxRow:
    """A row of the outbox: a message to send, edit or delete, and the state of that operation."""

    id: int
    turn_name: str
    """The name of the turn; the nonce is derived from this name and `part_number`."""
    address: Address
    part_number: int
    operation: OutboxOperation
    content: MessageContent
    reply_to: str | None
    interaction: str | None
    state: OutboxState
    attempt_count: int
    external_id: str | None
    """For an edit or deletion: the platform's id of the message to change. For a new message that
    replaces one that could not be edited: the id of the replaced message."""
    file: Attachment | None = None
    thread: AnswerThread | None = None
    send_deadline: float = math.inf
    """The `Clock.monotonic` time after which no request may be started."""
    private_delivery: PrivateDelivery | None = None
    """The only person who may read it; None: everybody in the channel may."""
    decode_error: str | None = None
    """Why the row cannot be decoded, so that it is not sent; None: it was decoded."""
