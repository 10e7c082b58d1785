"""Handle cases without a normal answer: failures, pauses, restores, full queues."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from bot.chat.command import parse_command
from bot.chat.incoming import Incoming, IncomingMessage, parse_address
from bot.chat.operation import AnswerPause, DatabaseRestore
from bot.chat.outgoing import MessageContent, OutgoingMessage
from bot.chat.session import InboxMessage
from bot.errors import BackendError, Fenced, PlatformError, StoreError
from bot.ports import Clock, PrivateChats, Surface
from bot.prompting.presets.preset import Preset
from bot.replying.live_reply import LiveReplies
from bot.runtime.tasks import cancel_and_wait
from bot.storage.conversations import Conversations
from bot.storage.operation import PauseStore
from bot.telemetry.metrics import LIMITED_MESSAGES
from bot.texts.text import Text, join_texts, supported_language, translatable, translate
from bot.turn.limits.rate_limits import NoticeLimiter
from bot.turn.message_groups import MessageGroup
from bot.turn.signals import ArrivalSignals
from bot.value_class import value_class

_SECONDS_BETWEEN_NOTICES = 6 * 3600.0
_SEND_TIMEOUT_SECONDS = 5.0
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class OperatorNotices:
    """Sends private messages to operators, about the same problem at most every six hours."""

    notice_limiter: NoticeLimiter
    operators: Sequence[str] = ()
    """The ids of the people in `TROUPE_ADMINS`."""
    surfaces: Mapping[str, Surface] = field(default_factory=dict)
    """The bots' surfaces, by `Address.source`; sending must not wait for rate limits."""
    private_chats: Mapping[str, PrivateChats] = field(default_factory=dict)
    """Access to private chats, by `Address.source`, for the platforms that have them."""

    async def notify_about_fallback(
        self, preset: Preset, failure: BackendError, message: IncomingMessage
    ) -> Text | None:
        """Tell operators that a fallback model answers, or return a note for the chat if due."""
        text = translatable(
            "⚠ For the admins here: the model of {preset} failed (“{reason}”), so another model is"
            " answering. Details: /settings why",
            preset=preset.name,
            reason=failure.notice,
        )
        name = f"fallback:{preset.provider}/{preset.model}"
        if self._operators_to_notify(message):
            is_notice_due = await self.notice_limiter.is_due(name, _SECONDS_BETWEEN_NOTICES)
            if not is_notice_due or await self._send_to_operators(message, text):
                return None
        name = f"{name}:{message.address.conversation}"
        return text if await self.notice_limiter.is_due(name, _SECONDS_BETWEEN_NOTICES) else None

    def _operators_to_notify(self, message: IncomingMessage) -> list[str]:
        if message.address.source not in self.private_chats:
            return []
        if message.is_private and message.author.id in self.operators:
            return []  # the note can be shown under the answer
        return [one for one in self.operators if one.startswith(f"{message.address.platform}:")]

    async def _send_to_operators(self, incoming: IncomingMessage, note: Text) -> bool:
        note_with_channel = join_texts([incoming.address.channel, note], ": ")
        text = translate(note_with_channel, supported_language(incoming.locale))
        source, was_sent = incoming.address.source, False
        for person in self._operators_to_notify(incoming):
            try:
                async with asyncio.timeout(_SEND_TIMEOUT_SECONDS):
                    address = await self.private_chats[source].find_private_chat(person)
                    nonce = secrets.token_hex(12)
                    message = OutgoingMessage(address, MessageContent(text), nonce)
                    await self.surfaces[source].send(message)
            except (PlatformError, TimeoutError) as error:
                _log.warning("operator_not_notified", person=person, reason=str(error))
            else:
                was_sent = True
        return was_sent


@dataclass(eq=False)
class CurrentPauses:
    """Tells whether answers are paused, as of the last `refresh`."""

    pauses: PauseStore

    def __post_init__(self) -> None:
        self._current_pauses: Sequence[AnswerPause] = ()

    def covers(self, conversation: str) -> bool:
        """Return whether the conversation with this key is paused."""
        return any(one.pauses(conversation) for one in self._current_pauses)

    async def refresh(self) -> None:
        """Read the pauses from the database; raises `StoreError`."""
        previous_pauses, self._current_pauses = self._current_pauses, await self.pauses.list_all()
        scopes = [one.scope for one in self._current_pauses]
        if set(self._current_pauses) - set(previous_pauses):
            _log.info("answering_paused", scopes=scopes)
        if set(previous_pauses) - set(self._current_pauses):
            _log.info("answering_resumed", paused=scopes)


