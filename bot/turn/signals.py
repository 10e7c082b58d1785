"""Signals about what arrives: /stop, its button, edits and deletions end answers in progress.

Such an event is stored in the inbox like any other and handled in its turn. Before that, a signal
tells the process that is generating the answer. A signal may be lost: `MissedSignals` polls.
"""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, TypeVar

import msgspec
import structlog

from bot.chat.command import ButtonAction, parse, read_button
from bot.chat.incoming import Deleted, Edited, Incoming, Pressed, Request, Said
from bot.chat.session import Claim, InboxMessage, described_text
from bot.commands.request import StopOutcome
from bot.errors import Fenced, StoreError
from bot.ports import Clock, Signals
from bot.replying.generate import StopFlag
from bot.storage.inbox import SqlInbox
from bot.storage.rows import decode_all
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_TOPIC = "stops"
_PRESSES = "stop_presses"
_EDITS = "edits"
_DELETIONS = "deletions"
_COMMAND = "stop"
_MAX_KEPT = 1000
_Kept = TypeVar("_Kept")
_Signal = TypeVar("_Signal")
_OUTCOMES = {None: StopOutcome.UNKNOWN, True: StopOutcome.STOPPED, False: StopOutcome.REFUSED}
"""By whether the author is an admin."""
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _AnswerInProgress:
    claim: Claim
    asked: Said
    turn: str
    """The name of the turn that answers it, and what it was extended by."""
    askers: Collection[str]
    """The ids of everybody who may stop it."""
    flag: StopFlag
    at: datetime
    """When it was asked, or edited to what it is."""
    is_alone: bool = False
    """Whether it answers this message only, and ends if that is deleted."""


@value_class
class _EditSignal:
    conversation: str
    message_id: str
    at: datetime
    digest: str = ""
    """A hash of the message's text and addressees; empty if unknown."""


TellRefusal: TypeAlias = Callable[[Claim, Said, StopOutcome], Awaitable[bool]]
"""Tells the author of a /stop that the answer continues; returns whether that was done."""


FindLater: TypeAlias = Callable[[Claim, InboxMessage], Awaitable[Sequence[Incoming]]]
"""Returns what waits behind a message in its conversation."""


async def _find_nothing(_claim: Claim, _message: InboxMessage) -> Sequence[Incoming]:
    return ()


async def _tell_nobody(_claim: Claim, _command: Said, _outcome: StopOutcome) -> bool:
    return False


