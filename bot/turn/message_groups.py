"""Group the messages that one answer covers: parts of split messages, and later messages.

All of them stay in the inbox until the answer is finished (docs/delivery.md#busy-channels).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from bot.chat.command import Command
from bot.chat.incoming import IncomingMessage, WakeReason
from bot.chat.outgoing import Limits
from bot.chat.session import (
    AttemptState,
    Claim,
    InboxMessage,
    Turn,
    files_to_keep,
    text_with_attachments,
)
from bot.commands.request import OpenQuestion
from bot.errors import StoreError
from bot.ports import Clock
from bot.prompting.presets.preset import BusyMode, BusyRules
from bot.routing.decide import Answer, Decision, Ignore, Observe, Unreadable
from bot.runtime.tasks import StopFlag, cancel_and_wait
from bot.storage.conversations import Conversations
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.turn.claims import MIN_SUSPECT_CRASHES
from bot.turn.signals import ArrivalSignals
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_MIN_SHARE_OF_CUT_TEXT = 0.98  # clients cut a long text at a space near the limit
_MAX_UNITS_PER_CHAR = 2  # per character, in any `Limits.unit`
_MAX_MESSAGE_PARTS = 20
_MAX_WAIT_SECONDS = 5.0  # for the next part, and for a pause in the channel
_POLL_SECONDS = 0.2  # between queries for the next part
_MAX_COUNTED_MESSAGES = 100


@dataclass(slots=True)
class MessageGroup:
    """Messages of a claimed conversation that are processed together; more may be added."""

    claim: Claim
    message: InboxMessage
    interleaved_messages: list[InboxMessage] = field(default_factory=list)
    """Other people's messages that arrived between the parts of a split message."""
    question: OpenQuestion | None = None
    """The question being answered."""
    edited_at: datetime | None = None
    """The time of the question's last edit, if it was edited before its answer began."""


@value_class
class SplitMessageJoiner:
    """Joins messages that clients split into parts: albums and long pastes."""

    limits: Limits
    busy_rules: BusyRules

    def seconds_to_wait(self, message: IncomingMessage) -> float:
        """Return the seconds to wait for a message's next part; 0 if the message is complete."""
        if message.interaction is not None:
            return 0.0
        if message.album is not None:
            return self.busy_rules.album_seconds
        max_units = self.limits.max_units  # longer than any part that a client sends
        min_cut_units = max_units * _MIN_SHARE_OF_CUT_TEXT
        if len(message.text) * _MAX_UNITS_PER_CHAR < min_cut_units:
            return 0.0  # the normal case, without counting units
        is_near_limit = min_cut_units <= self.limits.measure(message.text) <= max_units
        return self.busy_rules.paste_seconds if is_near_limit else 0.0

    def join_next_part(
        self, joined_message: IncomingMessage, last_part: InboxMessage, next_part: InboxMessage
    ) -> IncomingMessage | None:
        """Append `next_part` to `joined_message`; return None if it is not the next part."""
        message, last_message = next_part.incoming, last_part.incoming
        if not (isinstance(message, IncomingMessage) and isinstance(last_message, IncomingMessage)):
            return None
        if message.author.id != joined_message.author.id or message.interaction is not None:
            return None
        if joined_message.album is not None or message.album is not None:
            is_next_part = message.album == joined_message.album
        else:
            wait_seconds = self.seconds_to_wait(last_message)
            is_text = bool(message.text) and not message.attachments and message.quote is None
            gap_seconds = next_part.received_at - last_part.received_at
            is_next_part = wait_seconds > 0 and is_text and gap_seconds <= wait_seconds
        return self._append_part(joined_message, last_message, message) if is_next_part else None

    def _append_part(
        self, joined_message: IncomingMessage, last_part: IncomingMessage, message: IncomingMessage
    ) -> IncomingMessage:
        is_cut_inside_word = self.limits.measure(last_part.text) >= self.limits.max_units
        texts = [one for one in (joined_message.text, message.text) if one]
        text = ("" if is_cut_inside_word else "\n").join(texts)
        masked_text = mask_pasted_tokens(text)  # a token may have been cut in two
        return replace(
            joined_message,
            text=masked_text,
            has_masked_token=joined_message.has_masked_token or masked_text != text,
            wake=joined_message.wake or message.wake,
            quote=joined_message.quote or message.quote,
            mentions=(*joined_message.mentions, *message.mentions),
            attachments=(*joined_message.attachments, *message.attachments),
        )


