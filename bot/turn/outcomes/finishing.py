"""Finish a message: store its result in one transaction, and have it delivered."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bot.chat.incoming import Pressed, Said, address_of
from bot.chat.outgoing import NOTICE_PARTS
from bot.chat.session import Claim, InboxMessage, TurnResult
from bot.commands.request import AskedQuestion
from bot.ports import ConversationMemory, Conversations, MessageNotes
from bot.replying.answer_buttons import retry_button
from bot.replying.live_replies import LiveReplies
from bot.routing.decision_log import DecisionLog
from bot.telemetry.recent_events import RECENT_EVENTS, describe_failure
from bot.texts.text import language_of, translatable, translate
from bot.turn.arrivals import ArrivalSignals
from bot.turn.gathering import observed_turn, user_turn
from bot.turn.limits.queue_limit import BUSY
from bot.turn.limits.rare_notices import RareNotices

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