@dataclass(eq=False)
class StopRequests:
    """Finds the answer that a /stop means, and stops it for the person who asked and for admins."""

    signals: Signals
    is_admin: Callable[[Request], Awaitable[bool | None]]
    """Decides about others' answers; returns None if the platform could not be asked."""
    note: Callable[[Request, str], Awaitable[None]] | None = None
    """Notes in the audit log what an admin has done; None: nothing is noted."""

    def __post_init__(self) -> None:
        self._answers: dict[str, _AnswerInProgress] = {}
        self._outcomes: OrderedDict[tuple[str, str], StopOutcome] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.tell_refusal: TellRefusal = _tell_nobody
        self.find_later: FindLater = _find_nothing
        self._edited: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._deleted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._to_decide: asyncio.Queue[Request] = asyncio.Queue()
        self._subscribe(_TOPIC, Said, self._consider)
        self._subscribe(_PRESSES, Pressed, self._consider_press)
        self._subscribe(_EDITS, _EditSignal, self._note_edit)
        self._subscribe(_DELETIONS, Deleted, self._consider_deletion)

    def _subscribe(
        self, topic: str, kind: type[_Signal], handle: Callable[[_Signal], object]
    ) -> None:
        decode = msgspec.json.Decoder(kind).decode

        def receive(signals: Sequence[str]) -> None:
            for one in decode_all("signal", signals, decode):
                handle(one)

        self.signals.subscribe(topic, receive)

    def announce(self, messages: Sequence[Incoming]) -> None:
        """Tell every process of the stops, edits and deletions among these messages."""
        stops = [one for one in messages if isinstance(one, Said) and _is_stop(one)]
        presses = [one for one in messages if isinstance(one, Pressed) and _stopped_turn(one)]
        edits = [signal for signal in map(_edit_signal, messages) if signal]
        deletions = [one for one in messages if isinstance(one, Deleted)]
        topics = ((_TOPIC, stops), (_PRESSES, presses), (_EDITS, edits), (_DELETIONS, deletions))
        for topic, signals in topics:
            if signals:
                self.signals.publish(topic, [_encode(one).decode() for one in signals])

    @contextlib.asynccontextmanager
    async def answering(
        self, claim: Claim, message: InboxMessage, asked: Said, edited_at: datetime | None = None
    ) -> AsyncIterator[StopFlag]:
        """Allow stopping the answer to a message while the block runs.

        An edit of the message stops it as well, and is followed afterwards. What waits behind it
        already counts, too. `asked` is the message as it reads now, edited at `edited_at`.
        """
        conversation, flag = asked.address.conversation, StopFlag()
        at = edited_at or asked.at
        self._answers[conversation] = _AnswerInProgress(
            claim, asked, _turn(asked), {asked.author.id}, flag, at
        )
        try:
            self.consider(await self.find_later(claim, message))
            yield flag
        finally:
            del self._answers[conversation]

    def extend(self, asked: Said, askers: Collection[str], *, is_alone: bool) -> None:
        """Extend the answer in progress to a newer message; all `askers` (ids) may stop it."""
        answer = self._answers[asked.address.conversation]
        if asked.message_id != answer.asked.message_id:
            answer.asked, answer.at = asked, asked.at
        answer.askers, answer.is_alone = askers, is_alone

    def outcome_of(self, command: Said) -> StopOutcome:
        """Return the outcome of a /stop for its reply; afterwards, it stops no later answer."""
        outcome = self._outcomes.get(_key(command), StopOutcome.NOTHING)
        _keep(self._outcomes, _key(command), outcome)
        return outcome

    def was_edited(self, message_id: str | None, conversation: str) -> bool:
        """Return whether an edit has ended an answer to this message here."""
        return (conversation, message_id or "") in self._edited

    def was_told(self, command: Incoming) -> bool:
        """Return whether the author of a /stop was told its outcome already."""
        return (command.address.source, command.external_key) in self._told

    def was_deleted(self, said: Said) -> bool:
        """Return whether a message that waits was deleted, as far as this process was told."""
        return (said.address.lane, said.message_id or "") in self._deleted

    @property
    def in_progress(self) -> Collection[str]:
        """The conversations in which this process is generating an answer."""
        return self._answers.keys()

    def is_being_answered(self, event: Incoming) -> bool:
        """Return whether an answer in progress is the answer to this event."""
        answer = self._answers.get(event.address.conversation)
        return answer is not None and answer.asked.external_key == event.external_key

    def consider(self, events: Sequence[Incoming]) -> None:
        """Follow stops, edits and deletions among events whose signals may have been lost."""
        for one in events:
            if isinstance(one, Said) and _is_stop(one):
                self._consider(one)
            elif isinstance(one, Pressed) and _stopped_turn(one):
                self._consider_press(one)
            elif isinstance(one, Deleted):
                self._consider_deletion(one)
            elif (edit := _edit_signal(one)) is not None:
                self._consider_edit(edit)

    async def run(self) -> None:
        """Decide about the commands of people who did not ask the question, until cancelled."""
        while True:
            command = await self._to_decide.get()
            outcome = _OUTCOMES[await self.is_admin(command)]
            if self._decide(command, outcome):
                await self._note_stop(command)
            if outcome is not StopOutcome.STOPPED and isinstance(command, Said):
                await self._tell(command, outcome)

    async def _note_stop(self, command: Request) -> None:
        """Note that an admin has stopped the answer to somebody else's question."""
        if self.note is None:
            return
        try:
            await self.note(command, "stop answer")
        except StoreError as error:  # the answer has ended: that is not taken back
            _log.warning("stop_not_noted", by=command.author.id, reason=str(error))

    async def _tell(self, command: Said, outcome: StopOutcome) -> None:
        """Tell the author at once: the command is answered when the answer has ended."""
        answer = self._answers.get(command.address.conversation)
        if answer is None:
            return
        try:
            if await self.tell_refusal(answer.claim, command, outcome):
                _keep(self._told, _key(command), None)
        except (Fenced, StoreError) as error:  # the reply comes in its turn
            _log.warning("stop_refusal_not_told", reason=str(error))

    def _consider_press(self, pressed: Pressed) -> None:
        answer = self._answers.get(pressed.address.conversation)
        if answer is not None and _stopped_turn(pressed) == answer.turn:
            self._consider(pressed)

    def _consider(self, request: Request) -> None:
        """Decide at once for who asked the question; ask the platform about others."""
        answer = self._answers.get(request.address.conversation)
        if answer is None or _key(request) in self._outcomes:
            return
        if request.author.id in answer.askers:
            self._decide(request, StopOutcome.STOPPED)
        else:
            self._to_decide.put_nowait(request)

    def _note_edit(self, edit: _EditSignal) -> None:
        if self._consider_edit(edit):
            _keep(self._edited, (edit.conversation, edit.message_id), None)

    def _consider_edit(self, edit: _EditSignal) -> bool:
        """Return whether an answer in progress ends by this."""
        answer = self._answers.get(edit.conversation)
        if answer is None or answer.asked.message_id != edit.message_id:
            return False
        # An edit that is delivered again is not newer than what is being answered (Telegram counts
        # whole seconds); one that changed a preview or the formatting leaves the question as it is.
        ends = edit.at >= answer.at and edit.digest != _digest(answer.asked)
        if ends:
            answer.flag.request()
        return ends

    def _consider_deletion(self, deleted: Deleted) -> None:
        for message_id in deleted.message_ids:
            _keep(self._deleted, (deleted.address.lane, message_id), None)  # each chat has its ids
        answer = self._answers.get(deleted.address.conversation)
        if answer and answer.is_alone and answer.asked.message_id in deleted.message_ids:
            answer.flag.withdraw()

    def _decide(self, command: Request, outcome: StopOutcome) -> bool:
        """Return whether the answer ends by this, and was not stopped before."""
        answer = self._answers.get(command.address.conversation)
        if answer is None:  # it has ended meanwhile
            return False
        stops = outcome is StopOutcome.STOPPED and not answer.flag.requested
        if outcome is StopOutcome.STOPPED:
            answer.flag.request()
        _keep(self._outcomes, _key(command), outcome)
        return stops


