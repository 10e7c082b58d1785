"""Finish a message: store its turns, answer or response in one transaction."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from bot.chat.incoming import Address, Pressed, Said, address_of
from bot.chat.outgoing import NOTICE_PARTS, Face, MessageContent, OutgoingPart
from bot.chat.session import Claim, HistoryChange, InboxMessage, Turn, TurnRange, TurnResult
from bot.commands.request import AskedQuestion, CommandRequest, CommandResult
from bot.errors import AnswerRefused, BackendError
from bot.ports import ConversationMemory, MessageNotes
from bot.replying.answer_parts import forget_buttons, retry_button
from bot.replying.live_replies import LiveReplies
from bot.routing.decision_log import DecisionLog
from bot.routing.presets import ActiveCharacters, PresetResolver
from bot.storage.conversations import Conversations
from bot.telemetry.logs import RECENT_EVENTS, describe_failure
from bot.texts.text import Text, language_of, translatable, translatable_count, translate
from bot.turn.answer import AnswerPipeline
from bot.turn.arrivals import ArrivalSignals
from bot.turn.limits.admin_notices import RefusedChats
from bot.turn.limits.queue_limit import BUSY, QueueLimit
from bot.turn.limits.rate_limits import RareNotices
from bot.turn.message_groups import (
    Gathering,
    MessageGatherer,
    MessageGroup,
    observed_turn,
    user_turn,
)
from bot.turn.presses import find_speaker
from bot.turn.stops import StopRequests
from bot.value_class import value_class

_REMOVED_FROM_TEXT = translatable(
    "⚠ Your message seems to hold a token, key or password. I removed it from what I keep, but"
    " others here can read it: delete the message and replace the secret."
)


@dataclass(slots=True)
class TurnFinisher:
    """Stores what messages led to; each method returns the next message of the conversation."""

    conversations: Conversations
    memories: Sequence[ConversationMemory]
    replies: LiveReplies
    arrivals: ArrivalSignals
    decisions: DecisionLog
    notes: MessageNotes
    notices: RareNotices
    stopping: bool = field(default=False, init=False)
    """Whether the process ends: no next message is taken then."""

    async def finish(
        self, claim: Claim, message: InboxMessage, result: TurnResult
    ) -> InboxMessage | None:
        """Store the result and have it delivered."""
        for one in (message, *message.gathered):
            incoming = one.incoming
            if not isinstance(incoming, Said | Pressed):
                continue
            if incoming.has_masked_token and result.outgoing:
                following = 1 + max(one.part for one in result.outgoing if one.part < NOTICE_PARTS)
                result = self._with_notice(incoming, result, _REMOVED_FROM_TEXT, following)
        if message.refused:
            refused = [one.incoming for one in message.refused if isinstance(one.incoming, Said)]
            result = replace(result, turns=[*result.turns, *map(observed_turn, refused)])
            unaware = [one for one in refused if one.interaction is None]
            if unaware:
                result = await self.with_rare_notice(unaware[0], result, BUSY)
        self.arrivals.watch([claim.conversation])
        go_on = not self.stopping
        finished = await self.conversations.finish(claim, message, result, go_on=go_on)
        if result.outgoing or result.in_place_of or result.was_stopped:
            asked = message.incoming
            is_response = isinstance(asked, Said | Pressed) and asked.interaction is not None
            self.replies.deliver(asked.address, finished.row, is_response=is_response)
        return finished.next_message

    async def finish_with_text(
        self, claim: Claim, message: InboxMessage, text: str, *, is_shown: bool = False
    ) -> InboxMessage | None:
        """Reply with a text of the service's own, which is no part of the history.

        With `is_shown` it was sent already, as far as it was opened.
        """
        shown = translate(text, language_of(message.incoming.locale))
        parts = self.replies.final_parts(message.incoming.address, shown)
        outgoing = [replace(one, is_shown=is_shown) for one in parts]
        return await self.finish(claim, message, TurnResult(outgoing=outgoing))

    async def finish_unanswered(
        self,
        claim: Claim,
        message: InboxMessage,
        problem: str,
        asked: AskedQuestion | None = None,
    ) -> InboxMessage | None:
        """Say that an answer failed, and keep the question, so that it can be asked again."""
        incoming, in_place_of = message.newest.incoming, asked.in_place_of if asked else ()
        said = asked.incoming if asked else incoming if isinstance(incoming, Said) else None
        earlier = asked.earlier if asked else ()
        text = translatable(
            "⚠ {problem} (error {number})", problem=problem, number=message.error_id
        )
        shown = translate(text, language_of(incoming.locale))
        outgoing = self.replies.final_parts(incoming.address, shown)
        names = tuple(message.part_name(one.part) for one in outgoing)
        if said is not None:
            target = in_place_of[0] if in_place_of else names[-1]
            buttons = retry_button(target, incoming.locale)
            outgoing = self.replies.with_buttons(incoming.address, outgoing, buttons)
        # What takes the messages of an earlier notice has its question kept already.
        is_new = not in_place_of
        kept = [*earlier, user_turn(said)] if said and is_new else []
        unanswered = [replace(one, sent_as=names) for one in kept]
        result = TurnResult(outgoing=outgoing, unanswered=unanswered, in_place_of=in_place_of)
        await self.notes.add([describe_failure(RECENT_EVENTS, message.turn)])
        return await self.finish(claim, message, result)

    async def finish_forgetting(
        self,
        claim: Claim,
        message: InboxMessage,
        result: TurnResult,
        person_id: str | None = None,
    ) -> InboxMessage | None:
        """Finish with turns deleted, and release what backends have cached of them.

        Notes that quote the channel go too; with a person, those that quote this person.
        """
        await self.decisions.forget(address_of(claim.conversation).channel, person_id)
        try:
            return await self.finish(claim, message, result)
        finally:  # it may be committed although it failed
            for memory in self.memories:
                await memory.forget(claim.conversation)

    async def delete_history(self, claim: Claim) -> int:
        """Delete all that is kept of a conversation; return how many turns that was."""
        await self.decisions.forget(address_of(claim.conversation).channel)
        try:
            return await self.conversations.forget(claim)
        finally:  # it may be committed although it failed
            for memory in self.memories:
                await memory.forget(claim.conversation)

    async def end_session(self, conversation: str) -> None:
        """Tell what keeps parts of the conversation that a new session has begun."""
        for memory in self.memories:
            await memory.end_session(conversation)

    async def with_rare_notice(self, said: Said, result: TurnResult, notice: str) -> TurnResult:
        """Append a notice that the service is busy, unless the channel had one lately."""
        if result.outgoing and await self.notices.is_due_in(said.address.channel):
            return self._with_notice(said, result, notice, NOTICE_PARTS)
        return result

    def _with_notice(
        self, said: Said | Pressed, result: TurnResult, notice: str, part: int
    ) -> TurnResult:
        """Append a notice of the service to what is sent."""
        shown = translate(notice, language_of(said.locale))
        parts = self.replies.final_parts(said.address, shown, part)
        return replace(result, outgoing=[*result.outgoing, *parts])


_ANSWERED_AGAIN = translatable("The question is answered again below.")


@value_class
class Greeting:
    """What a character says when a conversation begins; without a turn: nothing."""

    turn: Turn | None = None
    address: Address | None = None
    line: str = ""
    face: Face | None = None

    @property
    def is_spoken(self) -> bool:
        """Whether readers see that the character says it, not the bot."""
        return bool(self.line) or self.face is not None


@value_class
class CommandReplies:
    """Turns the result of a command into messages and changes of the history."""

    replies: LiveReplies
    resolver: PresetResolver

    async def compose(
        self,
        message: InboxMessage,
        request: CommandRequest,
        result: CommandResult,
        menu: CommandResult | None = None,
    ) -> TurnResult:
        """Return what is sent and stored.

        Args:
            message: the command, or the press that stands for one.
            request: the command.
            result: what it has brought about.
            menu: what the author reads instead of its text, in place of the menu that was used.
        """
        said = request.incoming
        is_alone = message.incoming.interaction is not None and not said.has_public_response
        greeting = await self.greet(said.address, said.scopes, result, request.now)
        is_apart = is_alone or greeting.is_spoken
        own = result.text_before_greeting if result.greeting and is_apart else result.text
        shown = self._own_parts(message, said, menu or replace(result, text=own))
        outgoing = list(shown.outgoing)
        if is_alone and result.changes_channel and not said.is_private:
            told = translate(_change(result, said), language_of(said.locale))
            outgoing += self.replies.final_parts(said.address, told, len(outgoing))
        spoken = TurnResult([greeting.turn] if greeting.turn else [])
        if is_apart:
            spoken = self.say(message, greeting, len(outgoing))
        return replace(
            shown,
            turns=spoken.turns,
            outgoing=[*outgoing, *spoken.outgoing],
            new_session=result.new_session,
            removes=result.removes,
            change=HistoryChange(deleted=result.deletes) if result.deletes else None,
        )

    async def greet(
        self, address: Address, scopes: Sequence[str], result: CommandResult, now: datetime
    ) -> Greeting:
        """Return how the character says the greeting of a result, if it has one."""
        if not result.greeting:
            return Greeting()
        turn = Turn("assistant", result.greeting, None, now, result.greeter)
        active = await self.resolver.resolve(scopes)  # the command may have changed who answers
        line, face = find_speaker(self.resolver, self.replies, turn, address, active)
        return Greeting(turn, address, line, face)

    def say(self, message: InboxMessage, greeting: Greeting, first_part: int) -> TurnResult:
        """Let a character greet everybody, in messages of its own from this part on."""
        if greeting.turn is None or greeting.address is None:
            return TurnResult()
        text = greeting.line + greeting.turn.text
        spoken = self.replies.final_parts(greeting.address, text, first_part, greeting.face)
        names = tuple(message.part_name(one.part) for one in spoken)
        return TurnResult([replace(greeting.turn, sent_as=names)], spoken)

    def with_response(
        self, message: InboxMessage, result: TurnResult, text: Text = _ANSWERED_AGAIN
    ) -> TurnResult:
        """Add a response for the author of a native command whose result everybody sees."""
        if not has_private_response(message):
            return result
        following = max((one.part + 1 for one in result.outgoing), default=result.next_part)
        shown = translate(text, language_of(message.incoming.locale))
        response = OutgoingPart(following, MessageContent(shown), is_response=True)
        return replace(result, outgoing=(*result.outgoing, response))

    def _own_parts(self, message: InboxMessage, said: Said, shown: CommandResult) -> TurnResult:
        """Return the reply to the author, with its menus; who may use them is kept with it."""
        text = translate(shown.text, language_of(said.locale))
        outgoing: Sequence[OutgoingPart] = self.replies.final_parts(said.address, text)
        if shown.file is not None:
            outgoing = (OutgoingPart(0, MessageContent(text), file=shown.file),)
        names = tuple(message.part_name(one.part) for one in outgoing)
        buttons, has_menu = shown.buttons, bool(shown.menus)
        if shown.asks_to_forget:
            buttons = forget_buttons(names[-1], said.locale)
        outgoing = self.replies.with_buttons(said.address, outgoing, buttons, shown.menus)
        if shown.in_place_of:
            first, *others = outgoing
            outgoing = (replace(first, is_response=True), *others)
            return TurnResult(outgoing=outgoing, in_place_of=shown.in_place_of)
        asked = (
            [replace(user_turn(said), sent_as=names)] if has_menu or shown.asks_to_forget else []
        )
        return TurnResult(outgoing=outgoing, unanswered=asked)


def has_private_response(message: InboxMessage) -> bool:
    """Return whether the author of a native command waits for a response of its own."""
    incoming = message.incoming
    return isinstance(incoming, Said) and incoming.interaction is not None


def _change(result: CommandResult, said: Said) -> Text:
    """Say who changed what."""
    change = result.text if result.greeting is None else result.text_before_greeting
    name = " ".join(said.author.name.split())
    return translatable("Changed by {name}: {change}", name=name, change=change)


_log = structlog.get_logger(__name__)
_SECONDS_BETWEEN_PAUSE_NOTICES = 600.0
_PAUSED = translatable(
    "⏸ I am paused and answer nobody at the moment. I remember what you write; please ask again"
    " later."
)


@value_class
class QuestionAnswers:
    """Answers questions; what overtakes an answer begins it again."""

    pipeline: AnswerPipeline
    gatherer: MessageGatherer
    stops: StopRequests
    replies: LiveReplies
    decisions: DecisionLog
    finisher: TurnFinisher
    replies_to_commands: CommandReplies
    is_paused: Callable[[str], bool]
    queue_limit: QueueLimit | None = None
    refused_chats: RefusedChats | None = None

    async def answer(
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
        refused_chats, is_new = self.refused_chats, removed is None
        if refused_chats is not None and await refused_chats.covers(gathering.asked.incoming):
            unshown = self._unshown(group, gathering, is_new=is_new)
            return "refused", await self.finisher.finish(claim, group.message, unshown)
        if self.is_paused(claim.conversation):
            paused = await self._paused(group, gathering, is_new=is_new)
            return "paused", await self.finisher.finish(claim, group.message, paused)
        try:
            result = await self._answer_all(claim, group, gathering, active, removed)
        except AnswerRefused:
            if refused_chats is not None:
                await refused_chats.tell(gathering.asked.incoming)
            unshown = self._unshown(group, gathering, is_new=is_new)
            return "refused", await self.finisher.finish(claim, group.message, unshown)
        except BackendError as error:
            message, asked = group.message, gathering.asked
            number, reason = message.error_id, str(error)
            _log.warning("not_answered", turn=message.turn, error_id=number, reason=reason)
            problem = error.notice
            if self.replies.limits(message.incoming.address).shows_causes:
                problem = translatable("{problem}\n{cause}", problem=problem, cause=reason)
            following = await self.finisher.finish_unanswered(claim, message, problem, asked)
            return "failed", following
        for one, decision in gathering.decided:
            self.decisions.note(one, decision)
        if result is None:  # what was opened for the answer is deleted
            gone = TurnResult(was_stopped=True, is_withdrawn=True)
            return "withdrawn", await self.finisher.finish_forgetting(claim, group.message, gone)
        asked = gathering.asked
        channel = asked.incoming.address.channel
        self.decisions.note_substitutes(channel, asked.speakers, result.receipts)
        turns = [*result.earlier, *asked.earlier, user_turn(asked.incoming), *result.turns]
        result = replace(result, turns=turns, supersedes=removed, in_place_of=asked.in_place_of)
        if gathering.left_over and not group.message.refused:
            waiting = _more_waiting(gathering)
            result = await self.finisher.with_rare_notice(asked.incoming, result, waiting)
        result = self.replies_to_commands.with_response(group.message, result)
        return "answered", await self.finisher.finish(claim, group.message, result)

    def _unshown(self, group: MessageGroup, gathering: Gathering, *, is_new: bool) -> TurnResult:
        """Keep questions that the chat refuses answers to; a native command is told why."""
        asked, result = gathering.asked, _as_background(gathering, is_new=is_new)
        if self.refused_chats is None:
            return result
        reason = self.refused_chats.explain(asked.incoming)
        return self.replies_to_commands.with_response(group.message, result, reason)

    async def _paused(
        self, group: MessageGroup, gathering: Gathering, *, is_new: bool
    ) -> TurnResult:
        """Keep questions as background; say so now and then, and always to a native command."""
        said, result = gathering.asked.incoming, _as_background(gathering, is_new=is_new)
        if has_private_response(group.message):
            return self.replies_to_commands.with_response(group.message, result, _PAUSED)
        name = f"paused:{said.address.channel}"
        if not await self.finisher.notices.is_due(name, _SECONDS_BETWEEN_PAUSE_NOTICES):
            return result
        text = translate(_PAUSED, language_of(said.locale))
        return replace(result, outgoing=self.replies.final_parts(said.address, text))

    def repeat(self, claim: Claim, group: MessageGroup, asked: AskedQuestion) -> Gathering:
        """Ask a question again, with what was gathered before it when its answer failed."""
        limits = self.replies.limits(asked.incoming.address)
        return self.gatherer.repeat(claim, group, asked, limits)

    async def _answer_all(
        self,
        claim: Claim,
        group: MessageGroup,
        gathering: Gathering,
        active: ActiveCharacters,
        removed: TurnRange | None,
    ) -> TurnResult | None:
        """Answer what was gathered; what overtakes the answer is gathered too, and it begins again.

        The answer that was overtaken is dropped; the next one has other parts than it. None: the
        only question was deleted.
        """
        is_new = isinstance(group.message.incoming, Said) and removed is None
        # The first part of a native command is for its author; the answer is for everybody.
        first_part = 1 if has_private_response(group.message) else 0
        async with (
            self.stops.answering(claim, group.message, gathering.asked.incoming) as stop,
            self._limited(claim, group, gathering),
        ):
            await gathering.gather_waiting()
            while True:
                asked = group.asked = gathering.asked
                is_alone = is_new and not group.message.gathered
                self.stops.extend(asked.incoming, gathering.askers, is_alone=is_alone)
                async with gathering.interrupting(stop):
                    result = await self.pipeline.answer(
                        *(claim, group.message, asked.incoming, active, asked.speakers, stop),
                        removed,
                        in_place_of=asked.in_place_of,
                        gathered=asked.earlier,
                        first_part=first_part,
                    )
                if not stop.is_superseded:
                    return None if stop.is_withdrawn else result
                first_part = result.next_part
                stop.begin_again()
                await gathering.gather_until_quiet()

    def _limited(
        self, claim: Claim, group: MessageGroup, gathering: Gathering
    ) -> AbstractAsyncContextManager[None]:
        """Let few enough questions wait for the answer that the block makes."""
        if self.queue_limit is None:
            return nullcontext()
        return self.queue_limit.enforced(claim, group, gathering.at_most)


def _as_background(gathering: Gathering, *, is_new: bool) -> TurnResult:
    """Keep questions without an answer; those that are asked again are kept already."""
    asked = gathering.asked
    if not is_new or asked.in_place_of:
        return TurnResult()
    return TurnResult([*asked.earlier, observed_turn(asked.incoming)])


def _more_waiting(gathering: Gathering) -> Text:
    return translatable_count(
        "⏳ 1 more message came meanwhile. I will answer it next.",
        "⏳ {count} more messages came meanwhile. I will answer them next.",
        gathering.left_over,
    )
