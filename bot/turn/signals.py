"""Interrupt running answers when a /stop, a stop button, an edit or a deletion arrives.

These events are also stored in the inbox and handled in order. Signals only tell the process that
is generating the answer sooner. They may be lost, so `MissedSignalPoller` polls the inbox.
"""

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import structlog

from bot.chat.command import ButtonAction, parse_button, parse_command
from bot.chat.incoming import (
    ButtonPress,
    Incoming,
    IncomingMessage,
    MessageDeletion,
    MessageEdit,
    Request,
)
from bot.chat.session import Claim, InboxMessage, text_with_attachments
from bot.commands.request import StopOutcome
from bot.errors import StoreError
from bot.ports import Signals
from bot.runtime.in_process import BoundedDict
from bot.runtime.tasks import StopFlag
from bot.storage.inbox import SqlInbox
from bot.storage.rows import decode_all
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_STOPS_TOPIC = "stops"
_STOP_PRESSES_TOPIC = "stop_presses"
_EDITS_TOPIC = "edits"
_DELETIONS_TOPIC = "deletions"
_MAX_REMEMBERED_SIGNALS = 1000
_OUTCOME_BY_ADMIN_CHECK = {
    None: StopOutcome.UNKNOWN,
    True: StopOutcome.STOPPED,
    False: StopOutcome.REFUSED,
}
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _AnswerInProgress:
    question: IncomingMessage
    """The newest message that the answer covers."""
    turn_name: str
    asker_ids: Collection[str]
    """The ids of the people who may stop the answer."""
    stop_flag: StopFlag
    sent_or_edited_at: datetime
    """When the message was sent or last edited."""
    is_for_one_message: bool = False
    """Whether the answer covers one message only, so that deleting the message ends it."""


@value_class
class _EditSignal:
    conversation: str
    message_id: str
    at: datetime
    digest: str = ""
    """A hash of the message's text and addressees; empty: unknown."""