def _keep(kept: OrderedDict[tuple[str, str], _Kept], key: tuple[str, str], value: _Kept) -> None:
    """Keep a value, and those of the newest keys."""
    kept[key] = value
    if len(kept) > _MAX_KEPT:
        kept.popitem(last=False)


def _edit_signal(event: Incoming) -> _EditSignal | None:
    if not isinstance(event, Edited) or event.message_id is None:
        return None
    said = event.said
    return _EditSignal(said.address.conversation, event.message_id, event.at, _digest(said))


def _digest(said: Said) -> str:
    """Return a hash that recognizes an edit without effect."""
    # Only the history knows whose webhook it was, see `recognize_reply`.
    is_addressed = said.wake is not None or (said.quote is not None and said.quote.by_webhook)
    return hashlib.sha256(f"{is_addressed} {described_text(said)}".encode()).hexdigest()


def _is_stop(incoming: Said) -> bool:
    if not incoming.text.startswith("/") or incoming.wake is None or incoming.author_is_bot:
        return False
    command = parse(incoming.text)
    return command is not None and command.name == _COMMAND


def _stopped_turn(pressed: Pressed) -> str | None:
    """Return the name of the turn whose answer a press stops; None for other buttons."""
    data = read_button(pressed)
    if data is None or data.action is not ButtonAction.STOP:
        return None
    return data.part.rpartition("/")[0]


def _turn(asked: Said) -> str:
    return f"{asked.address.source}:{asked.external_key}"


def _key(command: Request) -> tuple[str, str]:
    return command.address.source, command.external_key


CONVERSATIONS = "conversations"
"""The topic of the signals that wake conversations."""


class ArrivalSignals:
    """Watches the conversations that are in progress here."""

    def __init__(self, signals: Signals) -> None:
        self._watched: dict[str, bool] = {}  # whether something arrived
        self._listeners: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        signals.subscribe(CONVERSATIONS, self.note)

    def watch(self, conversations: Collection[str]) -> None:
        """Watch from now on; called before the database is read."""
        for key in conversations:
            self._watched[key] = False

    def unwatch(self, conversations: Collection[str]) -> None:
        """Stop watching."""
        for key in conversations:
            self._watched.pop(key, None)

    def has_arrived(self, conversation: str) -> bool:
        """Return whether something was received since the conversation is watched."""
        return self._watched.get(conversation, False)

    def subscribe(self, conversation: str, on_arrival: Callable[[], None]) -> Callable[[], None]:
        """Call `on_arrival` from now on, at once if something arrived; return what ends that.

        It must not block or raise.
        """
        listeners = self._listeners[conversation]
        listeners.append(on_arrival)
        if self.has_arrived(conversation):
            on_arrival()

        def unsubscribe() -> None:
            listeners.remove(on_arrival)
            if not listeners:
                del self._listeners[conversation]

        return unsubscribe

    def note(self, conversations: Sequence[str]) -> None:
        """Note that something was received for these conversations."""
        for key in conversations:
            if key in self._watched:
                self._watched[key] = True
            for on_arrival in self._listeners.get(key, ()):
                on_arrival()


_LOOK_SECONDS = 2.0
_MAX_EVENTS = 500
_MAX_OF_CONVERSATION = 20
"""A long queue in one of them hides no stop in another one."""


@dataclass(eq=False)
class MissedSignals:
    """Reads the inbox of all answers in progress, every two seconds, in one query."""

    inbox: SqlInbox
    stops: StopRequests
    arrivals: ArrivalSignals
    clock: Clock

    def __post_init__(self) -> None:
        self._seen: frozenset[tuple[str, str]] = frozenset()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.clock.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    async def look(self) -> None:
        """Act on stops, edits and further messages whose signals were lost."""
        conversations = list(self.stops.in_progress)
        events: Sequence[Incoming] = ()
        if conversations:
            events = await self.inbox.waiting(conversations, _MAX_EVENTS, _MAX_OF_CONVERSATION)
        missed = [
            one
            for one in events
            if _event_key(one) not in self._seen and not self.stops.is_being_answered(one)
        ]
        self._seen = frozenset(map(_event_key, events))
        self.stops.consider(missed)
        self.arrivals.note([one.address.conversation for one in missed])


def _event_key(event: Incoming) -> tuple[str, str]:
    return event.address.source, event.external_key
