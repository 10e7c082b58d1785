"""Claim conversations and process their inbox messages: decide, handle and finish each one.

`Conversations.finish` stores all results of a message in one transaction, and nothing is stored
before it. After a crash, the next claim finds the message unfinished and starts over. A worker that
lost its claim cannot store anything, because its epoch is outdated.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from bot.chat.command import ANSWERING_ACTIONS, FORM_ACTIONS, Command, parse_button
from bot.chat.incoming import (
    ButtonPress,
    ChatJoin,
    ForgetRequest,
    Incoming,
    IncomingMessage,
    MessageDeletion,
    MessageEdit,
    ReactionChange,
    SayRequest,
)
from bot.chat.session import (
    AttemptState,
    Claim,
    ClaimedMessage,
    HistoryChange,
    InboxMessage,
    StoredTurn,
    Turn,
    TurnResult,
)
from bot.commands.answers import COMMANDS_THAT_READ_HISTORY
from bot.commands.privacy import OPTED_OUT_NOTICE
from bot.commands.request import CommandRequest, CommandResult, OpenQuestion
from bot.errors import AlreadyNotified, Fenced, PrivateError, StoreError, UserError
from bot.intake import redact_message
from bot.replying.answer_parts import explain_unreadable_attachments
from bot.routing.decide import (
    Answer,
    Decision,
    Ignore,
    Observe,
    Unreadable,
    decide_on_message,
    describe_silence,
)
from bot.routing.presets import ActiveCharacters
from bot.runtime.tasks import ResumeLimiter
from bot.telemetry.logs import TurnLogContext
from bot.telemetry.metrics import (
    FENCED_WORK,
    MESSAGES_FINISHED,
    ROOT_SPAN_NAME,
    SECONDS_TO_FINISH,
    record_span,
)
from bot.texts.text import translatable, translatable_count
from bot.turn.claims import LEASE_SECONDS, CrashIsolator, LeaseKeeper, has_crashed_too_often
from bot.turn.commands import CommandRunner
from bot.turn.edits import EditHandler
from bot.turn.finishing import (
    QuestionAnswerer,
    TurnFinisher,
    TurnOutcome,
    TurnServices,
    has_private_response,
)
from bot.turn.message_groups import (
    MessageGroup,
    SplitMessageJoiner,
    join_parts,
    mark_reply_to_bot,
    unanswered_turn,
)
from bot.turn.presses import ChosenCommand, PressHandler

_log = structlog.get_logger(__name__)
TURNS_FOR_ROUTING = 40
"""The number of newest turns that influence which character speaks next."""
_SECONDS_TO_AWAIT_NEWER_EDIT = 1.0
_MAX_LATER_EVENTS = 50
"""The maximum number of waiting events to read; a /stop behind them arrives as a signal."""
_MAX_COUNTED_TURNS = 10_000
_SECONDS_BETWEEN_OPT_OUT_NOTICES = 600.0
_CRASHED_REPEATEDLY_NOTICE = translatable(
    "⚠ This message crashed the service repeatedly, so I won't answer it."
)
_FAILED_OUTCOMES = {"failed", "set_aside"}
_UNEXPECTED_ERROR_NOTICE = translatable(
    "Something went wrong on my side. The error was logged; please try again."
)


class ConversationWorker:
    """Processes many conversations at the same time, but the messages of each in order."""

    def __init__(
        self, services: TurnServices, owner: str, leases: LeaseKeeper | None = None
    ) -> None:
        self._services = services
        self._conversations, self._clock = services.conversations, services.clock
        self._owner = owner
        self.leases = leases or LeaseKeeper(services.conversations, services.clock)
        """Renews the leases of all conversations in progress."""
        self._crash_isolator = CrashIsolator(services.clock)
        self._resume_limiter = ResumeLimiter()
        self._finisher = TurnFinisher(services)
        self._answerer = QuestionAnswerer(services, self._finisher)
        self._edit_handler = EditHandler(services)
        self._press_handler = PressHandler(services, self._edit_handler)
        self._commands = CommandRunner(services, self._edit_handler, self._answerer, self._finisher)
        services.stop_requests.find_events_after = self._find_later_events

    def stop_after_current_messages(self) -> None:
        """Process no messages after the current ones, because the process is shutting down."""
        self._finisher.is_stopping = True

    async def claim(self, keys: Sequence[str]) -> Mapping[str, ClaimedMessage]:
        """Claim conversations, and return the claimed ones, each with its oldest message."""
        arrivals = self._services.arrivals
        arrivals.watch(keys)
        claims_by_key: dict[str, ClaimedMessage] = {}
        queried_at = self._clock.monotonic()
        try:
            claims = await self._conversations.claim_next(keys, self._owner, LEASE_SECONDS)
            claims_by_key = {one.claim.conversation: one for one in claims}
            self.leases.record_held_claims([one.claim for one in claims], queried_at)
        finally:
            arrivals.unwatch([key for key in keys if key not in claims_by_key])
        return claims_by_key

    async def process_messages(self, claimed_message: ClaimedMessage) -> None:
        """Process a claimed conversation's messages in order until none is left."""
        claim = claimed_message.claim
        message: InboxMessage | None = claimed_message.message
        try:
            with self.leases.hold(claim):
                while message is not None:
                    message = await self._process_or_undo(claim, message)
        except Fenced as error:
            FENCED_WORK.labels("conversations").inc()
            _log.warning("claim_lost", conversation=claim.conversation, reason=str(error))
        except (asyncio.CancelledError, StoreError):  # so that nobody waits for the lease to expire
            with contextlib.suppress(Fenced, StoreError):
                await self._conversations.release(claim)
            raise
        finally:
            self._services.arrivals.unwatch([claim.conversation])

    async def _process_or_undo(self, claim: Claim, message: InboxMessage) -> InboxMessage | None:
        """Process a message; if a failure is not its fault, undo the record of the attempt."""
        group = MessageGroup(claim, message)
        try:
            return await self._process_when_admitted(group)
        except (asyncio.CancelledError, StoreError):  # not the message's fault
            with contextlib.suppress(Fenced, StoreError):
                await self._conversations.record_attempt(claim, group.message, AttemptState.NONE)
            raise

    async def _process_when_admitted(self, group: MessageGroup) -> InboxMessage | None:
        message = group.message
        if has_crashed_too_often(message):
            return await self._process_group(group)
        record_attempt = partial(self._conversations.record_attempt, group.claim, message)
        async with self._crash_isolator.wait_until_admitted(message, record_attempt):
            await self._resume_limiter.wait_to_resume()
            return await self._process_group(group)

    async def _process_group(self, group: MessageGroup) -> InboxMessage | None:
        with TurnLogContext(group.message.turn_name):
            message, started_at = group.message, self._clock.now()
            outcome, next_message = await self._handle_or_report(group)
            for one in (message, *group.message.gathered_messages, *group.message.refused_messages):
                self._record_metrics(one, outcome, started_at)
            return next_message

    def _record_metrics(self, message: InboxMessage, outcome: str, started_at: float) -> None:
        incoming, now = message.incoming, self._clock.now()
        platform, received_at = incoming.address.platform, incoming.at.timestamp()
        MESSAGES_FINISHED.labels(platform, outcome).inc()
        SECONDS_TO_FINISH.observe(max(0.0, now - received_at))
        attributes = {"troupe.platform": platform, "troupe.outcome": outcome}
        failure = outcome if outcome in _FAILED_OUTCOMES else None
        for name, begin in (("answer", started_at), (ROOT_SPAN_NAME, received_at)):
            record_span(name, message.turn_name, begin, now, attributes=attributes, error=failure)

    async def _handle_or_report(self, group: MessageGroup) -> TurnOutcome:
        message, finisher = group.message, self._finisher
        try:
            if not has_crashed_too_often(message):
                return await self._handle_event(group)
            crash_count, own_crash_count = message.crash_count, message.own_crash_count
            _log.error(
                "set_aside", turn=message.turn_name, crashes=crash_count, own=own_crash_count
            )
            is_private = has_private_response(message)
            return "set_aside", await finisher.finish_with_text(
                group, _CRASHED_REPEATEDLY_NOTICE, is_private=is_private
            )
        except (Fenced, StoreError):
            raise
        except AlreadyNotified:
            return "told", await finisher.finish(group, TurnResult())
        except UserError as error:
            text = translatable("⚠ {problem}", problem=error.text)
            is_private = isinstance(error, PrivateError) or has_private_response(message)
            return "told", await finisher.finish_with_text(group, text, is_private=is_private)
        except Exception:  # noqa: BLE001 -- the only one: a bug must not silence a conversation
            _log.exception("turn_failed", turn=message.turn_name, error_id=message.error_id)
            return "failed", await finisher.finish_with_error(group, _UNEXPECTED_ERROR_NOTICE)

    async def _handle_event(self, group: MessageGroup) -> TurnOutcome:
        finisher = self._finisher
        match group.message.incoming:
            case IncomingMessage() as message if self._services.is_obsolete(message):
                return "ignored", await finisher.finish(group, TurnResult())
            case IncomingMessage() as message:
                edits = await self._find_edits(group, message.message_id)
                group.edited_at = edits[-1].at if edits else None
                message = edits[-1].said if edits else message
                if not message.is_late and self._services.is_context_only(group.message):
                    message = replace(message, is_late=True)
                return await self._handle_message(group, message)
            case MessageEdit() as edit:
                return await self._handle_edit(group, edit)
            case MessageDeletion(message_ids=ids):
                return "deleted", await self._forget_deleted_messages(group, ids)
            case ButtonPress() | ReactionChange() as press:
                return await self._handle_press(group, press)
            case ForgetRequest(person_id=person):
                return "forgotten", await self._commands.forget_person(group, person)
            case ChatJoin() as arrival:
                return "greeted", await self._greet(group, arrival)
            case SayRequest() as request:
                return await self._send_requested_text(group, request)

    async def _send_requested_text(self, group: MessageGroup, request: SayRequest) -> TurnOutcome:
        """Send text requested through the API as the chat's character, even during a pause."""
        if await self._services.access.is_bot_off(request.scopes):
            return "not_allowed", await self._finisher.finish(group, TurnResult())
        active = await self._services.resolver.resolve(request.scopes)
        result = CommandResult("", greeting=request.text, greeting_preset=active.first.preset.name)
        return "said", await self._commands.greet(group, request.scopes, result)

    async def _forget_deleted_messages(
        self, group: MessageGroup, message_ids: Sequence[str]
    ) -> InboxMessage | None:
        turns = await self._conversations.find_turns(group.claim, message_ids)
        if not turns:
            return await self._finisher.finish(group, TurnResult())
        deletion_result = TurnResult(change=HistoryChange(deleted_ids=[one.id for one in turns]))
        return await self._finisher.finish_forgetting(group, deletion_result)

    async def _greet(self, group: MessageGroup, join: ChatJoin) -> InboxMessage | None:
        """Greet a new group, or say in a reopened chat that its conversation continues."""
        active = await self._services.resolver.resolve(join.scopes)
        if join.opens_chat:
            session = await self._conversations.load_session(group.claim, _MAX_COUNTED_TURNS)
            if turns := [turn for turn in session.turns if not turn.is_observed]:
                text = translatable_count(
                    "{name} answers here. This conversation has 1 message; /new starts a new one.",
                    "{name} answers here. This conversation has {count} messages; /new starts a new"
                    " one.",
                    len(turns),
                    name=active.first.preset.character_name,
                )
                return await self._finisher.finish_with_text(group, text)
        greeting_result = await self._services.commands.greet(join, active)
        greeting_result = await self._commands.moderate_greeting(join, greeting_result)
        return await self._commands.greet(group, join.scopes, greeting_result)

    async def _handle_press(
        self, group: MessageGroup, event: ButtonPress | ReactionChange
    ) -> TurnOutcome:
        has_opted_out = bool(await self._services.resolver.find_opted_out([event.author.id]))
        result: TurnResult | OpenQuestion | ChosenCommand = TurnResult()
        if isinstance(event, ButtonPress):
            button = parse_button(event)
            needs_consent = button is not None and button.action in ANSWERING_ACTIONS | FORM_ACTIONS
            if has_opted_out and needs_consent:
                return "withheld", await self._explain_opt_out(group, event)
            result = await self._press_handler.apply_press(group, event)
        elif not has_opted_out:
            result = await self._press_handler.apply_reaction(group, event)
        if isinstance(result, tuple):
            request, command_result, menu = result
            return "pressed", await self._commands.finish(group, request, command_result, menu)
        if isinstance(result, OpenQuestion):
            active = await self._services.resolver.resolve(event.scopes)
            return await self._answerer.answer(group, result, active)
        if result.change is not None and result.change.deleted_ids:
            return "pressed", await self._finisher.finish_forgetting(group, result)
        return "pressed", await self._finisher.finish(group, result)

    async def _handle_edit(self, group: MessageGroup, edit: MessageEdit) -> TurnOutcome:
        is_refused = await self._services.access.find_refusal(edit.said) is not None
        author_id = edit.said.author.id
        is_withheld = is_refused or bool(await self._services.resolver.find_opted_out([author_id]))
        if is_withheld or await self._is_superseded(group, edit):
            return "superseded", await self._finisher.finish(group, TurnResult())
        if self._services.is_conversation_paused(group.claim.conversation):
            # During a pause the stored text changes, but no answer is generated.
            edit = replace(edit, said=replace(edit.said, is_late=True))
        result = await self._edit_handler.apply_edit(group, edit)
        if isinstance(result, IncomingMessage):
            return await self._handle_message(group, result)
        return "edited", await self._finisher.finish(group, result)

    async def _find_edits(self, group: MessageGroup, message_id: str | None) -> list[MessageEdit]:
        later_events = await self._find_later_events(group.claim, group.message)
        edits = [one for one in later_events if isinstance(one, MessageEdit)]
        return [one for one in edits if one.message_id == message_id and message_id is not None]

    async def _is_superseded(self, group: MessageGroup, edit: MessageEdit) -> bool:
        """Wait a moment, then return whether a newer edit of the message has arrived."""
        if await self._find_edits(group, edit.message_id):
            return True
        if not self._services.stop_requests.was_edited(edit.message_id, group.claim.conversation):
            return False
        await self._clock.sleep(_SECONDS_TO_AWAIT_NEWER_EDIT)
        return bool(await self._find_edits(group, edit.message_id))

    async def _find_later_events(self, claim: Claim, message: InboxMessage) -> Sequence[Incoming]:
        """Return the events that follow `message` and the messages gathered with it, in order."""
        arrivals = self._services.arrivals
        if not (message.has_messages_waiting or arrivals.has_new_event(claim.conversation)):
            return ()
        waiting_messages = await self._conversations.load_waiting_messages(claim, _MAX_LATER_EVENTS)
        return [one.incoming for one in waiting_messages if one.id > message.newest_message.id]

    async def _handle_message(self, group: MessageGroup, message: IncomingMessage) -> TurnOutcome:
        services = self._services
        active, opted_out_ids = await services.resolver.resolve_for_message(message)
        kept_message = redact_message(message, opted_out_ids) if opted_out_ids else message
        if kept_message is None:
            return "ignored", await self._finisher.finish(group, TurnResult())
        if opted_out_ids and isinstance(group.message.incoming, IncomingMessage):
            # The message may have been stored before its author opted out.
            group.message = replace(group.message, incoming=kept_message)
        is_bot = message.author_is_bot
        refusal = None if is_bot else await services.access.find_refusal(kept_message)
        if refusal is not None:
            return "not_allowed", await self._commands.refuse_access(group, kept_message, refusal)
        return await self._handle_permitted_message(group, kept_message, active)

    async def _handle_permitted_message(
        self, group: MessageGroup, message: IncomingMessage, active: ActiveCharacters
    ) -> TurnOutcome:
        services, finisher, conversations = self._services, self._finisher, self._conversations
        message = await mark_reply_to_bot(conversations, group.claim, message)
        if isinstance(group.message.incoming, IncomingMessage) and not message.is_withheld:
            preset, limits = active.first.preset, services.replies.limits(message.address)
            joiner = SplitMessageJoiner(limits, preset.busy)
            message = await join_parts(group, message, joiner, conversations, self._clock)
            if message.attachments:
                message = await services.voice_transcriber.transcribe(message, preset.provider)
        needs_recent_turns = active.is_group or message.in_thread
        recent_turns = await self._load_recent_turns(group.claim) if needs_recent_turns else ()

        decide_on = partial(self._decide_on_later_message, active, recent_turns)
        decision = await self._decide_on_message(active, recent_turns, message)
        services.decisions.record(message, decision)
        if isinstance(decision, Ignore | Observe) and decision.candidates:
            await services.explain_silence(message, describe_silence(decision))
        # What was sent for a late message stays: it was answered before a database restore.
        is_on_time = not message.is_late
        match decision:
            case Ignore():
                return "ignored", await finisher.finish(group, TurnResult(may_have_sent=is_on_time))
            case Observe():
                observed_result = TurnResult([unanswered_turn(message)], may_have_sent=is_on_time)
                return "observed", await finisher.finish(group, observed_result)
            case Command() as command:
                return await self._run_command(group, command, message, active, recent_turns)
            case Unreadable() if message.is_withheld:
                return "withheld", await self._explain_opt_out(group, message)
            case Unreadable():
                return "unreadable", await self._explain_unreadable_message(group, message)
            case Answer(speakers):
                question = OpenQuestion(message, speakers)
                return await self._answerer.answer(group, question, active, decide_on=decide_on)

    async def _run_command(
        self,
        group: MessageGroup,
        command: Command,
        message: IncomingMessage,
        active: ActiveCharacters,
        recent_turns: Sequence[Turn],
    ) -> TurnOutcome:
        if self._services.command_limits is not None:
            await self._services.command_limits.admit(message, command)
        failed_questions: Sequence[StoredTurn] = ()
        if command.name in COMMANDS_THAT_READ_HISTORY:
            recent_turns = await self._load_recent_turns(group.claim)
            failed_questions = await self._conversations.load_failed_questions(group.claim)
        services = self._services
        stop_outcome = services.stop_requests.stop_outcome(message)
        arguments = (command, message, active, recent_turns, services.now())
        request = CommandRequest(
            *arguments, failed_questions, stop_outcome, part_name=group.message.part_name(0)
        )
        return await self._commands.run(group, request)

    async def _explain_unreadable_message(
        self, group: MessageGroup, message: IncomingMessage
    ) -> InboxMessage | None:
        limits = self._services.command_limits
        if limits is not None and not await limits.should_report_unreadable_message(message):
            return await self._finisher.finish(group, TurnResult())
        explanation = explain_unreadable_attachments(message.attachments)
        return await self._finisher.finish_with_text(group, explanation)

    async def _explain_opt_out(
        self, group: MessageGroup, event: IncomingMessage | ButtonPress
    ) -> InboxMessage | None:
        """Tell people who opted out that they are ignored. In groups, do so only now and then."""
        name = f"off:{event.address.channel}:{event.author.id}"
        limiter = self._services.notice_limiter
        needs_response = event.is_private or event.interaction is not None
        if needs_response or await limiter.is_due(name, _SECONDS_BETWEEN_OPT_OUT_NOTICES):
            return await self._finisher.finish_with_text(group, OPTED_OUT_NOTICE, is_private=True)
        return await self._finisher.finish(group, TurnResult())

    async def _decide_on_message(
        self, active: ActiveCharacters, turns: Sequence[Turn], message: IncomingMessage
    ) -> Decision:
        services = self._services
        if services.stop_requests.was_deleted(message):
            return Ignore()
        decision = decide_on_message(message, active, turns, dice=services.dice, now=services.now())
        if isinstance(decision, Observe) and message.wake is None:
            may_observe = await services.resolver.may_observe(message.scopes)
            return decision if may_observe else Ignore(decision.candidates)
        return decision

    async def _decide_on_later_message(
        self, active: ActiveCharacters, recent_turns: Sequence[Turn], message: IncomingMessage
    ) -> Decision:
        """Decide whether the current answer also covers this later message."""
        opted_out_ids = await self._services.resolver.find_opted_out([message.author.id])
        kept_message = redact_message(message, opted_out_ids)
        if kept_message is None:
            return Ignore()
        if await self._services.access.find_refusal(kept_message) is None:
            return await self._decide_on_message(active, recent_turns, kept_message)
        # A message that addresses the bot is not gathered; it is refused when its turn comes.
        return Ignore() if message.wake is None else Unreadable(())

    async def _load_recent_turns(self, claim: Claim) -> Sequence[Turn]:
        return (await self._conversations.load_session(claim, TURNS_FOR_ROUTING)).turns