@dataclass(eq=False)
class StopRequests:
    """Interrupts running answers when an asker or admin stops them, or a question changes."""

    signals: Signals
    is_admin: Callable[[Request], Awaitable[bool | None]]
    """Returns whether a person is an admin, or None if the platform could not be asked."""
    audit: Callable[[Request, str], Awaitable[None]]
    """Records an admin's action in the audit log."""

    def __post_init__(self) -> None:
        self._answers_in_progress: dict[str, _AnswerInProgress] = {}
        self._outcomes = BoundedDict[tuple[str, str], StopOutcome](_MAX_REMEMBERED_SIGNALS)
        self._edited_messages = BoundedDict[tuple[str, str], None](_MAX_REMEMBERED_SIGNALS)
        self._deleted_messages = BoundedDict[tuple[str, str], None](_MAX_REMEMBERED_SIGNALS)
        self.find_events_after: (
            Callable[[Claim, InboxMessage], Awaitable[Sequence[Incoming]]] | None
        )
        """Returns the events that wait after a message in its conversation."""
        self.find_events_after = None
        self._undecided_requests: asyncio.Queue[Request] = asyncio.Queue()
        self._handlers: dict[str, Callable[[Any], None]] = {}
        self._subscribe(_STOPS_TOPIC, IncomingMessage, self._handle_request)
        self._subscribe(_STOP_PRESSES_TOPIC, ButtonPress, self._handle_press)
        self._subscribe(_EDITS_TOPIC, _EditSignal, self._handle_edit_signal)
        self._subscribe(_DELETIONS_TOPIC, MessageDeletion, self._handle_deletion)

    def _subscribe(self, topic: str, data_type: type, handle_signal: Callable[[Any], None]) -> None:
        decode: Callable[[str], Any] = msgspec.json.Decoder(data_type).decode

        def receive(signals: Sequence[str]) -> None:
            for one in decode_all("signal", signals, decode):
                handle_signal(one)

        self._handlers[topic] = handle_signal
        self.signals.subscribe(topic, receive)

    def announce(self, events: Sequence[Incoming]) -> None:
        """Signal the stops, edits and deletions among these events to all processes."""
        for one in events:
            topic, signal = _to_signal(one)
            if topic:
                self.signals.publish(topic, [_encode(signal).decode()])

    def handle_missed_events(self, events: Sequence[Incoming]) -> None:
        """Handle the stops, edits and deletions among events whose signals may be lost.

        Of several edits of a message, only the newest counts; the events are ordered, oldest first.
        """
        newest_edits = {_edit_key(one): one for one in events if isinstance(one, MessageEdit)}
        for one in events:
            topic, signal = _to_signal(one)
            is_superseded = isinstance(one, MessageEdit) and newest_edits[_edit_key(one)] is not one
            if topic and not is_superseded:
                self._handlers[topic](signal)

    @contextlib.asynccontextmanager
    async def stoppable_answer(
        self,
        claim: Claim,
        message: InboxMessage,
        question: IncomingMessage,
        edited_at: datetime | None = None,
    ) -> AsyncIterator[StopFlag]:
        """Yield a flag that a stop, edit or deletion sets, even one that arrived earlier."""
        conversation, stop_flag = question.address.conversation, StopFlag()
        turn, at = f"{question.address.source}:{question.external_key}", edited_at or question.at
        answer = _AnswerInProgress(question, turn, {question.author.id}, stop_flag, at)
        self._answers_in_progress[conversation] = answer
        try:
            if self.find_events_after is not None:
                self.handle_missed_events(await self.find_events_after(claim, message))
            yield stop_flag
        finally:
            del self._answers_in_progress[conversation]

    def cover_newer_message(
        self, question: IncomingMessage, asker_ids: Collection[str], *, is_for_one_message: bool
    ) -> None:
        """Let the running answer also cover a newer message, and let the askers stop it."""
        answer = self._answers_in_progress[question.address.conversation]
        if question.message_id != answer.question.message_id:
            answer.question, answer.sent_or_edited_at = question, question.at
        answer.asker_ids, answer.is_for_one_message = asker_ids, is_for_one_message

    def stop_outcome(self, command: IncomingMessage) -> StopOutcome:
        """Return the outcome of a /stop, and keep it from stopping any other answer."""
        return self._outcomes.setdefault(_event_key(command), StopOutcome.NO_ANSWER)

    def was_edited(self, message_id: str | None, conversation: str) -> bool:
        """Return whether an edit interrupted the answer to this message."""
        return (conversation, message_id or "") in self._edited_messages

    def was_deleted(self, message: IncomingMessage) -> bool:
        """Return whether this process knows that the message was deleted."""
        return (message.address.lane, message.message_id or "") in self._deleted_messages

    @property
    def conversations_being_answered(self) -> Collection[str]:
        """The conversations in which this process is generating an answer."""
        return self._answers_in_progress.keys()

    def is_being_answered(self, event: Incoming) -> bool:
        answer = self._answers_in_progress.get(event.address.conversation)
        return answer is not None and answer.question.external_key == event.external_key

    async def run(self) -> None:
        """Handle stop requests that only admins may make, until cancelled."""
        while True:
            command = await self._undecided_requests.get()
            if self._apply_outcome(command, _OUTCOME_BY_ADMIN_CHECK[await self.is_admin(command)]):
                try:
                    await self.audit(command, "stop answer")
                except StoreError as error:  # the answer is stopped even without an audit entry
                    _log.warning("stop_not_recorded", by=command.author.id, reason=str(error))

    def _handle_press(self, press: ButtonPress) -> None:
        answer = self._answers_in_progress.get(press.address.conversation)
        if answer is not None and _find_turn_to_stop(press) == answer.turn_name:
            self._handle_request(press)

    def _handle_request(self, request: Request) -> None:
        """Apply a /stop by the asker at once; let other people's wait for an admin check."""
        answer = self._answers_in_progress.get(request.address.conversation)
        if answer is None or _event_key(request) in self._outcomes:
            return
        if request.author.id in answer.asker_ids:
            self._apply_outcome(request, StopOutcome.STOPPED)
        else:
            self._undecided_requests.put_nowait(request)

    def _handle_edit_signal(self, edit: _EditSignal) -> None:
        answer = self._answers_in_progress.get(edit.conversation)
        if answer is None or answer.question.message_id != edit.message_id:
            return
        # A repeated edit is not newer than the text being answered (Telegram counts whole seconds).
        # An edit that changed only a preview or the formatting has the same digest.
        if edit.at >= answer.sent_or_edited_at and edit.digest != _hash_edit(answer.question):
            answer.stop_flag.request()
            self._edited_messages[edit.conversation, edit.message_id] = None

    def _handle_deletion(self, event: MessageDeletion) -> None:
        for message_id in event.message_ids:
            self._deleted_messages[event.address.lane, message_id] = None  # unique per chat
        answer = self._answers_in_progress.get(event.address.conversation)
        if answer and answer.is_for_one_message and answer.question.message_id in event.message_ids:
            answer.stop_flag.stop_for_deleted_question()

    def _apply_outcome(self, command: Request, outcome: StopOutcome) -> bool:
        """Apply a /stop's outcome, and return whether this request stopped the answer."""
        answer = self._answers_in_progress.get(command.address.conversation)
        if answer is None:  # the answer has ended in the meantime
            return False
        stops_answer = outcome is StopOutcome.STOPPED and not answer.stop_flag.is_requested
        if outcome is StopOutcome.STOPPED:
            answer.stop_flag.request()
        self._outcomes[_event_key(command)] = outcome
        return stops_answer