async def join_parts(
    group: MessageGroup,
    incoming: IncomingMessage,
    joiner: SplitMessageJoiner,
    conversations: Conversations,
    clock: Clock,
) -> IncomingMessage:
    """Wait for the remaining parts of a split message, and return all parts joined."""
    last, deadline = group.message, clock.monotonic() + _MAX_WAIT_SECONDS
    if group.message.crash_count >= MIN_SUSPECT_CRASHES:
        return incoming
    while isinstance(last.incoming, IncomingMessage) and joiner.seconds_to_wait(last.incoming) > 0:
        interleaved_messages: list[InboxMessage] = []
        for one in await conversations.load_waiting_after(
            group.claim, group.message, _MAX_MESSAGE_PARTS
        ):
            joined_message = joiner.join_next_part(incoming, last, one)
            if joined_message is None:
                interleaved_messages.append(one)
            else:
                group.interleaved_messages += interleaved_messages
                interleaved_messages = []
                incoming, last = joined_message, one
                gathered_messages = (*group.message.gathered_messages, one)
                group.message = replace(group.message, gathered_messages=gathered_messages)
        if not isinstance(last.incoming, IncomingMessage):
            break
        seconds = last.received_at + joiner.seconds_to_wait(last.incoming) - clock.now()
        seconds = min(seconds, deadline - clock.monotonic())
        if seconds <= 0:
            break
        await clock.sleep(min(seconds, _POLL_SECONDS))
    first_part = group.message.incoming
    if incoming.has_masked_token and isinstance(first_part, IncomingMessage):
        # The author is then warned.
        group.message = replace(group.message, incoming=replace(first_part, has_masked_token=True))
    if group.message.gathered_messages:
        await conversations.record_attempt(group.claim, group.message, AttemptState.WITH_OTHERS)
    return incoming


@value_class
class _PendingMessage:
    parts: tuple[InboxMessage, ...]
    """The message, or its parts if a client split it."""
    message: IncomingMessage
    decision: Decision


