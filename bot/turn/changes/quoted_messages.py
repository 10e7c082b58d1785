"""Do what a command on one message says: answer again from there, or change what it says."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from bot.chat.attachments import with_kept_files
from bot.chat.incoming import Edited, Said, WakeReason
from bot.chat.session import (
    Claim,
    Exchange,
    HistoryChange,
    InboxMessage,
    StoredTurn,
    Turn,
    TurnRange,
    TurnResult,
)
from bot.commands.answer_buttons import NOT_REMEMBERED, AnswerButtons
from bot.commands.newest_question import pick_speakers
from bot.commands.request import AskedQuestion, CommandRequest
from bot.errors import UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Conversations
from bot.replying.answer_buttons import answer_buttons
from bot.replying.live_replies import LiveReplies
from bot.replying.long_answers import message_names
from bot.routing.active_presets import ActiveCharacters
from bot.routing.preset_resolver import PresetResolver
from bot.texts.text import translatable
from bot.turn.changes.edited_messages import EditedMessages
from bot.turn.changes.pressed_buttons import find_speaker

_MAX_TURNS = 400


@frozen_dataclass
class QuotedMessages:
    """Works out what changes; nothing is stored before the result is finished."""

    conversations: Conversations
    buttons: AnswerButtons
    resolver: PresetResolver
    replies: LiveReplies
    edited_messages: EditedMessages

    async def answered_at(self, said: Said) -> datetime:
        """Return when the answer was given that a command replies to; raises `UserError`."""
        found, exchange = await self.buttons.find_quoted(said)
        await self.buttons.check_reader(said, exchange)
        answers = exchange.answers if found.turn.role == "user" else (found,)
        if not answers:
            raise UserError(translatable("I have not answered that message."))
        return answers[0].turn.at

    async def retry_from(
        self, claim: Claim, request: CommandRequest
    ) -> tuple[AskedQuestion, TurnRange | None]:
        """Return the question to answer again, and what leaves the history with its old answer.

        A question whose answer failed is answered in place of the notice; nothing leaves.

        Raises:
            UserError: it is not in the session any more, or somebody else asked.
        """
        said = request.incoming
        found, exchange = await self.buttons.find_quoted(said)
        await self.buttons.check_asker(said, exchange)
        question = exchange.question.turn
        asked = replace(
            said,
            text=question.text,
            author=question.speaker or said.author,
            asked_again_by=said.author.id,
            message_id=question.message_id,
            quote=None,
            wake=WakeReason.DM,
        )
        asked = with_kept_files(asked, question, exchange.before.turns)
        speakers = pick_speakers(request.active, [one.turn for one in exchange.answers])
        if found.turn.role == "user" and found.turn.sent_as:
            earlier = tuple(exchange.before.turns)
            return AskedQuestion(asked, speakers, exchange.parts, earlier), None
        session = await self.conversations.load_session(claim, _MAX_TURNS)
        newer = _turns_since(question, session.turns)
        return AskedQuestion(asked, speakers), TurnRange(0, newer)

    async def edit(
        self, claim: Claim, message: InboxMessage, request: CommandRequest
    ) -> TurnResult:
        """Change what a message says in the history, and an answer in the channel as well.

        Raises:
            UserError: there is no text, it is not in the history, or it is somebody else's.
        """
        said, text = request.incoming, request.argument
        if not text:
            example = "/edit It was a dark night."
            raise UserError(translatable("Which text? For example: {example}", example=example))
        found, exchange = await self.buttons.find_quoted(said)
        await self.buttons.check_editor(said, found, exchange, audited_as="edit answer")
        if found.turn.role != "user":
            return self._edit_answer(message, request, found, exchange)
        changed = replace(
            said,
            text=text,
            attachments=exchange.question.turn.files,
            message_id=exchange.question.turn.message_id,
            quote=None,
            wake=WakeReason.REPLY if exchange.answers else None,
            interaction=None,
        )
        result = await self.edited_messages.follow(
            claim, message, Edited(said.external_key, changed, said.at)
        )
        return result if isinstance(result, TurnResult) else TurnResult()

    def _edit_answer(
        self,
        message: InboxMessage,
        request: CommandRequest,
        found: StoredTurn,
        exchange: Exchange,
    ) -> TurnResult:
        """Let a new version take the place of an answer, in the same messages."""
        said, active = request.incoming, request.active
        answer = _active_version(found, exchange)
        parts = tuple(name for name in answer.turn.sent_as if name in exchange.parts)
        line, face = find_speaker(self.resolver, self.replies, answer.turn, said.address, active)
        outgoing = self.replies.final_parts(said.address, line + request.argument, 0, face)
        messages = message_names(parts)
        names = tuple(
            messages[one.part] if one.part < len(messages) else message.part_name(one.part)
            for one in outgoing
        )
        version = replace(answer.turn, text=request.argument, at=said.at, sent_as=names)
        if answer == exchange.answers[-1] and _has_buttons(active):
            count = len(exchange.versions[-1]) + 1
            buttons = answer_buttons(names[-1], said.locale, count, count)
            outgoing = self.replies.with_buttons(said.address, outgoing, buttons)
        change = HistoryChange(versions={answer.id: version})
        return TurnResult(outgoing=outgoing, change=change, in_place_of=parts)


def _turns_since(question: Turn, turns: Sequence[Turn]) -> int:
    """Count the turns from a question on; raises `UserError` if it is not among them."""
    for number, turn in enumerate(reversed(turns), 1):
        if (turn.role, turn.at, turn.text) == (question.role, question.at, question.text):
            return number
    raise UserError(NOT_REMEMBERED)


def _active_version(found: StoredTurn, exchange: Exchange) -> StoredTurn:
    """Return the answer that is shown in the messages of a turn."""
    sent_as = set(found.turn.sent_as)
    shown = (one for one in exchange.answers if sent_as & set(one.turn.sent_as))
    return next(shown, exchange.answers[-1])


def _has_buttons(active: ActiveCharacters) -> bool:
    return active.first.preset.buttons
