"""Answer questions, and finish messages: store and send their results."""

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

import structlog

from bot.chat.command import ButtonAction
from bot.chat.incoming import Address, ButtonPress, IncomingMessage, Request, parse_address
from bot.chat.outgoing import FIRST_NOTICE_PART, Face, MessageContent, OutgoingPart, PrivateDelivery
from bot.chat.session import Claim, InboxMessage, Turn, TurnRange, TurnResult
from bot.commands.answers import AnswerButtons
from bot.commands.handlers import CommandHandlers
from bot.commands.privacy import DeletionRequests
from bot.commands.request import OpenQuestion
from bot.errors import AgeUnconfirmed, AnswerRefused, BackendError
from bot.media.voice_messages import VoiceTranscriber
from bot.ports import Clock, ConversationMemory
from bot.replying.answer_parts import action_buttons
from bot.replying.live_reply import LiveReplies
from bot.routing.decide import AccessRules, Decision, DecisionLog
from bot.routing.presets import ActiveCharacters, PresetResolver
from bot.routing.speakers import Dice
from bot.storage.conversations import Conversations
from bot.storage.operation import SqlMessageNotes
from bot.telemetry.logs import RECENT_EVENTS, create_failure_note
from bot.texts.text import Text, supported_language, translatable, translatable_count, translate
from bot.turn.answer import AnswerPipeline
from bot.turn.limits.rate_limits import CommandLimits, NoticeLimiter
from bot.turn.limits.refusals import BUSY_NOTICE, QueueLimit
from bot.turn.message_groups import MessageGathering, MessageGroup, unanswered_turn, user_turn
from bot.turn.signals import ArrivalSignals, StopRequests
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_SECRET_REMOVED_NOTICE = translatable(
    "⚠ Your message seems to contain a token, key or password. I removed it from my stored copy,"
    " but others here can read it: delete the message and replace the secret."
)
_ANSWERED_AGAIN_NOTICE = translatable("I've answered the question again below.")
_BLOCKED_NOTICE = translatable("⚠ This chat blocks my answers. Admins can see why: /settings why.")
_PRIVATE_NOTICE = translatable("My reply is for you alone. I am sending it in a private chat.")
_SECONDS_BETWEEN_PAUSE_NOTICES = 600.0
PAUSED_NOTICE = translatable(
    "⏸ I'm paused and not answering anyone right now. I still remember what you write; please ask"
    " again later."
)


TurnOutcome: TypeAlias = tuple[str, InboxMessage | None]
"""A message's outcome for the metrics, and the next message of its conversation, if any."""


@value_class
class TurnServices:
    """The components shared by the worker and its helpers."""

    conversations: Conversations
    memories: Sequence[ConversationMemory]
    """Components that cache data of conversations, such as backends."""
    clock: Clock
    resolver: PresetResolver
    commands: CommandHandlers
    pipeline: AnswerPipeline
    replies: LiveReplies
    stop_requests: StopRequests
    buttons: AnswerButtons
    access: AccessRules
    deletions: DeletionRequests
    arrivals: ArrivalSignals
    voice_transcriber: VoiceTranscriber
    decisions: DecisionLog
    message_notes: SqlMessageNotes
    explain_silence: Callable[[IncomingMessage, Text], Awaitable[None]]
    """Shows people in a channel why no character answers, on platforms that support this."""
    is_conversation_paused: Callable[[str], bool]
    """Returns whether an operator paused the conversation with this key."""
    is_obsolete: Callable[[IncomingMessage], bool]
    """Returns whether a message was handled before a database restore and must be ignored."""
    is_context_only: Callable[[InboxMessage], bool]
    """Returns whether a message may have been answered before a database restore."""
    notice_limiter: NoticeLimiter
    """Limits how often a channel is told that the service is busy."""
    queue_limit: QueueLimit | None
    command_limits: CommandLimits | None
    dice: Dice = random.random

    def now(self) -> datetime:
        return self.clock.utc_now()

    def find_name_and_face(
        self, turn: Turn, address: Address, active: ActiveCharacters
    ) -> tuple[str, Face | None]:
        """Return how an answer shows its character: a name line and, where supported, a face."""
        if turn.preset not in active.names:
            return "", None
        [speaker] = active.select_members([turn.preset])
        character_names = self.resolver.character_names(active.names)
        limits = self.replies.limits(address)
        return active.build_name_line_and_face(speaker, character_names, limits)


