"""What the processes of an installation are doing, for people who operate it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueState:
    """What waits to be done."""

    conversations: int
    """With unanswered messages that wait or are being answered."""
    oldest_since: float | None
    """Since when the oldest of them waits, in Unix seconds."""
    held: int
    """How many of them a process holds now."""
    lanes: int
    """Chats with messages that are not sent yet."""
    unsent: int
    """Those messages."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A role that only one process has at a time."""

    role: str
    owner: str
    until: float
    """In Unix seconds; in the past: nobody has it."""


@dataclass(frozen=True, slots=True)
class KnownChannel:
    """A conversation in which somebody was answered."""

    conversation: str
    answers: int
    """Of which something is still kept."""
    newest: int
    """The number of the newest one."""
    newest_at: float
    preset: str | None
    """Which answered last."""


@dataclass(frozen=True, slots=True)
class MadeSetting:
    """A setting that somebody made in a chat."""

    scope: str
    """A server, a channel or a thread."""
    key: str
    value: str
    by: str
    at: float
