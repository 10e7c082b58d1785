"""Claim a conversation and process its inbox: each message is decided, handled and finished.

A message is finished by one transaction, `Conversations.finish`. Nothing before it is stored: after
a crash the next claim finds the message unfinished and starts again, and a worker that was too slow
is fenced by its epoch.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from bot.chat.command import Command
from bot.chat.incoming import (
    Deleted,
    Edited,
    ForgetRequested,
    Joined,
    Pressed,
    Said,
    WakeReason,
    address_of,
)
from bot.chat.session import (
    Attempt,
    Claim,
    ClaimedMessage,
    HistoryChange,
    InboxMessage,
    Turn,
    TurnRange,
    TurnResult,
)
from bot.commands.answer_buttons import NOT_REMEMBERED, AnswerButtons
from bot.commands.forgetting import ChannelForgetting, PersonForgetting
from bot.commands.handlers import CommandHandlers
from bot.commands.newest_question import READS_HISTORY
from bot.commands.request import AskedQuestion, CommandRequest, CommandResult
from bot.errors import BackendError, Fenced, StoreError, ToldAlready, UserError
from bot.media.voice_messages import VoiceMessages
from bot.ports import Clock, ConversationMemory, Conversations
from bot.replying.answer_buttons import retry_button
from bot.replying.live_replies import LiveReplies
from bot.replying.media_notice import explain_unreadable
from bot.routing.active_presets import ActiveCharacters
from bot.routing.decide import Answer, Decision, Ignore, Observe, Unreadable, decide
from bot.routing.decision_log import DecisionLog, describe_silence
from bot.routing.preset_resolver import PresetResolver
from bot.routing.wake_rules import Dice
from bot.telemetry.metrics import MESSAGES_FINISHED, SECONDS_TO_FINISH
from bot.texts.text import (
    Text,
    joined,
    language_of,
    translatable,
    translatable_count,
    translate,
)
from bot.turn.answer import AnswerPipeline
from bot.turn.arrivals import ArrivalSignals
from bot.turn.changes.answers_in_place import AnswersInPlace
from bot.turn.changes.edited_messages import EditedMessages
from bot.turn.changes.pressed_buttons import ChosenCommand, PressedButtons
from bot.turn.changes.quoted_messages import QuotedMessages
from bot.turn.command_replies import CommandReplies, has_private_response
from bot.turn.gathering import Gathering, MessageGatherer, observed_turn, user_turn
from bot.turn.isolation import IsolationGate, is_set_aside
from bot.turn.joining import MessageGroup, MessageParts, PartJoiner
from bot.turn.lease import LEASE_SECONDS, LeaseKeeper
from bot.turn.stops import StopRequests
from bot.turn.unanswered import UnansweredQuestions

_log = structlog.get_logger(__name__)
TURNS_FOR_ROUTING = 40
"""Who spoke before these does not matter to who speaks next."""
_SET_ASIDE = translatable(
    "⚠ This message crashed the service repeatedly, so it will not be answered."
)
_REMOVED_FROM_TEXT = translatable(
    "⚠ Your message seems to hold a token, key or password. I removed it from what I keep, but"
    " others here can read it: delete the message and replace the secret."
)
_FORGOTTEN = translatable("I have forgotten that message and everything that was stored about it.")
_CHANGED = translatable("Changed.")
_BUG = translatable("Something went wrong on my side. The error was logged; please try again.")


async def _explain_nothing(_said: Said, _explanation: Text) -> None:
    return


@dataclass(frozen=True, slots=True)
class TurnStages:
    """The stages that a message passes between claim and finish."""

    resolver: PresetResolver
    commands: CommandHandlers
    pipeline: AnswerPipeline
    replies: LiveReplies
    stops: StopRequests
    buttons: AnswerButtons
    forgetting: PersonForgetting
    channel_forgetting: ChannelForgetting
    gatherer: MessageGatherer
    arrivals: ArrivalSignals
    voices: VoiceMessages
    dice: Dice = random.random
    explain_silence: Callable[[Said, Text], Awaitable[None]] = _explain_nothing
    """Tells the people of a channel why nobody answers, where the platform shows that."""


class ConversationWorker:
    """Processes conversations, each alone and in order; many at once."""

    def __init__(
        self,
        conversations: Conversations,
        memories: Sequence[ConversationMemory],
        stages: TurnStages,
        owner: str,
        clock: Clock,
    ) -> None:
        """Set the worker up.

        Args:
            conversations: claims, messages, results.
            memories: what keeps parts of conversations besides, as backends do.
            stages: what a message passes.
            owner: the name that claims are held under.
            clock: time.
        """
        self._conversations = conversations
        self._memories = memories
        self._stages = stages
        self._owner = owner
        self._clock = clock
        self._leases = LeaseKeeper(conversations, clock)
        self._unanswered = UnansweredQuestions()
        self._decisions = DecisionLog()
        self._gate = IsolationGate(clock)
        self._joiner = PartJoiner(conversations, clock)
        in_place = AnswersInPlace(stages.pipeline, stages.replies, stages.stops)
        self._edited_messages = EditedMessages(
            conversations, stages.resolver, in_place, clock, stages.dice
        )
        self._pressed_buttons = PressedButtons(
            *(stages.buttons, stages.resolver, stages.replies, in_place, stages.forgetting),
            stages.commands,
        )
        self._replies_to_commands = CommandReplies(stages.replies)
        self._quoted_messages = QuotedMessages(
            *(conversations, stages.buttons, stages.resolver, stages.replies),
            self._edited_messages,
        )
        self.stopping = False

    async def keep_leases(self) -> None:
        """Renew the leases of all conversations in progress until cancelled."""
        await self._leases.run()

    async def claim(self, keys: Sequence[str]) -> Mapping[str, ClaimedMessage]:
        """Claim those of these conversations that are ready, each with its oldest message."""
        arrivals = self._stages.arrivals
        arrivals.watch(keys)
        begun: dict[str, ClaimedMessage] = {}
        try:
            claimed = await self._conversations.begin(keys, self._owner, LEASE_SECONDS)
            begun = {one.claim.conversation: one for one in claimed}
        finally:
            arrivals.unwatch([key for key in keys if key not in begun])
        return begun

    async def work(self, claimed: ClaimedMessage) -> None:
        """Process the messages of a claimed conversation in order, until there are none."""
        claim = claimed.claim
        message: InboxMessage | None = claimed.message
        try:
            with self._leases.hold(claim):
                while message is not None:
                    message = await self._process_or_undo(claim, message)
        except Fenced as error:
            _log.warning("fenced", conversation=claim.conversation, reason=str(error))
        except (asyncio.CancelledError, StoreError):  # others need not wait for the lease to expire
            with contextlib.suppress(Fenced, StoreError):
                await self._conversations.release(claim)
            raise
        finally:
            self._stages.arrivals.unwatch([claim.conversation])

    async def _process_or_undo(self, claim: Claim, message: InboxMessage) -> InboxMessage | None:
        group = MessageGroup(message)
        try:
            return await self._process_admitted(claim, group)
        except (asyncio.CancelledError, StoreError):  # neither is the message's fault
            with contextlib.suppress(Fenced, StoreError):
                await self._conversations.undo_attempt(claim, group.message)
            raise

    async def _process_admitted(self, claim: Claim, group: MessageGroup) -> InboxMessage | None:
        """Process a message when the gate lets it start."""
        message = group.message
        if is_set_aside(message):
            return await self._process(claim, group)

        async def record(attempt: Attempt) -> None:
            await self._conversations.record_attempt(claim, message, attempt)

        async with self._gate.admitted(message, record):
            return await self._process(claim, group)

    async def _process(self, claim: Claim, group: MessageGroup) -> InboxMessage | None:
        """Process a message; a failure is replied, and the conversation goes on.

        Returns:
            The next message; None: there is none, and the conversation was released.
        """
        outcome, message = "failed", group.message
        try:
            if is_set_aside(message):
                outcome = "set_aside"
                own = message.own_crashes
                _log.error("set_aside", turn=message.turn, crashes=message.crashes, own=own)
                following = await self._finish_with_text(claim, message, _SET_ASIDE)
            else:
                outcome, following = await self._handle(claim, group)
        except (Fenced, StoreError):
            raise
        except ToldAlready:
            outcome, following = "told", await self._finish(claim, group.message, TurnResult())
        except UserError as error:
            outcome = "told"
            text = translatable("⚠ {problem}", problem=error.text)
            following = await self._finish_with_text(claim, group.message, text)
        except Exception:  # noqa: BLE001 -- the only one: a bug must not silence a conversation
            _log.exception("turn_failed", turn=message.turn, error_id=message.error_id)
            following = await self._finish_unanswered(claim, group.message, _BUG)
        for one in (message, *group.message.gathered):
            incoming = one.incoming
            MESSAGES_FINISHED.labels(incoming.address.platform, outcome).inc()
            SECONDS_TO_FINISH.observe(max(0.0, self._clock.now() - incoming.at.timestamp()))
        return following

    async def _handle(self, claim: Claim, group: MessageGroup) -> tuple[str, InboxMessage | None]:
        """Decide what happens to an event and do it.

        Returns:
            The outcome for the metrics, and the next message.
        """
        message = group.message
        match message.incoming:
            case Said() as said:
                return await self._handle_said(claim, group, said)
            case Edited() as edited:
                return await self._handle_edited(claim, group, edited)
            case Deleted(message_ids=ids):
                return "deleted", await self._handle_deleted(claim, message, ids)
            case Pressed() as pressed:
                return await self._handle_pressed(claim, group, pressed)
            case ForgetRequested(person_id=person):
                return "forgotten", await self._forget_person(claim, message, person)
            case Joined() as arrival:
                return "greeted", await self._greet(claim, message, arrival)

    async def _greet(
        self, claim: Claim, message: InboxMessage, arrival: Joined
    ) -> InboxMessage | None:
        """Greet a group once: its arrival is one row of the inbox."""
        active = await self._stages.resolver.resolve(arrival.scopes)
        greeting = self._stages.commands.greet(arrival, active)
        said = greeting.greeting
        turns = [Turn("assistant", said, None, self._now(), greeting.greeter)] if said else []
        shown = translate(greeting.text, language_of(arrival.locale))
        outgoing = self._stages.replies.final_parts(arrival.address, shown)
        return await self._finish(claim, message, TurnResult(turns, outgoing))

    async def _handle_pressed(
        self, claim: Claim, group: MessageGroup, pressed: Pressed
    ) -> tuple[str, InboxMessage | None]:
        message = group.message
        result = await self._pressed_buttons.follow(claim, message, pressed)
        if isinstance(result, ChosenCommand):
            request, done, menu = result.request, result.result, result.menu
            return "pressed", await self._finish_command(claim, message, request, done, menu)
        if isinstance(result, AskedQuestion):
            active = await self._stages.resolver.resolve(pressed.scopes)
            return await self._answer(claim, group, self._repeat(claim, group, result), active)
        if result.change is not None and result.change.deleted:
            return "pressed", await self._finish_forgetting(claim, message, result)
        return "pressed", await self._finish(claim, message, result)

    async def _handle_edited(
        self, claim: Claim, group: MessageGroup, edited: Edited
    ) -> tuple[str, InboxMessage | None]:
        result = await self._edited_messages.follow(claim, group.message, edited)
        if isinstance(result, Said):
            return await self._handle_said(claim, group, result)
        return "edited", await self._finish(claim, group.message, result)

    async def _handle_deleted(
        self, claim: Claim, message: InboxMessage, message_ids: Collection[str]
    ) -> InboxMessage | None:
        """Delete the turns that were said in these messages, and what was derived from them."""
        question = self._unanswered.get(claim.conversation)
        if question is not None and question.message_id in message_ids:
            self._unanswered.drop(claim.conversation)
        turns = await self._conversations.find_turns(claim, message_ids)
        if not turns:
            return await self._finish(claim, message, TurnResult())
        change = HistoryChange(deleted=[one.id for one in turns])
        return await self._finish_forgetting(claim, message, TurnResult(change=change))

    async def _finish_forgetting(
        self, claim: Claim, message: InboxMessage, result: TurnResult
    ) -> InboxMessage | None:
        """Finish with turns deleted, and release what backends have cached of them."""
        self._decisions.forget(address_of(claim.conversation).channel)
        try:
            return await self._finish(claim, message, result)
        finally:  # it may be committed although it failed
            for memory in self._memories:
                await memory.forget(claim.conversation)

    async def _handle_said(
        self, claim: Claim, group: MessageGroup, said: Said
    ) -> tuple[str, InboxMessage | None]:
        stages, message = self._stages, group.message
        said = await self._recognize_reply(claim, said)
        active = await stages.resolver.resolve(said.scopes)
        if isinstance(message.incoming, Said):
            preset, limits = active.first.preset, stages.replies.limits(said.address)
            parts = MessageParts(limits, preset.busy)
            said = await self._joiner.join(claim, group, said, parts)
            said = await stages.voices.write_down(said, preset.provider)
            message = group.message
        needs_recent = active.is_group or said.in_thread
        recent = await self._recent(claim) if needs_recent else ()

        def decide_next(one: Said) -> Decision:
            return decide(one, active, recent, dice=stages.dice, now=self._now())

        decision = decide_next(said)
        self._decisions.note(said, decision)
        if isinstance(decision, Ignore | Observe) and decision.candidates:
            await stages.explain_silence(said, describe_silence(decision))
        match decision:
            case Ignore():
                return "ignored", await self._finish(claim, message, TurnResult())
            case Observe():
                observes = said.wake is not None or await stages.resolver.observes(said.scopes)
                turns = [observed_turn(said)] if observes else []
                return "observed", await self._finish(claim, message, TurnResult(turns))
            case Command() as command:
                if command.name in READS_HISTORY:
                    recent = await self._recent(claim)
                request = CommandRequest(
                    command,
                    said,
                    active,
                    recent,
                    self._now(),
                    self._unanswered.get(claim.conversation),
                    stages.stops.outcome_of(said),
                    self._decisions.newest(said.address.channel),
                    part=message.part_name(0),
                )
                return await self._run_command(claim, group, request)
            case Unreadable(attachments):
                text = explain_unreadable(attachments)
                return "unreadable", await self._finish_with_text(claim, message, text)
            case Answer(speakers):
                asked, limits = AskedQuestion(said, speakers), stages.replies.limits(said.address)
                gathering = stages.gatherer.begin(claim, group, asked, limits, decide_next)
                return await self._answer(claim, group, gathering, active)

    async def _recognize_reply(self, claim: Claim, said: Said) -> Said:
        """Return a message as a reply to the bot if it replies to a character of ours.

        What a webhook wrote does not tell whose webhook that is, but the history knows.
        """
        quote = said.quote
        if quote is None or not quote.by_webhook or quote.message_id is None:
            return said
        turns = await self._conversations.find_turns(claim, [quote.message_id])
        if not any(one.turn.role == "assistant" for one in turns):
            return said
        return replace(said, wake=said.wake or WakeReason.REPLY, quote=replace(quote, is_ours=True))

    async def _answer(
        self,
        claim: Claim,
        group: MessageGroup,
        gathering: Gathering,
        active: ActiveCharacters,
        removed: TurnRange | None = None,
    ) -> tuple[str, InboxMessage | None]:
        """Have messages answered, and replace the removed turns by them and their answer.

        Returns:
            The outcome for the metrics, and the next message.
        """
        try:
            result = await self._answer_all(claim, group, gathering, active, removed)
        except BackendError as error:
            message, asked = group.message, gathering.asked
            number, reason = message.error_id, str(error)
            _log.warning("not_answered", turn=message.turn, error_id=number, reason=reason)
            return "failed", await self._finish_unanswered(claim, message, error.notice, asked)
        for one, decision in gathering.decided:
            self._decisions.note(one, decision)
        self._unanswered.drop(claim.conversation)
        asked = gathering.asked
        channel = asked.incoming.address.channel
        self._decisions.note_substitutes(channel, asked.speakers, result.receipts)
        turns = [*result.earlier, *gathering.earlier, user_turn(asked.incoming), *result.turns]
        result = replace(result, turns=turns, supersedes=removed, in_place_of=asked.in_place_of)
        if gathering.left_over and result.outgoing:
            result = self._with_notice(asked.incoming, result, _more_waiting(gathering))
        result = self._replies_to_commands.with_response(group.message, result)
        return "answered", await self._finish(claim, group.message, result)

    async def _answer_all(
        self,
        claim: Claim,
        group: MessageGroup,
        gathering: Gathering,
        active: ActiveCharacters,
        removed: TurnRange | None,
    ) -> TurnResult:
        """Answer what was gathered; what overtakes the answer is gathered too, and it begins again.

        The answer that was overtaken is dropped; the next one has other parts than it.
        """
        stages = self._stages
        # The first part of a native command is for its author; the answer is for everybody.
        result = TurnResult(next_part=1 if has_private_response(group.message) else 0)
        with stages.stops.answering(gathering.asked.incoming) as stop:
            await gathering.gather_waiting()
            while True:
                asked = gathering.asked
                stages.stops.extend(asked.incoming, gathering.askers)
                self._unanswered.note(asked.incoming, gathering.earlier)
                async with gathering.interrupting(stop):
                    result = await stages.pipeline.answer(
                        *(claim, group.message, asked.incoming, active, asked.speakers, stop),
                        removed,
                        in_place_of=asked.in_place_of,
                        gathered=gathering.earlier,
                        first_part=result.next_part,
                    )
                if not stop.is_superseded:
                    return result
                stop.begin_again()
                await gathering.gather_until_quiet()

    def _repeat(self, claim: Claim, group: MessageGroup, asked: AskedQuestion) -> Gathering:
        """Ask a question again, with what was gathered before it when its answer failed."""
        failed = self._unanswered.get(claim.conversation)
        is_same = failed is not None and failed.message_id == asked.incoming.message_id
        earlier = self._unanswered.earlier(claim.conversation) if is_same else ()
        limits = self._stages.replies.limits(asked.incoming.address)
        return self._stages.gatherer.repeat(claim, group, asked, earlier, limits)

    async def _recent(self, claim: Claim) -> Sequence[Turn]:
        session = await self._conversations.load_session(claim, TURNS_FOR_ROUTING)
        return session.turns

    async def _run_command(
        self, claim: Claim, group: MessageGroup, request: CommandRequest
    ) -> tuple[str, InboxMessage | None]:
        message, quote, commands = group.message, request.incoming.quote, self._stages.commands
        is_on_message = quote is not None and quote.message_id is not None
        match request.command.name:
            case "retry" if is_on_message:
                asked, newer = await self._quoted_messages.retry_from(claim, request)
                gathering = self._repeat(claim, group, asked)
                return await self._answer(claim, group, gathering, request.active, newer)
            case "edit" if is_on_message:
                changed = await self._quoted_messages.edit(claim, message, request)
                shown = self._replies_to_commands.with_response(message, changed, _CHANGED)
                return "command", await self._finish(claim, message, shown)
            case "context" if is_on_message:
                answered_at = await self._quoted_messages.answered_at(request.incoming)
                request = replace(request, answered_at=answered_at)
        result = await commands.handle(request)
        if result.repeats is not None:
            gathering = self._repeat(claim, group, result.repeats)
            return await self._answer(claim, group, gathering, request.active, result.removes)
        if result.forgets is not None:
            return "command", await self._forget_message(claim, message, result)
        return "command", await self._finish_command(claim, message, request, result)

    async def _finish_command(
        self,
        claim: Claim,
        message: InboxMessage,
        request: CommandRequest,
        result: CommandResult,
        menu: CommandResult | None = None,
    ) -> InboxMessage | None:
        if result.new_session or result.removes is not None:
            self._unanswered.drop(claim.conversation)
        if result.deletes_history:
            others = await self._stages.channel_forgetting.request(request.incoming)
            deleted = _deleted(others + await self._delete_history(claim))
            result = _with_first_words(result, deleted)
        stored = self._replies_to_commands.compose(message, request, result, menu)
        following = await self._finish(claim, message, stored)
        if result.new_session:
            for memory in self._memories:
                await memory.end_session(claim.conversation)
        return following

    async def _forget_message(
        self, claim: Claim, message: InboxMessage, result: CommandResult
    ) -> InboxMessage | None:
        message_id = result.forgets or ""
        turns = [*await self._conversations.find_turns(claim, [message_id])]
        if result.forgets_answers:
            exchange = await self._conversations.load_exchange(claim, message_id, 0)
            turns += [one for each in (exchange.versions if exchange else ()) for one in each]
        if not turns:
            return await self._finish_with_text(claim, message, NOT_REMEMBERED)
        if isinstance(message.incoming, Said):
            await self._stages.channel_forgetting.request_copies(message.incoming, message_id)
        shown = translate(_FORGOTTEN, language_of(message.incoming.locale))
        outgoing = self._stages.replies.final_parts(message.incoming.address, shown)
        change = HistoryChange(deleted=[one.id for one in turns])
        return await self._finish_forgetting(
            claim, message, TurnResult(outgoing=outgoing, change=change)
        )

    async def _forget_person(
        self, claim: Claim, message: InboxMessage, person_id: str | None
    ) -> InboxMessage | None:
        """Delete what a person said here, the answers to it, and what was derived from them."""
        if person_id is None:
            await self._delete_history(claim)
            self._unanswered.drop(claim.conversation)
            return await self._finish(claim, message, TurnResult(new_session=True))
        question = self._unanswered.get(claim.conversation)
        if question is not None and question.author.id == person_id:
            self._unanswered.drop(claim.conversation)
        ids = await self._conversations.find_said_by(claim, person_id)
        change = HistoryChange(deleted=ids)
        return await self._finish_forgetting(claim, message, TurnResult(change=change))

    async def _delete_history(self, claim: Claim) -> int:
        """Delete all that is kept of a conversation; return how many turns that was."""
        self._decisions.forget(address_of(claim.conversation).channel)
        try:
            return await self._conversations.forget(claim)
        finally:  # it may be committed although it failed
            for memory in self._memories:
                await memory.forget(claim.conversation)

    async def _finish_unanswered(
        self,
        claim: Claim,
        message: InboxMessage,
        problem: str,
        asked: AskedQuestion | None = None,
    ) -> InboxMessage | None:
        """Say that an answer failed, and keep the question, so that it can be asked again."""
        incoming, in_place_of = message.newest.incoming, asked.in_place_of if asked else ()
        said = asked.incoming if asked else incoming if isinstance(incoming, Said) else None
        text = translatable(
            "⚠ {problem} (error {number})", problem=problem, number=message.error_id
        )
        shown = translate(text, language_of(incoming.locale))
        outgoing = self._stages.replies.final_parts(incoming.address, shown)
        names = tuple(message.part_name(one.part) for one in outgoing)
        if said is not None:
            target = in_place_of[0] if in_place_of else names[-1]
            buttons = retry_button(target, incoming.locale)
            outgoing = self._stages.replies.with_buttons(incoming.address, outgoing, buttons)
        # What takes the messages of an earlier notice has its question kept already.
        is_new = not in_place_of
        unanswered = [replace(user_turn(said), sent_as=names)] if said and is_new else []
        result = TurnResult(outgoing=outgoing, unanswered=unanswered, in_place_of=in_place_of)
        return await self._finish(claim, message, result)

    async def _finish_with_text(
        self, claim: Claim, message: InboxMessage, text: str
    ) -> InboxMessage | None:
        """Reply with a text of the service's own, which is no part of the history."""
        shown = translate(text, language_of(message.incoming.locale))
        outgoing = self._stages.replies.final_parts(message.incoming.address, shown)
        return await self._finish(claim, message, TurnResult(outgoing=outgoing))

    async def _finish(
        self, claim: Claim, message: InboxMessage, result: TurnResult
    ) -> InboxMessage | None:
        """Store the result and have it delivered; return the next message."""
        for one in (message, *message.gathered):
            incoming = one.incoming
            if isinstance(incoming, Said) and incoming.has_masked_token and result.outgoing:
                result = self._with_notice(incoming, result, _REMOVED_FROM_TEXT)
        self._stages.arrivals.watch([claim.conversation])
        finished = await self._conversations.finish(claim, message, result, go_on=not self.stopping)
        if result.outgoing or result.in_place_of or result.was_stopped:
            self._stages.replies.deliver(message.incoming.address, finished.row)
        return finished.next_message

    def _with_notice(self, said: Said, result: TurnResult, notice: str) -> TurnResult:
        """Append a notice of the service to what is sent."""
        following = 1 + max(one.part for one in result.outgoing)
        shown = translate(notice, language_of(said.locale))
        parts = self._stages.replies.final_parts(said.address, shown, following)
        return replace(result, outgoing=[*result.outgoing, *parts])

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)


def _with_first_words(result: CommandResult, words: Text) -> CommandResult:
    """Put words before the text of a result."""
    text, before = (joined([words, one], " ") for one in (result.text, result.text_before_greeting))
    return replace(result, text=text, text_before_greeting=before)


def _deleted(turns: int) -> Text:
    return translatable_count(
        "Deleted for good: 1 message and everything that was stored about it.",
        "Deleted for good: {count} messages and everything that was stored about them.",
        turns,
    )


def _more_waiting(gathering: Gathering) -> Text:
    return translatable_count(
        "⏳ 1 more message came meanwhile. I will answer it next.",
        "⏳ {count} more messages came meanwhile. I will answer them next.",
        gathering.left_over,
    )