@dataclass(slots=True)
class TurnFinisher:
    """Stores results and starts to send them; `finish...` methods return the next message."""

    services: TurnServices
    is_stopping: bool = False
    """Whether the process is shutting down, so that no next message is returned."""

    async def finish(self, group: MessageGroup, result: TurnResult) -> InboxMessage | None:
        """Store a result and start to deliver it."""
        services, claim, message = self.services, group.claim, group.message
        for one in (message, *message.gathered_messages):
            incoming = one.incoming
            if (
                isinstance(incoming, IncomingMessage | ButtonPress)
                and incoming.has_masked_token
                and result.outgoing
            ):
                part_number = 1 + max(
                    one.number for one in result.outgoing if one.number < FIRST_NOTICE_PART
                )
                result = self._with_notice(incoming, result, _SECRET_REMOVED_NOTICE, part_number)
        if message.refused_messages:
            refused_messages = [
                one.incoming
                for one in message.refused_messages
                if isinstance(one.incoming, IncomingMessage)
                and not one.incoming.is_withheld
                and await services.access.find_refusal(one.incoming) is None
            ]
            result = replace(result, turns=[*result.turns, *map(unanswered_turn, refused_messages)])
            unnotified_messages = [one for one in refused_messages if one.interaction is None]
            if unnotified_messages:
                result = await self.add_notice_if_due(unnotified_messages[0], result, BUSY_NOTICE)
        services.arrivals.watch([claim.conversation])
        finished_turn = await services.conversations.finish(
            claim, message, result, begins_next=not self.is_stopping
        )
        if finished_turn.row or result.outgoing or result.replaced_part_names or result.was_stopped:
            event = message.incoming
            is_response = event.interaction is not None
            services.replies.deliver(event.address, finished_turn.row, is_response=is_response)
        return finished_turn.next_message

    async def finish_with_text(
        self, group: MessageGroup, text: str, *, is_private: bool = False, omits_hint: bool = False
    ) -> InboxMessage | None:
        """Finish with a reply that is not stored in the history."""
        incoming, request = group.message.incoming, group.message.reply_target.incoming
        outgoing = self.services.replies.notice_parts(incoming.address, text, incoming.locale)
        if is_private and isinstance(request, IncomingMessage | ButtonPress):
            outgoing = self.make_private_to_author(request, outgoing, omits_hint=omits_hint)
        return await self.finish(group, TurnResult(outgoing=outgoing))

    def make_private_to_author(
        self, request: Request, parts: Sequence[OutgoingPart], *, omits_hint: bool = False
    ) -> tuple[OutgoingPart, ...]:
        """Return the parts, changed so that only the author sees them, even in a group chat."""
        replies, limits = self.services.replies, self.services.replies.limits(request.address)
        if request.is_private or not limits.has_private_chats:
            return tuple(parts)
        delivery = PrivateDelivery(request.author.id, request.locale, omits_hint)
        if isinstance(request, ButtonPress):
            # Elsewhere, the response to a press is the message with the button.
            is_response = limits.fills_private_replies_by_edit
            return tuple(
                replace(one, private_delivery=delivery, is_response=is_response) for one in parts
            )
        delivery = replace(delivery, reply_to=request.message_id)
        private_parts = tuple(replace(one, private_delivery=delivery) for one in parts)
        if not request.has_public_response:
            return private_parts
        public_response, *_ = replies.notice_parts(request.address, _PRIVATE_NOTICE, request.locale)
        private_parts = tuple(replace(one, number=one.number + 1) for one in private_parts)
        return (replace(public_response, is_response=True), *private_parts)

    async def finish_with_error(self, group: MessageGroup, problem: str) -> InboxMessage | None:
        """Finish with a notice that the answer failed, and a retry button."""
        turn_name, error_id = group.message.turn_name, group.message.error_id
        text = translatable("⚠ {problem} (error {number})", problem=problem, number=error_id)
        await self.services.message_notes.add([create_failure_note(RECENT_EVENTS, turn_name)])
        return await self.finish_with_button(group, text, ButtonAction.RETRY)

    async def finish_with_button(
        self, group: MessageGroup, text: Text, action: ButtonAction
    ) -> InboxMessage | None:
        """Finish with a notice that says why a question is not answered, and a retry button."""
        message, open_question, replies = group.message, group.question, self.services.replies
        incoming = message.newest_message.incoming
        replaced_names = open_question.replaced_part_names if open_question else ()
        question = incoming if isinstance(incoming, IncomingMessage) else None
        if open_question:
            question = open_question.incoming
        outgoing = replies.notice_parts(incoming.address, text, incoming.locale)
        part_names = tuple(message.part_name(one.number) for one in outgoing)
        if question is not None:
            button_part_name = replaced_names[0] if replaced_names else part_names[-1]
            buttons = action_buttons(button_part_name, incoming.locale, action)
            outgoing = replies.with_buttons(incoming.address, outgoing, buttons)
        # If this notice replaces an earlier one, the question is already kept.
        earlier_turns = open_question.earlier_turns if open_question else ()
        turns = [*earlier_turns, user_turn(question)] if question and not replaced_names else []
        questions = [replace(one, part_names=part_names) for one in turns]
        result = TurnResult(
            outgoing=outgoing, unanswered_questions=questions, replaced_part_names=replaced_names
        )
        return await self.finish(group, result)

    async def finish_forgetting(
        self, group: MessageGroup, result: TurnResult, person_id: str | None = None
    ) -> InboxMessage | None:
        """Finish by deleting a person's turns, copies and decisions; without an id, everybody's."""
        conversation = group.claim.conversation
        await self.services.decisions.forget(parse_address(conversation).channel, person_id)
        try:
            return await self.finish(group, result)
        finally:  # a failed transaction may be committed
            await self.forget_cached_data(conversation)

    async def delete_history(self, claim: Claim) -> int:
        """Delete a conversation's stored data, and return its number of turns."""
        await self.services.decisions.forget(parse_address(claim.conversation).channel)
        try:
            return await self.services.conversations.forget(claim)
        finally:  # a failed transaction may be committed
            await self.forget_cached_data(claim.conversation)

    async def forget_cached_data(self, conversation: str) -> None:
        for memory in self.services.memories:
            await memory.forget(conversation)

    async def add_notice_if_due(
        self, message: IncomingMessage, result: TurnResult, notice: Text
    ) -> TurnResult:
        """Add a notice to a result, unless the channel got a notice recently."""
        if result.outgoing and await self.services.notice_limiter.is_due_in_channel(
            message.address.channel
        ):
            return self._with_notice(message, result, notice, FIRST_NOTICE_PART)
        return result

    def _with_notice(
        self, event: Request, result: TurnResult, notice: Text, part_number: int
    ) -> TurnResult:
        parts = self.services.replies.notice_parts(event.address, notice, event.locale, part_number)
        return replace(result, outgoing=[*result.outgoing, *parts])


