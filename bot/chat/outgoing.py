"""What the bot says: the rows of the outbox and the limits of the place they go to."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bot.chat.incoming import Address


@dataclass(frozen=True, slots=True)
class Limits:
    """What a place can do. Differences between platforms are data here, never `if platform ==`."""

    max_units: int  # the longest message, counted in `unit`
    unit: Literal["characters", "utf16"]  # Telegram counts UTF-16 units, so an emoji is two
    seconds_between_edits: float
    typing_seconds: float  # how long a typing indicator lasts; 0: there is none
    calls_per_minute: float | None = None  # messages and edits together; None: headers tell
    burst: int = 1  # how many of them may follow each other at once
    can_edit: bool = True
    can_reply: bool = True
    speaker_line: str = "**{}**"  # says who speaks where several characters answer
    # None: a message is opened with its first text, and sending it again with the same nonce is
    # harmless. A text: the platform has no such key, so a message is opened with this placeholder
    # and gets its text by edits, which may be repeated.
    placeholder: str | None = None


class OutboxOperation(StrEnum):
    SEND = "send"
    EDIT = "edit"
    DELETE = "delete"


class OutboxState(StrEnum):
    """Where an outbox row stands."""

    PENDING = "pending"
    SENDING = "sending"  # an HTTP request may be under way
    UNKNOWN = "unknown"  # it may have arrived: reconcile first
    SENT = "sent"
    DEAD = "dead"  # refused for good


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text that goes out as a file, in one request with the message that it belongs to."""

    name: str  # a plain one, which no platform has to escape
    text: str


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message for a platform; each attempt to send it passes the same value."""

    address: Address
    text: str
    nonce: str
    """Unique to this message, at most 25 characters. A platform with idempotency keys returns the
    first message when the same nonce is sent again."""
    reply_to: str | None = None
    """The platform's id of the message that is answered."""
    interaction: str | None = None
    """The token of the native command that is answered."""
    file: Attachment | None = None


@dataclass(frozen=True, slots=True)
class OutgoingPart:
    """How one part of an answer should read; the parts of a turn count from 0.

    One with a file is never opened early: it goes out whole, without a placeholder, and its text
    is one short line, for some platforms take less beside a file than alone.
    """

    part: int
    text: str
    placeholder: str | None = None  # what to open it with, if it gets its text by an edit
    file: Attachment | None = None


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An outbox row as a sender sees it."""

    id: int
    turn: str  # the turn it belongs to: with `part` the source of the nonce
    address: Address
    part: int
    op: OutboxOperation
    text: str
    reply_to: str | None  # the message that is answered
    interaction: str | None
    state: OutboxState
    attempts: int
    external_id: str | None  # for edit and delete: the message to change
    not_before: float  # Unix seconds
    file: Attachment | None = None  # that a send brings along