@dataclass(eq=False)
class PreRestoreFilter:
    """Recognizes messages that were handled or forgotten before the database was restored."""

    read_last_restore: Callable[[], Awaitable[DatabaseRestore | None]]

    def __post_init__(self) -> None:
        self._newest_restore: DatabaseRestore | None = None

    async def load_newest_restore(self) -> None:
        """Load the most recent restore, if any; raises `StoreError`."""
        restore = await self.read_last_restore()
        if restore is not None:  # a channel's histories share its messages
            message_ids = {
                (parse_address(key).channel, one) for key, one in restore.forgotten_message_ids
            }
            restore = replace(restore, forgotten_message_ids=frozenset(message_ids))
        self._newest_restore = restore

    def is_context_only(self, message: InboxMessage) -> bool:
        """Return whether the message may have been answered before the restore."""
        restore = self._newest_restore
        return restore is not None and message.incoming.at.timestamp() <= restore.answered_until

    def is_obsolete(self, message: IncomingMessage) -> bool:
        """Return whether the message was handled or forgotten before the restore."""
        restore = self._newest_restore
        if restore is None or (sent_at := message.at.timestamp()) > restore.answered_until:
            return False
        if message.wake is not None and message.text.startswith("/"):
            return True  # a command must not run twice
        channel, key = message.address.channel, message.address.conversation
        forgotten_until = max(
            restore.deletion_times_by_conversation.get(one, 0.0) for one in (key, channel)
        )
        return sent_at <= forgotten_until or self._is_forgotten(channel, message.message_id)

    def filter_event(self, event: Incoming) -> Incoming | None:
        """Blank the quote of a forgotten message; return None for a handled or forgotten event."""
        if self._newest_restore is None or not isinstance(event, IncomingMessage):
            return event
        if self.is_obsolete(event):
            return None
        quote = event.quote
        if quote is not None and self._is_forgotten(event.address.channel, quote.message_id):
            quote = replace(quote, text="", attachments=())
        return replace(event, quote=quote)

    def _is_forgotten(self, channel: str, message_id: str | None) -> bool:
        restore = self._newest_restore
        return restore is not None and (channel, message_id or "") in restore.forgotten_message_ids


_COUNT_DELAY_SECONDS = 1.0
"""The delay before waiting messages are counted, so that a burst is counted once."""
BUSY_NOTICE = translatable(
    "⏳ I am busy: too many messages are waiting here. I have read the newest ones, but will not"
    " answer them. Please write again later."
)
_MAX_REFUSED_AT_ONCE = 100
"""The maximum number of messages over the limit that one query reads."""


@value_class
class QueueLimit:
    """Refuses messages when too many wait in a conversation during an answer."""

    conversations: Conversations
    arrivals: ArrivalSignals
    replies: LiveReplies
    clock: Clock
    max_waiting_messages: int
    """The maximum number of waiting messages in a conversation."""

    @contextlib.asynccontextmanager
    async def refuse_excess_messages(
        self, group: MessageGroup, max_gathered_messages: int
    ) -> AsyncIterator[None]:
        """During the block, refuse the newest waiting messages over the limit."""
        refusal_tasks: list[asyncio.Task[None]] = []
        max_waiting_messages = max(self.max_waiting_messages, max_gathered_messages)
        has_arrivals, conversation = group.message.has_messages_waiting, group.claim.conversation

        async def refuse_until_quiet() -> None:
            nonlocal has_arrivals
            while has_arrivals:
                await self.clock.sleep(_COUNT_DELAY_SECONDS)
                has_arrivals = False
                try:
                    await self._refuse_newest_messages(group, max_waiting_messages)
                except (Fenced, StoreError) as error:  # `finish` reports it
                    _log.warning("queue_limit_not_enforced", reason=str(error))

        def on_arrival() -> None:
            nonlocal has_arrivals
            has_arrivals = True
            if not refusal_tasks or refusal_tasks[-1].done():
                task_name = f"limit: {conversation}"
                refusal_tasks[:] = [asyncio.create_task(refuse_until_quiet(), name=task_name)]

        unsubscribe = self.arrivals.subscribe(conversation, on_arrival)
        try:
            if has_arrivals:
                on_arrival()
            yield
        finally:
            unsubscribe()
            await cancel_and_wait(refusal_tasks)

    async def _refuse_newest_messages(self, group: MessageGroup, max_waiting_messages: int) -> None:
        refused_ids = {one.id for one in group.message.refused_messages}
        limit = max_waiting_messages + len(refused_ids) + _MAX_REFUSED_AT_ONCE
        messages = await self.conversations.load_waiting_after(group.claim, group.message, limit)
        waiting_questions = [
            (one, one.incoming)
            for one in messages
            if one.id not in refused_ids
            and isinstance(one.incoming, IncomingMessage)
            and _is_question(one.incoming)
        ]
        for message, incoming in waiting_questions[max_waiting_messages:]:
            LIMITED_MESSAGES.labels("queue_full").inc()
            if incoming.interaction is not None:
                # Send the response immediately, because it does not delay an answer.
                await self.replies.open_notice(group.claim, message, BUSY_NOTICE)
            refused_messages = (*group.message.refused_messages, message)
            group.message = replace(group.message, refused_messages=refused_messages)


def _is_question(message: IncomingMessage) -> bool:
    is_addressed = message.wake is not None and not (message.author_is_bot or message.is_late)
    return is_addressed and parse_command(message.text) is None