@dataclass(eq=False)
class MessageGathering:
    """Collects the messages that one answer covers; some messages need a separate answer."""

    group: MessageGroup
    question: OpenQuestion
    """The question and its speakers; the first speaker's preset controls what is gathered."""
    limits: Limits
    conversations: Conversations
    arrivals: ArrivalSignals
    clock: Clock
    decide_on: Callable[[IncomingMessage], Awaitable[Decision]] | None = None
    """Decides what to do with a later message; None: later messages are not gathered."""

    def __post_init__(self) -> None:
        self.asker_ids = {self.question.incoming.author.id}
        """The authors of the gathered messages, who may stop the answer."""
        self.decisions: list[tuple[IncomingMessage, Decision]] = []
        self.uncovered_message_count = 0
        """The number of waiting messages that this answer does not cover."""
        self.busy_rules = self.question.speakers[0].preset.busy
        self._joiner = SplitMessageJoiner(self.limits, self.busy_rules)
        self._busy_mode = self._choose_busy_mode()
        self._pending: list[_PendingMessage] = []  # not gathered yet
        self._is_gathering_over = self._busy_mode == "queue"
        self._has_new_message = False
        self._was_answer_interrupted = False
        self._received_at = self.group.message.received_at  # when the newest message was received
        self._quiet_seconds = self.busy_rules.quiet_seconds  # longer while parts may be missing

    def _choose_busy_mode(self) -> BusyMode:
        message, incoming = self.group.message, self.question.incoming
        can_gather = isinstance(message.incoming, IncomingMessage) and incoming.interaction is None
        if self.decide_on is None or not can_gather or message.crash_count:
            return "queue"
        if self.busy_rules.mode is not None:
            return self.busy_rules.mode
        if self.limits.answers_each_message:
            return "queue"
        return "interrupt" if incoming.wake is WakeReason.DM else "collect"

    async def gather_until_quiet(self) -> None:
        """Gather new messages until none arrives for a moment."""
        deadline = self.clock.monotonic() + _MAX_WAIT_SECONDS
        while not self._is_gathering_over:
            await self._read_new_messages()
            quiet_seconds = self._quiet_seconds
            wait_seconds = min(self._received_at + quiet_seconds - self.clock.now(), quiet_seconds)
            wait_seconds = min(wait_seconds, deadline - self.clock.monotonic())
            if wait_seconds <= 0 or self._max_further_messages == 0:
                break
            await self.clock.sleep(wait_seconds)
        await self._gather_pending_messages()

    @contextlib.asynccontextmanager
    async def interrupt_on_arrival(self, stop_flag: StopFlag) -> AsyncIterator[None]:
        """Interrupt the answer that the block generates, if it should cover a new message.

        In `collect` mode, only do so in the first moments, before anybody has read the answer.
        """
        started_at, conversation = self.clock.monotonic(), self.group.claim.conversation
        check_tasks: list[asyncio.Task[None]] = []

        def on_arrival() -> None:
            self._has_new_message = self._may_interrupt(started_at)
            if self._has_new_message and not (check_tasks and not check_tasks[-1].done()):
                name = f"look for messages: {conversation}"
                check_tasks[:] = [asyncio.create_task(self._interrupt_answer(stop_flag), name=name)]

        if self._is_gathering_over or self._max_further_messages == 0:
            yield
            return
        unsubscribe = self.arrivals.subscribe(conversation, on_arrival)
        try:
            yield
        finally:
            unsubscribe()
            if check_tasks:
                await cancel_and_wait(check_tasks)

    def _may_interrupt(self, answer_started_at: float) -> bool:
        is_answer_new = self.clock.monotonic() - answer_started_at < self.busy_rules.quiet_seconds
        return self._busy_mode == "interrupt" or (
            is_answer_new and not self._was_answer_interrupted
        )

    async def _interrupt_answer(self, stop_flag: StopFlag) -> None:
        try:
            while self._has_new_message:
                self._has_new_message = False
                await self._read_new_messages()
        except StoreError as error:  # the transaction of `finish` reports the failure
            _log.warning("answer_not_interrupted", reason=str(error))
            return
        if any(isinstance(one.decision, Answer) for one in self._pending):
            self._was_answer_interrupted = True
            stop_flag.supersede()

    @property
    def _max_further_messages(self) -> int:
        """The number of further messages that the answer may cover."""
        pending_count = sum(len(one.parts) for one in self._pending)
        covered_message_count = 1 + len(self.group.message.gathered_messages) + pending_count
        return max(0, self.busy_rules.at_most - covered_message_count)

    @property
    def _newest_message(self) -> InboxMessage:
        pending_parts = (part for one in self._pending for part in one.parts)
        return max((self.group.message.newest_message, *pending_parts), key=lambda one: one.id)

    async def _read_new_messages(self) -> None:
        """Read new messages until one needs its own answer, and decide which are covered."""
        if self._is_gathering_over or self._max_further_messages == 0 or self.decide_on is None:
            return
        newest_message, interleaved_messages = self._newest_message, self.group.interleaved_messages
        later_messages = await self.conversations.load_waiting_after(
            self.group.claim, newest_message, self._max_further_messages
        )
        self.group.interleaved_messages = []
        for message in [*interleaved_messages, *later_messages]:
            incoming = message.incoming
            if not isinstance(incoming, IncomingMessage) or incoming.interaction is not None:
                self._is_gathering_over = True
                return
            pending_message = self._join_to_pending_message(message) or _PendingMessage(
                (message,), incoming, Ignore()
            )
            decision = await self.decide_on(pending_message.message)
            if isinstance(decision, Command | Unreadable):
                self._is_gathering_over = True
                return
            self._pending.append(replace(pending_message, decision=decision))
            self._received_at = message.received_at
            seconds_to_next_part = self._joiner.seconds_to_wait(incoming)
            self._quiet_seconds = max(self.busy_rules.quiet_seconds, seconds_to_next_part)

    def _join_to_pending_message(self, message: InboxMessage) -> _PendingMessage | None:
        """Join a message to the pending message that it continues; return None if there is none."""
        for index, one in enumerate(self._pending):
            incoming = self._joiner.join_next_part(one.message, one.parts[-1], message)
            if incoming is not None:
                del self._pending[index]
                return _PendingMessage((*one.parts, message), incoming, one.decision)
        return None

    async def _gather_pending_messages(self) -> None:
        """Add pending messages to the group, up to the last one that needs an answer."""
        batch = self._pending.copy()
        while batch and not isinstance(batch[-1].decision, Answer):
            batch.pop()
        if not batch:
            return
        del self._pending[: len(batch)]
        message = self.group.message
        parts = [part for one in batch for part in one.parts]
        gathered_messages = sorted((*message.gathered_messages, *parts), key=lambda one: one.id)
        self.group.message = replace(message, gathered_messages=tuple(gathered_messages))
        # This is recorded first, so that after a crash each message is processed alone.
        new_state = AttemptState.WITH_OTHERS
        await self.conversations.record_attempt(self.group.claim, self.group.message, new_state)
        question, speakers = self.question, list(self.question.speakers)
        kept_turns = (turn for one in batch[:-1] for turn in _turns_to_keep(one))
        turns = [user_turn(question.incoming), *kept_turns]
        self.decisions += [(one.message, one.decision) for one in batch]
        self.asker_ids.update(one.message.author.id for one in batch)
        for one in batch:
            if isinstance(one.decision, Answer):
                speakers += [each for each in one.decision.speakers if each not in speakers]
        messages = [question.incoming, *(one.message for one in batch[:-1])]
        files = [file for one in messages for file in (*one.earlier_files, *one.attachments)]
        asker_ids = [one.message.author.id for one in batch if isinstance(one.decision, Answer)]
        shared_roles = set(question.incoming.author_roles or ()).intersection(
            *(one.message.author_roles or () for one in batch if isinstance(one.decision, Answer))
        )
        newest_message = replace(
            batch[-1].message,
            author_roles=tuple(sorted(shared_roles)),
            earlier_files=tuple(files),
            asked_with=(*reversed(asker_ids), *question.incoming.charged_person_ids),
        )
        earlier_turns = (*question.earlier_turns, *turns)
        self.question = replace(
            question, incoming=newest_message, speakers=tuple(speakers), earlier_turns=earlier_turns
        )
        if self._max_further_messages == 0 and not self._is_gathering_over:
            claim, row = self.group.claim, self._newest_message
            rows = await self.conversations.load_waiting_after(claim, row, _MAX_COUNTED_MESSAGES)
            events = (one.incoming for one in rows if isinstance(one.incoming, IncomingMessage))
            self.uncovered_message_count = sum(one.wake is not None for one in events)


