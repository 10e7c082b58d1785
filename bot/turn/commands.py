"""Run commands, and refuse to stop what is not running."""

from dataclasses import replace

from bot.chat.incoming import Said
from bot.chat.session import Claim, HistoryChange, InboxMessage, TurnResult
from bot.commands.answers import NOT_REMEMBERED
from bot.commands.handlers import CommandHandlers, describe_stop
from bot.commands.privacy import ChannelForgetting
from bot.commands.request import CommandRequest, CommandResult, StopOutcome
from bot.replying.live_replies import LiveReplies
from bot.storage.conversations import Conversations
from bot.texts.text import (
    Text,
    joined,
    language_of,
    translatable,
    translatable_count,
    translate,
)
from bot.turn.finishing import CommandReplies, QuestionAnswers, TurnFinisher
from bot.turn.message_groups import MessageGroup
from bot.turn.presses import QuotedMessages
from bot.value_class import value_class

_MAX_WAITING = 200
"""A command further behind is told in its turn."""


@value_class
class StopRefusals:
    """Opens the reply to a /stop while the answer in progress goes on."""

    conversations: Conversations
    replies: LiveReplies

    async def tell(self, claim: Claim, command: Said, outcome: StopOutcome) -> bool:
        """Queue the reply; return whether the command was found among those that wait.

        Raises:
            Fenced: a later claim exists.
            StoreError: the database failed.
        """
        waiting = await self.conversations.waiting(claim, _MAX_WAITING)
        key = command.external_key
        message = next((one for one in waiting if one.incoming.external_key == key), None)
        if message is None:
            return False
        text = translatable("⚠ {problem}", problem=describe_stop(outcome, command))
        shown = translate(text, language_of(command.locale))
        for part in self.replies.final_parts(command.address, shown):
            opened = await self.conversations.open(claim, message, part)
            self.replies.deliver(command.address, opened.row)
        return True


_FORGOTTEN = translatable("I have forgotten that message and everything that was stored about it.")
_CHANGED = translatable("Changed.")
_MAX_TURNS = 400


@value_class
class CommandRuns:
    """Runs the commands of people, whether typed, chosen in a menu or pressed."""

    commands: CommandHandlers
    conversations: Conversations
    replies: LiveReplies
    channel_forgetting: ChannelForgetting
    quoted_messages: QuotedMessages
    answers: QuestionAnswers
    finisher: TurnFinisher
    replies_to_commands: CommandReplies

    async def run(
        self, claim: Claim, group: MessageGroup, request: CommandRequest
    ) -> tuple[str, InboxMessage | None]:
        """Run a command; return the outcome for the metrics, and the next message."""
        message, quote = group.message, request.incoming.quote
        is_on_message = quote is not None and quote.message_id is not None
        match request.command.name:
            case "retry" if is_on_message:
                asked, newer = await self.quoted_messages.retry_from(claim, request)
                gathering = self.answers.repeat(claim, group, asked)
                return await self.answers.answer(claim, group, gathering, request.active, newer)
            case "edit" if is_on_message:
                changed = await self.quoted_messages.edit(claim, message, request)
                shown = self.replies_to_commands.with_response(message, changed, _CHANGED)
                return "command", await self.finisher.finish(claim, message, shown)
            case "forget" if is_on_message:
                is_asker = await self.quoted_messages.buttons.is_asker(request.incoming)
                request = replace(request, is_asker=is_asker)
            case "context" if is_on_message:
                answered_at = await self.quoted_messages.answered_at(request.incoming)
                request = replace(request, answered_at=answered_at)
        result = await self.commands.handle(request)
        if result.repeats is not None:
            gathering = self.answers.repeat(claim, group, result.repeats)
            removed = result.removes
            return await self.answers.answer(claim, group, gathering, request.active, removed)
        if result.forgets is not None:
            return "command", await self._forget_message(claim, message, result)
        return "command", await self.finish(claim, message, request, result)

    async def finish(
        self,
        claim: Claim,
        message: InboxMessage,
        request: CommandRequest,
        result: CommandResult,
        menu: CommandResult | None = None,
    ) -> InboxMessage | None:
        """Store the result of a command and reply; return the next message.

        Args:
            claim: of the conversation.
            message: the command, or the press that stands for one.
            request: the command.
            result: what it has brought about.
            menu: what the author reads instead of its text, in place of the menu that was used.
        """
        if result.keeps_unanswered:
            session = await self.conversations.load_session(claim, _MAX_TURNS)
            is_begun = session.is_answered or len(session.turns) >= _MAX_TURNS
            result = replace(result, new_session=is_begun)
        if result.deletes_history:
            others = await self.channel_forgetting.request(request.incoming)
            deleted = _deleted(others + await self.finisher.delete_history(claim))
            result = _with_first_words(result, deleted)
        stored = await self.replies_to_commands.compose(message, request, result, menu)
        finish = self.finisher.finish_forgetting if result.deletes else self.finisher.finish
        following = await finish(claim, message, stored)
        if result.new_session:
            await self.finisher.end_session(claim.conversation)
        return following

    async def forget_person(
        self, claim: Claim, message: InboxMessage, person_id: str | None
    ) -> InboxMessage | None:
        """Delete what a person said here, the answers to it, and what was derived from them.

        Args:
            claim: of the conversation.
            message: the request, which is finished by this.
            person_id: of the person; None: what everybody said.
        """
        if person_id is None:
            await self.finisher.delete_history(claim)
            return await self.finisher.finish(claim, message, TurnResult(new_session=True))
        ids = await self.conversations.find_said_by(claim, person_id)
        change = HistoryChange(deleted=ids)
        result = TurnResult(change=change)
        return await self.finisher.finish_forgetting(claim, message, result, person_id)

    async def _forget_message(
        self, claim: Claim, message: InboxMessage, result: CommandResult
    ) -> InboxMessage | None:
        message_id = result.forgets or ""
        turns = [*await self.conversations.find_turns(claim, [message_id])]
        if result.forgets_answers:
            exchange = await self.conversations.load_exchange(claim, message_id, 0)
            turns += [one for each in (exchange.versions if exchange else ()) for one in each]
        if not turns:
            return await self.finisher.finish_with_text(claim, message, NOT_REMEMBERED)
        if isinstance(message.incoming, Said):
            await self.channel_forgetting.request_copies(message.incoming, message_id)
        shown = translate(_FORGOTTEN, language_of(message.incoming.locale))
        outgoing = self.replies.final_parts(message.incoming.address, shown)
        change = HistoryChange(deleted=[one.id for one in turns])
        forgotten = TurnResult(outgoing=outgoing, change=change)
        return await self.finisher.finish_forgetting(claim, message, forgotten)


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
