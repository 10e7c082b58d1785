"""Whose messages share one history in a channel."""

from dataclasses import dataclass
from enum import StrEnum


class HistoryScope(StrEnum):
    """What `/settings scope` chooses; the values are stored."""

    SHARED = "shared"
    """Everybody in a channel; a thread or a topic is a channel of its own."""
    USER = "user"
    """Each person alone."""
    THREAD = "thread"
    """Everybody in a thread or a topic, whatever was chosen for the channel around it."""
    REPLIES = "replies"
    """Each chain of replies; a second reply to the same message begins a branch."""


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Where a message of the platform stands in the histories of its channel."""

    conversation: str
    turn: int | None
    """The id of its turn; None: it is a part of an answer that is not finished."""
    is_last: bool
    """Whether nothing follows it, and nothing waits to: a reply goes on from here."""