def _to_signal(event: Incoming) -> tuple[str, object]:
    """Return the topic and value of an event's signal; the topic is "" if it needs none."""
    match event:
        case IncomingMessage() if _stops_answers(event):
            return _STOPS_TOPIC, event
        case ButtonPress() if _find_turn_to_stop(event):
            return _STOP_PRESSES_TOPIC, event
        case MessageEdit(said=message, message_id=str() as message_id):
            conversation, digest = message.address.conversation, _hash_edit(message)
            return _EDITS_TOPIC, _EditSignal(conversation, message_id, event.at, digest)
        case MessageDeletion():
            return _DELETIONS_TOPIC, event
        case _:
            return "", None


def _hash_edit(message: IncomingMessage) -> str:
    """Return a hash that stays the same when an edit has no effect on the answer."""
    # Whether the webhook is ours is only known from the history, see `mark_reply_to_bot`.
    quote = message.quote
    is_addressed = message.wake is not None or (quote is not None and quote.by_webhook)
    return hashlib.sha256(f"{is_addressed} {text_with_attachments(message)}".encode()).hexdigest()


def _stops_answers(incoming: IncomingMessage) -> bool:
    if not incoming.text.startswith("/") or incoming.wake is None or incoming.author_is_bot:
        return False
    command = parse_command(incoming.text)
    if command is None:
        return False
    is_off_command = command.name == "access" and command.text.lower().split()[:1] == ["off"]
    return command.name == "stop" or is_off_command


def _find_turn_to_stop(press: ButtonPress) -> str | None:
    """Return the turn whose answer a press stops, or None if it is not a stop button."""
    button = parse_button(press)
    if button is None or button.action is not ButtonAction.STOP:
        return None
    return button.part_name.rpartition("/")[0]


def _edit_key(edit: MessageEdit) -> tuple[str, str | None]:
    """Return a key that all edits of one message share."""
    return edit.address.conversation, edit.message_id


def _event_key(event: Incoming) -> tuple[str, str]:
    return event.address.source, event.external_key


CONVERSATIONS_TOPIC = "conversations"
"""The topic of the signals that events have arrived in conversations."""


class ArrivalSignals:
    """Tracks which of this process's conversations have received new events."""

    def __init__(self, signals: Signals) -> None:
        self._watched_conversations: dict[str, bool] = {}  # whether something arrived
        self._listeners: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        signals.subscribe(CONVERSATIONS_TOPIC, self.record_arrivals)

    def watch(self, conversations: Collection[str]) -> None:
        """Start watching conversations. Call this before reading their events."""
        for key in conversations:
            self._watched_conversations[key] = False

    def unwatch(self, conversations: Collection[str]) -> None:
        for key in conversations:
            self._watched_conversations.pop(key, None)

    def has_new_event(self, conversation: str) -> bool:
        """Return whether an event has arrived since the last call of `watch`."""
        return self._watched_conversations.get(conversation, False)

    def subscribe(self, conversation: str, on_arrival: Callable[[], None]) -> Callable[[], None]:
        """Call `on_arrival` (must not block) on events until the returned function is called."""
        listeners = self._listeners[conversation]
        listeners.append(on_arrival)
        if self.has_new_event(conversation):
            on_arrival()

        def unsubscribe() -> None:
            listeners.remove(on_arrival)
            if not listeners:
                del self._listeners[conversation]

        return unsubscribe

    def record_arrivals(self, conversations: Sequence[str]) -> None:
        """Record that events have arrived in these conversations."""
        for key in conversations:
            if key in self._watched_conversations:
                self._watched_conversations[key] = True
            for on_arrival in self._listeners.get(key, ()):
                on_arrival()


_MAX_POLLED_EVENTS = 500
_MAX_POLLED_PER_CONVERSATION = 20
"""The limit per conversation, so that one long queue does not hide a /stop in another."""


@dataclass(eq=False)
class MissedSignalPoller:
    """Finds events in the inbox that concern running answers."""

    inbox: SqlInbox
    stop_requests: StopRequests
    arrivals: ArrivalSignals

    def __post_init__(self) -> None:
        self._handled_event_keys: frozenset[tuple[str, str]] = frozenset()

    async def poll(self) -> None:
        """Handle events that concern running answers and were not signaled to this process."""
        conversations = list(self.stop_requests.conversations_being_answered)
        events: Sequence[Incoming] = ()
        if conversations:
            load_newest_unanswered = self.inbox.newest_unanswered
            events = await load_newest_unanswered(
                conversations, _MAX_POLLED_EVENTS, _MAX_POLLED_PER_CONVERSATION
            )
        new_events = (
            one for one in reversed(events) if _event_key(one) not in self._handled_event_keys
        )
        missed_events = [one for one in new_events if not self.stop_requests.is_being_answered(one)]
        self._handled_event_keys = frozenset(map(_event_key, events))
        self.stop_requests.handle_missed_events(missed_events)
        self.arrivals.record_arrivals([one.address.conversation for one in missed_events])
