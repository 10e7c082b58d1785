"""The state of an installation: processes, queues, models, failures. Times are Unix seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from bot.chat.incoming import parse_address
from bot.value_class import value_class


@value_class
class QueueState:
    """The amount of waiting work."""

    conversation_count: int
    """Conversations with unanswered messages, including those being answered."""
    oldest_received_at: float | None
    answered_now_count: int
    """Conversations that a process is answering now."""
    unsent_chat_count: int
    """Chats with unsent messages."""
    unsent_message_count: int


@value_class
class AnsweredChat:
    """A conversation that has answers."""

    channel: str
    """The key of the conversation."""
    answers: int
    """The number of answers, without those whose texts were deleted."""
    newest: int
    """The number of the newest answer."""
    newest_at: float
    preset: str | None
    """The preset that answered last."""


@value_class
class KnownSession:
    """A session: the part of a conversation between two /new commands."""

    number: int
    turns: int
    began_at: float
    ended_at: float


@value_class
class StoredChatSetting:
    """A setting of a chat, with the person who chose it and the time."""

    scope: str
    """The server, channel or thread where it applies."""
    key: str
    value: str
    by: str
    at: float


@value_class
class ModelHealth:
    """The results of a model's newest requests."""

    model: str
    paused: bool
    """Whether its circuit breaker is open, so that one request at a time tests the model."""
    requests: int
    """The number of remembered recent requests, of which `failed` failed."""
    failed: int
    provider: str = ""
    process: str = ""
    """The process that reported this; empty: the process that answers this query."""


@value_class
class ModelInMemory:
    """A model loaded on this machine."""

    model: str
    slots: int
    busy: int
    """Slots that are generating an answer now."""
    held: int
    """Slots whose cache contains the history of a conversation."""
    waiting: int
    """Requests in its queue."""
    provider: str = ""
    process: str = ""


@value_class
class BlockedCalls:
    """API calls that a platform currently rejects because of a rate limit."""

    scope: str
    """The scope of the limit: a bot, a chat, or one kind of call in a chat."""
    seconds_left: float
    """How many more seconds the platform rejects them."""


@value_class
class LogEntry:
    at: str
    """In ISO 8601, UTC."""
    level: str
    event: str
    details: Mapping[str, str]


@value_class
class FailedMessage:
    """A message whose processing logged warnings or errors, with its log lines."""

    error_id: str
    """The id shown to the message's author."""
    turn: str
    steps: tuple[LogEntry, ...]

    @property
    def newest_failure(self) -> LogEntry:
        """The last warning or error, or the last step if there is none."""
        failed_steps = (one for one in reversed(self.steps) if one.level not in {"debug", "info"})
        return next(failed_steps, self.steps[-1])


@value_class
class ProcessReport:
    """The state that a process reports for the console of other processes."""

    errors: tuple[FailedMessage, ...] = ()
    """Failed messages, most recent failures first."""
    health: tuple[ModelHealth, ...] = ()
    models: tuple[ModelInMemory, ...] = ()
    withheld: int = 0
    """Answers that checks have withheld since the process started."""


@value_class
class PartDelivery:
    """A part of an answer that is being delivered."""

    number: int
    operation: str
    state: str
    attempt_count: int
    error: str | None


@value_class
class MessageTrace:
    """The database's record of processing one message."""

    conversation: str
    received_at: float | None
    """In Unix seconds; None: the message was deleted in the meantime."""
    is_message_processed: bool
    crash_count: int
    parts: Sequence[PartDelivery]


@value_class
class Node:
    """A process of the installation."""

    owner: str
    """The name under which the process holds leases."""
    roles: str
    """The process's roles, separated by commas."""
    version: str
    uptime_seconds: float
    """How long ago it started."""
    seen_seconds: float
    """The age of its last report; if that is far above `HEARTBEAT_SECONDS`, it is probably dead."""
    leases: tuple[str, ...]
    """The exclusive roles that the process holds now."""
    conversations: int
    """The number of conversations it is answering."""

    @property
    def is_silent(self) -> bool:
        """Whether the process has missed several reports."""
        return self.seen_seconds > 4 * HEARTBEAT_SECONDS


HEARTBEAT_SECONDS = 10.0


@value_class
class BackgroundWork:
    """Waiting and running background work of one kind."""

    name: str
    count: int
    oldest_seconds: float | None
    """The age of the oldest item; None: unknown, or nothing is waiting."""


@value_class
class RoleHolder:
    """A role for one process at a time, and the process that currently holds it, if any."""

    role: str
    owner: str
    held_seconds: float
    lease_seconds: float
    """The remaining seconds of the lease; negative: no process holds the role."""


EVERYWHERE = "all"
"""The scope of a pause of the whole installation."""


@value_class
class AnswerPause:
    """A pause: until it ends, messages in its scope are not answered."""

    scope: str
    """`EVERYWHERE`, or the key of a platform, bot, chat or topic, as in `Address`."""
    by: str
    at: float

    def pauses(self, conversation: str) -> bool:
        """Return whether a conversation, given by its key, is in the scope."""
        address = parse_address(conversation)
        scopes = (EVERYWHERE, address.platform, address.source, address.lane, address.channel)
        return self.scope in scopes


@value_class
class DeadLetter:
    """A received message, or a part of an answer, that was set aside after repeated failures."""

    name: str
    """"in-12" for a received message, "out-7" for one that was not delivered."""
    place: str
    """The key of the conversation or lane."""
    kind: str
    """The kind of received event (said, edited, ...) or outgoing operation (send, edit, ...)."""
    at: float | None
    """When it was received or last attempted, in Unix seconds."""
    reason: str


@value_class
class DatabaseRestore:
    """A restore of the database from a backup, and the deletions that the backup lacks."""

    answered_until: float
    """When the lost database was last used to answer people, in Unix seconds."""
    forgotten_message_ids: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a conversation and the platform's id of a message that was forgotten in it."""
    deletion_times_by_conversation: Mapping[str, float] = field(default_factory=dict)
    """The Unix time up to which all messages were forgotten, by conversation key."""
