"""Claim a conversation and process its inbox: each message is decided, handled and finished.

A message is finished by one transaction, `Conversations.finish`. Nothing before it is stored: after
a crash the next claim finds the message unfinished and starts again, and a worker that was too slow
is fenced by its epoch.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import structlog

from bot.chat.command import Command
from bot.chat.incoming import Deleted, Edited, ForgetRequested, Incoming, Joined, Pressed, Said
from bot.chat.session import (
    Attempt,
    Claim,
    ClaimedMessage,
    HistoryChange,
    InboxMessage,
    StoredTurn,
    Turn,
    TurnResult,
)
from bot.commands.answers import READS_HISTORY
from bot.commands.request import AskedQuestion, CommandRequest
from bot.errors import Fenced, StoreError, ToldAlready, UserError
from bot.ports import Clock, ConversationMemory
from bot.prompting.presets.preset import Preset
from bot.replying.answer_parts import explain_unreadable
from bot.routing.decide import Answer, Decision, Ignore, Observe, Unreadable, decide
from bot.routing.decision_log import describe_silence
from bot.routing.presets import ActiveCharacters
from bot.runtime.tasks import WakeUps
from bot.storage.conversations import Conversations
from bot.telemetry.logs import BoundTurn
from bot.telemetry.metrics import FENCED, MESSAGES_FINISHED, SECONDS_TO_FINISH
from bot.telemetry.traces import ROOT, record_span
from bot.texts.text import Text, translatable, translatable_count
from bot.turn.claims import LEASE_SECONDS, IsolationGate, LeaseKeeper, is_set_aside
from bot.turn.commands import CommandRuns, StopRefusals
from bot.turn.edits import AnswersInPlace, EditedMessages, recognize_reply
from bot.turn.finishing import CommandReplies, QuestionAnswers, TurnFinisher
from bot.turn.message_groups import MessageGroup, MessageParts, PartJoiner, observed_turn
from bot.turn.presses import ChosenCommand, PressedButtons, QuotedMessages
from bot.turn.stages import TurnStages

_log = structlog.get_logger(__name__)
TURNS_FOR_ROUTING = 40
"""Who spoke before these does not matter to who speaks next."""
_SECONDS_BETWEEN_EDITS = 1.0
_MAX_LATER = 50
"""A stop further behind has its signal."""
_MAX_COUNTED_TURNS = 10_000
_SET_ASIDE = translatable(
    "⚠ This message crashed the service repeatedly, so it will not be answered."
)
_FAILED_OUTCOMES = {"failed", "set_aside"}
_BUG = translatable("Something went wrong on my side. The error was logged; please try again.")


class ConversationWorker:
    """Processes conversations, each alone and in order; many at once."""

    def __init__(
        self,
        conversations: Conversations,
        memories: Sequence[ConversationMemory],
        stages: TurnStages,
        owner: str,
        clock: Clock,
        leases: LeaseKeeper | None = None,
    ) -> None:
        """Set the worker up.

        Args:
            conversations: claims, messages, results.
            memories: what keeps parts of conversations besides, as backends do.
            stages: what a message passes.
            owner: the name that claims are held under.
            clock: time.
            leases: renews the claims; None: nobody else asks it about them.
        """
        self._conversations = conversations
        self._stages = stages
        self._owner = owner
        self._clock = clock
        self._leases = leases or LeaseKeeper(conversations, clock)
        self._decisions = stages.decisions
        self._gate = IsolationGate(clock)
        self._starts = WakeUps()
        self._joiner = PartJoiner(conversations, clock)
        self._finisher = TurnFinisher(
            *(conversations, memories, stages.replies, stages.arrivals, self._decisions),
            *(stages.notes, stages.notices),
        )
        self._command_replies = replies_to_commands = CommandReplies(
            stages.replies, stages.resolver
        )
        self._answers = QuestionAnswers(
            *(stages.pipeline, stages.gatherer, stages.stops, stages.replies),
            *(self._decisions, self._finisher, replies_to_commands),
            *(stages.is_paused, stages.queue_limit, stages.refused_chats),
        )
        in_place = AnswersInPlace(stages.pipeline, stages.replies, stages.stops)
        self._edited_messages = EditedMessages(
            conversations, stages.resolver, in_place, clock, stages.dice
        )
        self._pressed_buttons = PressedButtons(
            *(stages.buttons, stages.resolver, stages.replies, in_place, stages.forgetting),
            stages.commands,
        )
        quoted_messages = QuotedMessages(
            *(conversations, stages.buttons, stages.resolver, stages.replies),
            self._edited_messages,
        )
        stages.stops.find_later = self._find_later
        stages.stops.tell_refusal = StopRefusals(conversations, stages.replies).tell
        self._command_runs = CommandRuns(
            *(stages.commands, conversations, stages.replies, stages.channel_forgetting),
            *(quoted_messages, self._answers, self._finisher, replies_to_commands),
        )

    def stop_after_current(self) -> None:
        """Take no next message when one is finished: the process ends."""
        self._finisher.stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether the messages in progress are the last ones."""
        return self._finisher.stopping

    async def keep_leases(self) -> None:
        """Renew the leases of all conversations in progress until cancelled."""
        await self._leases.run()

    async def claim(self, keys: Sequence[str]) -> Mapping[str, ClaimedMessage]:
        """Claim those of these conversations that are ready, each with its oldest message."""
        arrivals = self._stages.arrivals
        arrivals.watch(keys)
        begun: dict[str, ClaimedMessage] = {}
        asked_at = self._clock.monotonic()
        try:
            claimed = await self._conversations.begin(keys, self._owner, LEASE_SECONDS)
            begun = {one.claim.conversation: one for one in claimed}
            self._leases.note([one.claim for one in claimed], asked_at)
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
            FENCED.labels("conversations").inc()
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
            await self._starts.turn()
            return await self._process(claim, group)

    async def _process(self, claim: Claim, group: MessageGroup) -> InboxMessage | None:
        """Process a message; a failure is replied, and the conversation goes on.

        Returns:
            The next message; None: there is none, and the conversation was released.
        """
        with BoundTurn(group.message.turn):
            return await self._process_logged(claim, group)

    async def _process_logged(self, claim: Claim, group: MessageGroup) -> InboxMessage | None:
        outcome, message, began = "failed", group.message, self._clock.now()
        try:
            if is_set_aside(message):
                outcome = "set_aside"
                own = message.own_crashes
                _log.error("set_aside", turn=message.turn, crashes=message.crashes, own=own)
                following = await self._finisher.finish_with_text(claim, message, _SET_ASIDE)
            else:
                outcome, following = await self._handle(claim, group)
        except (Fenced, StoreError):
            raise
        except ToldAlready:
            outcome, following = (
                "told",
                await self._finisher.finish(claim, group.message, TurnResult()),
            )
        except UserError as error:
            outcome, was_told = "told", self._stages.stops.was_told(message.incoming)
            text = translatable("⚠ {problem}", problem=error.text)
            following = await self._finisher.finish_with_text(
                claim, group.message, text, is_shown=was_told
            )
        except Exception:  # noqa: BLE001 -- the only one: a bug must not silence a conversation
            _log.exception("turn_failed", turn=message.turn, error_id=message.error_id)
            following = await self._finisher.finish_unanswered(
                claim, group.message, _BUG, group.asked
            )
        for one in (message, *group.message.gathered, *group.message.refused):
            incoming = one.incoming
            MESSAGES_FINISHED.labels(incoming.address.platform, outcome).inc()
            now = self._clock.now()
            SECONDS_TO_FINISH.observe(max(0.0, now - incoming.at.timestamp()))
            attributes = {"troupe.platform": incoming.address.platform, "troupe.outcome": outcome}
            failure = outcome if outcome in _FAILED_OUTCOMES else None
            for name, since in (("answer", began), (ROOT, incoming.at.timestamp())):
                record_span(name, one.turn, since, now, attributes=attributes, error=failure)
        return following

    async def _handle(self, claim: Claim, group: MessageGroup) -> tuple[str, InboxMessage | None]:
        """Decide what happens to an event and do it.

        Returns:
            The outcome for the metrics, and the next message.
        """
        message = group.message
        match message.incoming:
            case Said() as said if self._stages.is_void(said):
                return "ignored", await self._finisher.finish(claim, message, TurnResult())
            case Said() as said:
                said = await self._as_edited(claim, message, said)
                if not said.is_late and self._stages.is_context(message):
                    said = replace(said, is_late=True)
                return await self._handle_said(claim, group, said)
            case Edited() as edited:
                return await self._handle_edited(claim, group, edited)
            case Deleted(message_ids=ids):
                return "deleted", await self._handle_deleted(claim, message, ids)
            case Pressed() as pressed:
                return await self._handle_pressed(claim, group, pressed)
            case ForgetRequested(person_id=person):
                return "forgotten", await self._command_runs.forget_person(claim, message, person)
            case Joined() as arrival:
                return "greeted", await self._greet(claim, message, arrival)

    async def _greet(
        self, claim: Claim, message: InboxMessage, arrival: Joined
    ) -> InboxMessage | None:
        """Greet a group once: its arrival is one row of the inbox.

        Where a person opens a chat whose conversation goes on, they are told that.
        """
        active = await self._stages.resolver.resolve(arrival.scopes)
        if arrival.opens_chat:
            session = await self._conversations.load_session(claim, _MAX_COUNTED_TURNS)
            if turns := [turn for turn in session.turns if not turn.observed]:
                text = _going_on(active.first.preset, len(turns))
                return await self._finisher.finish_with_text(claim, message, text)
        greeting = self._stages.commands.greet(arrival, active)
        if not greeting.greeting:
            return await self._finisher.finish_with_text(claim, message, greeting.text)
        replies, now = self._command_replies, self._now()
        said = await replies.greet(arrival.address, arrival.scopes, greeting, now)
        return await self._finisher.finish(claim, message, replies.say(message, said, 0))

    async def _handle_pressed(
        self, claim: Claim, group: MessageGroup, pressed: Pressed
    ) -> tuple[str, InboxMessage | None]:
        message = group.message
        result = await self._pressed_buttons.follow(claim, message, pressed)
        if isinstance(result, ChosenCommand):
            request, done, menu = result.request, result.result, result.menu
            return "pressed", await self._command_runs.finish(claim, message, request, done, menu)
        if isinstance(result, AskedQuestion):
            active = await self._stages.resolver.resolve(pressed.scopes)
            return await self._answers.answer(
                claim, group, self._answers.repeat(claim, group, result), active
            )
        if result.change is not None and result.change.deleted:
            return "pressed", await self._finisher.finish_forgetting(claim, message, result)
        return "pressed", await self._finisher.finish(claim, message, result)

    async def _handle_edited(
        self, claim: Claim, group: MessageGroup, edited: Edited
    ) -> tuple[str, InboxMessage | None]:
        if await self._is_superseded(claim, group.message, edited):
            return "superseded", await self._finisher.finish(claim, group.message, TurnResult())
        if self._stages.is_paused(claim.conversation):  # the text changes, nobody is answered
            edited = replace(edited, said=replace(edited.said, is_late=True))
        result = await self._edited_messages.follow(claim, group.message, edited)
        if isinstance(result, Said):
            return await self._handle_said(claim, group, result)
        return "edited", await self._finisher.finish(claim, group.message, result)

    async def _as_edited(self, claim: Claim, message: InboxMessage, said: Said) -> Said:
        """Return a message as its newest edit says that waits behind it."""
        edits = [
            one
            for one in await self._find_later(claim, message)
            if isinstance(one, Edited) and one.message_id == said.message_id
        ]
        return edits[-1].said if edits and said.message_id is not None else said

    async def _is_superseded(self, claim: Claim, message: InboxMessage, edited: Edited) -> bool:
        """Return whether a newer edit of the same message waits.

        Where people edit faster than they are answered, another edit is waited for a moment.
        """

        async def has_newer() -> bool:
            later = await self._find_later(claim, message)
            return any(
                isinstance(one, Edited) and one.message_id == edited.message_id for one in later
            )

        if await has_newer():
            return True
        if not self._stages.stops.was_edited(edited.message_id, claim.conversation):
            return False
        await self._clock.sleep(_SECONDS_BETWEEN_EDITS)
        return await has_newer()

    async def _find_later(self, claim: Claim, message: InboxMessage) -> Sequence[Incoming]:
        """Return what waits behind a message and those gathered with it, in order."""
        arrivals = self._stages.arrivals
        if not (message.is_followed or arrivals.has_arrived(claim.conversation)):
            return ()
        waiting = await self._conversations.waiting(claim, _MAX_LATER)
        return [one.incoming for one in waiting if one.id > message.newest.id]

    async def _handle_deleted(
        self, claim: Claim, message: InboxMessage, message_ids: Collection[str]
    ) -> InboxMessage | None:
        """Delete the turns that were said in these messages, and what was derived from them."""
        turns = await self._conversations.find_turns(claim, message_ids)
        if not turns:
            return await self._finisher.finish(claim, message, TurnResult())
        change = HistoryChange(deleted=[one.id for one in turns])
        return await self._finisher.finish_forgetting(claim, message, TurnResult(change=change))

    async def _handle_said(
        self, claim: Claim, group: MessageGroup, said: Said
    ) -> tuple[str, InboxMessage | None]:
        stages, message = self._stages, group.message
        said = await recognize_reply(self._conversations, claim, said)
        active = await stages.resolver.resolve(said.scopes)
        preset, limits = active.first.preset, stages.replies.limits(said.address)
        if isinstance(message.incoming, Said):
            said = await self._joiner.join(claim, group, said, MessageParts(limits, preset.busy))
            said = await self._with_speech(said, preset.provider)
            message = group.message
        needs_recent = active.is_group or said.in_thread
        recent = await self._recent(claim) if needs_recent else ()

        decide_next = partial(self._decide, active, recent)
        decision = await decide_next(said)
        self._decisions.note(said, decision)
        if isinstance(decision, Ignore | Observe) and decision.candidates:
            await stages.explain_silence(said, describe_silence(decision))
        match decision:
            case Ignore():
                return "ignored", await self._finisher.finish(claim, message, TurnResult())
            case Observe():
                result = TurnResult([observed_turn(said)])
                return "observed", await self._finisher.finish(claim, message, result)
            case Command() as command:
                if stages.command_limits is not None:
                    await stages.command_limits.admit(said, command)
                failed: Sequence[StoredTurn] = ()
                if command.name in READS_HISTORY:
                    recent = await self._recent(claim)
                    failed = await self._conversations.load_failed(claim)
                request = CommandRequest(
                    command,
                    said,
                    active,
                    recent,
                    self._now(),
                    failed,
                    stages.stops.outcome_of(said),
                    await self._newest_decisions(command, said),
                    part=message.part_name(0),
                )
                return await self._command_runs.run(claim, group, request)
            case Unreadable():
                return "unreadable", await self._finish_unreadable(claim, message, said)
            case Answer(speakers):
                asked = AskedQuestion(said, speakers)
                gathering = stages.gatherer.begin(claim, group, asked, limits, decide_next)
                return await self._answers.answer(claim, group, gathering, active)

    async def _newest_decisions(self, command: Command, said: Said) -> Sequence[Text]:
        is_asked = command.name == "settings" and command.text.lower() == "why"
        return await self._decisions.newest(said.address.channel) if is_asked else ()

    async def _finish_unreadable(
        self, claim: Claim, message: InboxMessage, said: Said
    ) -> InboxMessage | None:
        limits = self._stages.command_limits
        if limits is not None and not await limits.tells_unreadable(said):
            return await self._finisher.finish(claim, message, TurnResult())
        text = explain_unreadable(said.attachments)
        return await self._finisher.finish_with_text(claim, message, text)

    async def _with_speech(self, said: Said, provider: str) -> Said:
        if await self._stages.resolver.is_unobserved(said):
            return said
        return await self._stages.voices.transcribe(said, provider)

    async def _decide(
        self, active: ActiveCharacters, recent: Sequence[Turn], said: Said
    ) -> Decision:
        if self._stages.stops.was_deleted(said):
            return Ignore()
        if await self._stages.resolver.is_unobserved(said):
            return Ignore()
        decision = decide(said, active, recent, dice=self._stages.dice, now=self._now())
        if isinstance(decision, Observe) and said.wake is None:
            may_observe = await self._stages.resolver.observes(said.scopes)
            return decision if may_observe else Ignore(decision.candidates)
        return decision

    async def _recent(self, claim: Claim) -> Sequence[Turn]:
        session = await self._conversations.load_session(claim, TURNS_FOR_ROUTING)
        return session.turns

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)


def _going_on(preset: Preset, turns: int) -> Text:
    return translatable_count(
        "{name} answers here. This conversation has 1 message; /new begins another.",
        "{name} answers here. This conversation has {count} messages; /new begins another.",
        turns,
        name=preset.character_name,
    )