@value_class
class QuestionAnswerer:
    """Answers questions. When a new message interrupts an answer, the answer starts over."""

    services: TurnServices
    finisher: TurnFinisher

    async def answer(
        self,
        group: MessageGroup,
        question: OpenQuestion,
        active: ActiveCharacters,
        removed_turns: TurnRange | None = None,
        decide_on: Callable[[IncomingMessage], Awaitable[Decision]] | None = None,
    ) -> TurnOutcome:
        """Answer a question, and later messages if `decide_on` allows."""
        services, finisher = self.services, self.finisher
        limits = services.replies.limits(question.incoming.address)
        conversations, arrivals, clock = services.conversations, services.arrivals, services.clock
        gathering = MessageGathering(
            group, question, limits, conversations, arrivals, clock, decide_on
        )
        is_new = removed_turns is None
        if services.is_conversation_paused(group.claim.conversation):
            paused_result = await self._result_while_paused(group, gathering, is_new=is_new)
            return "paused", await finisher.finish(group, paused_result)
        try:
            result = await self._answer_with_restarts(group, gathering, active, removed_turns)
        except AgeUnconfirmed as error:
            notice = translatable("⚠ {problem}", problem=error.text)
            action = ButtonAction.CONFIRM_AGE
            return "told", await finisher.finish_with_button(group, notice, action)
        except AnswerRefused:
            result = _unanswered_result(gathering, is_new=is_new)
            result = add_private_response(group.message, result, _BLOCKED_NOTICE)
            return "refused", await finisher.finish(group, result)
        except BackendError as error:
            message, reason, problem = group.message, str(error), error.notice
            error_id = message.error_id
            _log.warning("answer_failed", turn=message.turn_name, error_id=error_id, reason=reason)
            if services.replies.limits(message.incoming.address).shows_error_causes:
                problem = translatable("{problem}\n{cause}", problem=problem, cause=reason)
            return "failed", await finisher.finish_with_error(group, problem)
        for one, decision in gathering.decisions:
            services.decisions.record(one, decision)
        if result is None:  # the question was deleted, so delete what was sent
            deletion_result = TurnResult(was_stopped=True, is_question_deleted=True)
            return "withdrawn", await finisher.finish_forgetting(group, deletion_result)
        question = gathering.question
        channel = question.incoming.address.channel
        services.decisions.record_substitute_models(channel, question.speakers, result.receipts)
        earlier_turns, replaced_names = question.earlier_turns, question.replaced_part_names
        turns = [*result.channel_turns, *earlier_turns, user_turn(question.incoming), *result.turns]
        result = replace(
            result, turns=turns, replaced_range=removed_turns, replaced_part_names=replaced_names
        )
        if gathering.uncovered_message_count and not group.message.refused_messages:
            waiting_notice = translatable_count(
                "⏳ 1 more message has arrived. I will answer it next.",
                "⏳ {count} more messages have arrived. I will answer them next.",
                gathering.uncovered_message_count,
            )
            result = await finisher.add_notice_if_due(question.incoming, result, waiting_notice)
        next_message = await finisher.finish(group, add_private_response(group.message, result))
        if any(one.memory for one in active.presets):
            services.pipeline.extractor.record_answer(question.incoming, active.presets)
        return "answered", next_message

    async def _result_while_paused(
        self, group: MessageGroup, gathering: MessageGathering, *, is_new: bool
    ) -> TurnResult:
        """Return a result that stores the question and, if due, sends a notice of the pause."""
        message, result = gathering.question.incoming, _unanswered_result(gathering, is_new=is_new)
        if is_native_command(group.message):
            return add_private_response(group.message, result, PAUSED_NOTICE)
        name = f"paused:{message.address.channel}"
        if not await self.services.notice_limiter.is_due(name, _SECONDS_BETWEEN_PAUSE_NOTICES):
            return result
        parts = self.services.replies.notice_parts(message.address, PAUSED_NOTICE, message.locale)
        return replace(result, outgoing=parts)

    async def _answer_with_restarts(
        self,
        group: MessageGroup,
        gathering: MessageGathering,
        active: ActiveCharacters,
        removed_turns: TurnRange | None,
    ) -> TurnResult | None:
        """Answer, starting over when interrupted; return None if the question was deleted."""
        stop_requests, queue_limit = self.services.stop_requests, self.services.queue_limit
        is_new = isinstance(group.message.incoming, IncomingMessage) and removed_turns is None
        # Part 0 is the response to a native command; the answer for everybody starts at part 1.
        first_part_number = 1 if is_native_command(group.message) else 0
        async with (
            stop_requests.stoppable_answer(
                group.claim, group.message, gathering.question.incoming, group.edited_at
            ) as stop_flag,
            queue_limit.refuse_excess_messages(group, gathering.busy_rules.at_most)
            if queue_limit is not None
            else nullcontext(),
        ):
            if group.message.has_messages_waiting:
                await gathering.gather_until_quiet()
            while True:
                question = group.question = gathering.question
                is_for_one_message = is_new and not group.message.gathered_messages
                stop_requests.cover_newer_message(
                    question.incoming, gathering.asker_ids, is_for_one_message=is_for_one_message
                )
                async with gathering.interrupt_on_arrival(stop_flag):
                    result = await self.services.pipeline.answer(
                        group,
                        question,
                        active,
                        stop_flag,
                        removed_turns,
                        first_part_number=first_part_number,
                    )
                if not stop_flag.is_superseded:
                    return None if stop_flag.is_question_deleted else result
                first_part_number = result.next_part_number
                stop_flag.reset()
                await gathering.gather_until_quiet()