def _turns_to_keep(pending_message: _PendingMessage) -> tuple[Turn, ...]:
    match pending_message.decision:
        case Answer():
            return (user_turn(pending_message.message),)
        case Observe():
            return (unanswered_turn(pending_message.message),)
        case _:
            return ()


def user_turn(message: IncomingMessage) -> Turn:
    """Return the history turn of a person's message."""
    return Turn(
        *("user", text_with_attachments(message), message.author, message.at),
        message_id=message.message_id,
        files=files_to_keep(message),
    )


def unanswered_turn(message: IncomingMessage) -> Turn:
    """Return the history turn of a message that is not answered."""
    is_observed = message.wake is not WakeReason.DM
    files = () if is_observed else files_to_keep(message)
    return replace(user_turn(message), is_observed=is_observed, files=files)


async def mark_reply_to_bot(
    conversations: Conversations, claim: Claim, message: IncomingMessage
) -> IncomingMessage:
    """Mark a message as a reply to the bot if it quotes a message sent by the bot's webhook."""
    quote = message.quote
    if quote is None or not quote.by_webhook or quote.message_id is None:
        return message
    turns = await conversations.find_turns(claim, [quote.message_id])
    if not any(one.turn.role == "assistant" for one in turns):
        return message
    wake_reason = message.wake or WakeReason.REPLY
    return replace(message, wake=wake_reason, quote=replace(quote, is_ours=True))
