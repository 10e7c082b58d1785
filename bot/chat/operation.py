"""The state of an installation: processes, queues, models, failures. Times are Unix seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from bot.chat.incoming import parse_address
from bot.value_class import value_class


@value_class
class QueueState:
    """The amount of waiting work."""

    conversations: int
    """With unanswered messages that wait or are being answered."""
    oldest_since: float | None
    held: int
    """How many of them a process holds now."""
    lanes: int
    """Chats with messages that are not sent yet."""
    unsent: int


@value_class
class KnownChannel:
    """A conversation that has answers."""

    channel: str
    """The key of the conversation."""
    answers: int
    """Of which something is still kept."""
    newest: int
    """The number of the newest one."""
    newest_at: float
    preset: str | None
    """Which answered last."""


@value_class
class KnownSession:
    """The part of a conversation between two /new commands."""

    number: int
    turns: int
    began_at: float
    ended_at: float


@value_class
class MadeSetting:
    """A setting made in a chat."""

    scope: str
    """A server, a channel or a thread."""
    key: str
    value: str
    by: str
    at: float


@value_class
class ModelHealth:
    """The results of a model's newest requests."""

    model: str
    paused: bool
    """Its circuit breaker is open: one request at a time tries it."""
    requests: int
    """The newest ones that are remembered."""
    failed: int
    provider: str = ""
    process: str = ""
    """Which process; empty: the one that answers."""


@value_class
class ModelInMemory:
    """A model loaded on this machine."""

    model: str
    slots: int
    busy: int
    """Slots in which an answer is generated now."""
    held: int
    """Slots with the history of a conversation."""
    waiting: int
    """Requests in its queue."""
    provider: str = ""
    process: str = ""


@value_class
class RefusedCalls:
    """Calls that a platform currently refuses."""

    scope: str
    """A kind of call in a chat, a chat, or a bot."""
    seconds: float
    """How long still."""


@value_class
class LoggedStep:
    at: str
    """In ISO 8601, UTC."""
    level: str
    event: str
    details: Mapping[str, str]


@value_class
class FailedMessage:
    """A message that logged warnings or errors, with its log."""

    error_id: str
    """What its author was told."""
    turn: str
    steps: tuple[LoggedStep, ...]

    @property
    def newest_failure(self) -> LoggedStep:
        """The last warning or error, or else the last step."""
        failed = (one for one in reversed(self.steps) if one.level not in {"debug", "info"})
        return next(failed, self.steps[-1])


@value_class
class ProcessReport:
    """The report that a process sends to the others."""

    errors: tuple[FailedMessage, ...] = ()
    """Those with the newest failures first."""
    health: tuple[ModelHealth, ...] = ()
    models: tuple[ModelInMemory, ...] = ()


@value_class
class DeliveredPart:
    """A part of an answer that is being delivered."""

    part: int
    op: str
    state: str
    attempts: int
    error: str | None


@value_class
class MessageTrace:
    """The database's record of processing one message."""

    received_at: float | None
    """In Unix seconds; None: it was deleted since."""
    is_done: bool
    crashes: int
    parts: Sequence[DeliveredPart]


@value_class
class Node:
    """A process of the installation."""

    owner: str
    """The name that it holds leases under."""
    roles: str
    """Separated by commas."""
    version: str
    started_seconds: float
    """How long ago it started."""
    seen_seconds: float
    """The age of its last report; far above `HEARTBEAT_SECONDS`, the process is dead."""
    leases: tuple[str, ...]
    """The exclusive roles that it holds now."""
    conversations: int
    """How many it is answering."""

    @property
    def is_silent(self) -> bool:
        """Whether the process has missed several reports."""
        return self.seen_seconds > 4 * HEARTBEAT_SECONDS


HEARTBEAT_SECONDS = 10.0


@value_class
class BackgroundWork:
    """One kind of background work that waits or runs."""

    name: str
    count: int
    oldest_seconds: float | None
    """The age of the oldest; None: nothing waits, or it is not known."""


@value_class
class HeldJob:
    """A role that only one process holds at a time, and since when."""

    role: str
    owner: str
    held_seconds: float
    lease_seconds: float
    """What is left of its lease; negative: nobody has it."""


EVERYWHERE = "all"
"""The scope of a pause of the whole installation."""


@value_class
class Pause:
    """A pause: from its start on, nothing in its scope is answered."""

    scope: str
    """`EVERYWHERE`, a platform, one of its bots, a chat or a topic, as keys spell them."""
    by: str
    at: float

    def covers(self, conversation: str) -> bool:
        """Return whether a conversation, given by its key, is in the scope."""
        address = parse_address(conversation)
        scopes = (EVERYWHERE, address.platform, address.source, address.lane, address.channel)
        return self.scope in scopes


@value_class
class DeadLetter:
    """A received message or a part of an answer that was set aside after repeated failures."""

    name: str
    """"in-12" for a received message, "out-7" for one that was not delivered."""
    place: str
    """The conversation or the lane."""
    kind: str
    """What was received (said, edited, ...), or what was to be done (send, edit, delete)."""
    at: float | None
    """When it was received, or was last tried; in Unix seconds."""
    reason: str


@value_class
class Restore:
    """The database was restored from a backup."""

    answered_until: float
    """When the lost database last answered people, in Unix seconds."""
    forgotten: frozenset[tuple[str, str]] = frozenset()
    """Conversations and the platform's ids of messages that were forgotten in them."""
    forgotten_until: Mapping[str, float] = field(default_factory=dict)
    """Conversations of which everything was forgotten, and until when."""