def is_native_command(message: InboxMessage) -> bool:
    """Return whether a message is a native command, which needs a response."""
    incoming = message.incoming
    return isinstance(incoming, IncomingMessage) and incoming.interaction is not None


def has_private_response(message: InboxMessage) -> bool:
    """Return whether a message is a native command whose response only its author sees."""
    incoming = message.incoming
    is_public = isinstance(incoming, IncomingMessage) and incoming.has_public_response
    return is_native_command(message) and not is_public


def add_private_response(
    message: InboxMessage, result: TurnResult, text: Text = _ANSWERED_AGAIN_NOTICE
) -> TurnResult:
    """Add a private response to a native command whose answer is public."""
    if not is_native_command(message):
        return result
    next_part_number = max(
        (one.number + 1 for one in result.outgoing), default=result.next_part_number
    )
    response_text = translate(text, supported_language(message.incoming.locale))
    response = OutgoingPart(next_part_number, MessageContent(response_text), is_response=True)
    return replace(result, outgoing=(*result.outgoing, response))


def _unanswered_result(gathering: MessageGathering, *, is_new: bool) -> TurnResult:
    question = gathering.question
    if not is_new or question.replaced_part_names:
        return TurnResult()
    return TurnResult([*question.earlier_turns, unanswered_turn(question.incoming)])
