"""Handle an edited message: replace its answer, withdraw the answer, or change the history.

The old answer is kept as a version, unless the edit interrupted it.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from bot.chat.command import ButtonAction, parse_command
from bot.chat.incoming import IncomingMessage, MessageEdit
from bot.chat.session import (
    Exchange,
    HistoryChange,
    InboxMessage,
    TurnRange,
    TurnResult,
    files_of_unanswered_questions,
    files_to_keep,
    text_with_attachments,
)
from bot.commands.answers import pick_speakers
from bot.commands.request import OpenQuestion
from bot.errors import AgeUnconfirmed, AlreadyNotified, BackendError, UserError
from bot.replying.answer_parts import action_buttons, answer_buttons
from bot.routing.decide import Answer, Decision, Observe, decide_on_message
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.texts.text import translatable
from bot.turn.finishing import TurnServices
from bot.turn.message_groups import MessageGroup, mark_reply_to_bot
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_MAX_LOADED_TURNS = 400
_MAX_AGE_OF_NEW_QUESTION = timedelta(minutes=5)
"""The maximum age of a message that an edit can turn into a new question."""


@value_class
class EditHandler:
    """Computes the effects of edited messages; the caller stores them."""

    services: TurnServices

    async def apply_edit(
        self, group: MessageGroup, edit: MessageEdit
    ) -> TurnResult | IncomingMessage:
        """Return the effect of an edit, or the edited message if it is now a new question.

        If the newest question was edited, a new answer replaces the old one in the same messages.
        If the question no longer addresses the bot, the answer is deleted. If an older message was
        edited, only its text in the history changes.
        """
        services, claim, exchange = self.services, group.claim, None
        conversations = services.conversations
        incoming = await mark_reply_to_bot(conversations, claim, edit.said)
        if (message_id := incoming.message_id) is not None:
            exchange = await conversations.load_exchange(claim, message_id, _MAX_LOADED_TURNS)
        if exchange is None:
            is_question = incoming.wake is not None and parse_command(incoming.text) is None
            is_recent = edit.at - incoming.at < _MAX_AGE_OF_NEW_QUESTION and not incoming.is_late
            return incoming if is_question and is_recent else TurnResult()
        earlier_files = files_of_unanswered_questions(exchange.earlier_session.turns)
        incoming = replace(incoming, earlier_files=earlier_files)
        result = await self._edit_known_message(group, incoming, edit.at, exchange)
        return _add_changed_files(incoming, exchange, result)

    async def _edit_known_message(
        self, group: MessageGroup, message: IncomingMessage, edited_at: datetime, exchange: Exchange
    ) -> TurnResult:
        text, question = text_with_attachments(message), exchange.question
        change = HistoryChange({question.id: text})
        is_same_text = text == question.turn.text
        if message.is_late or not exchange.is_newest_exchange:
            return TurnResult() if is_same_text else TurnResult(change=change)
        if is_same_text and not _may_change_addressees(message, exchange):
            return TurnResult()  # only a preview has changed
        active = await self.services.resolver.resolve(message.scopes)
        decision = self._decide_on_edit(message, active, exchange)
        is_complete = exchange.answers and not _find_interrupted_answer_ids(group.message, exchange)
        match decision:
            case Answer() if is_same_text and is_complete:
                return TurnResult()  # only the addressees have changed
            # Do not roll the dice a second time for a message that was not answered.
            case Answer() if exchange.answers or message.wake is not None:
                result = await self.answer_in_same_messages(
                    group, message, edited_at, exchange, active, decision.speakers, change.new_texts
                )
                return _mark_as_question(exchange, result)
            case Answer():
                return TurnResult(change=change)
            case Observe():
                observed_flags = {question.id: True}
                return _withdraw_answers(exchange, replace(change, observed_flags=observed_flags))
            case _:
                return _withdraw_answers(exchange, HistoryChange(superseded_ids=(question.id,)))

    def _decide_on_edit(
        self, message: IncomingMessage, active: ActiveCharacters, exchange: Exchange
    ) -> Decision:
        """Decide how to handle an edit; if the bot had answered by chance, it answers again."""
        now, turns = self.services.now(), exchange.earlier_session.turns
        decision = decide_on_message(message, active, turns, dice=self.services.dice, now=now)
        if isinstance(decision, Answer) or not exchange.answers:
            return decision
        decision_if_lucky = decide_on_message(message, active, turns, dice=lambda: 0.0, now=now)
        if not isinstance(decision_if_lucky, Answer):
            return decision
        answers = [one.turn for one in exchange.answers]
        return replace(decision_if_lucky, speakers=pick_speakers(active, answers))

    async def answer_in_same_messages(
        self,
        group: MessageGroup,
        incoming: IncomingMessage,
        edited_at: datetime,
        exchange: Exchange,
        active: ActiveCharacters,
        speakers: tuple[ActivePreset, ...],
        new_texts: Mapping[int, str],
    ) -> TurnResult:
        """Replace a question's answer in the same messages, or keep the old answer on failure.

        `new_texts` are the texts of edited turns, by id. It is empty if a person asked for another
        answer.
        """
        services, message = self.services, group.message
        removed_turns = None if new_texts else TurnRange(0, 0)  # makes the new answer different
        question = OpenQuestion(incoming, speakers, exchange.parts)
        try:
            async with services.stop_requests.stoppable_answer(
                group.claim, message, incoming, edited_at
            ) as stop_flag:
                result = await services.pipeline.answer(
                    group, question, active, stop_flag, removed_turns, exchange.earlier_session
                )
        except AlreadyNotified:
            return TurnResult(change=HistoryChange(new_texts))
        except (BackendError, UserError) as error:  # the old answer stays
            _log.warning("edited_question_not_answered", turn=message.turn_name, reason=str(error))
            text = translatable("⚠ {problem}", problem=error.text)
            outgoing = services.replies.notice_parts(incoming.address, text, incoming.locale)
            if isinstance(error, AgeUnconfirmed):  # the button retries the old answer
                part_name = exchange.parts[-1]
                buttons = action_buttons(part_name, incoming.locale, ButtonAction.CONFIRM_AGE)
                outgoing = services.replies.with_buttons(incoming.address, outgoing, buttons)
            return TurnResult(outgoing=outgoing, change=HistoryChange(new_texts))
        if not result.turns:  # stopped before the first word
            return TurnResult(change=HistoryChange(new_texts))
        interrupted_ids = _find_interrupted_answer_ids(message, exchange) if new_texts else set()
        if active.first.preset.buttons and exchange.versions:
            count = 1 + sum(one.id not in interrupted_ids for one in exchange.versions[-1])
            buttons = answer_buttons(result.turns[-1].part_names[-1], incoming.locale, count, count)
            outgoing = services.replies.with_buttons(incoming.address, result.outgoing, buttons)
            result = replace(result, outgoing=outgoing)
        return _replace_answers(exchange, result, new_texts, interrupted_ids)


def _find_interrupted_answer_ids(message: InboxMessage, exchange: Exchange) -> set[int]:
    """Return the ids of the answers that were still being generated when the edit arrived."""
    received_at = datetime.fromtimestamp(message.received_at, UTC)
    return {one.id for one in exchange.answers if one.turn.at >= received_at}


def _replace_answers(
    exchange: Exchange, result: TurnResult, new_texts: Mapping[int, str], interrupted_ids: set[int]
) -> TurnResult:
    answer_ids = [one.id for one in exchange.answers]
    new_versions = dict(zip(answer_ids, result.turns, strict=False))
    unreplaced_answer_ids = set(answer_ids[len(result.turns) :])
    change = HistoryChange(
        new_texts,
        new_versions,
        superseded_ids=sorted(unreplaced_answer_ids - interrupted_ids),
        restored_ids=sorted(unreplaced_answer_ids & interrupted_ids),
        overwritten_ids=sorted(interrupted_ids.intersection(new_versions)),
    )
    turns = result.turns[len(answer_ids) :]
    return replace(result, turns=turns, change=change, replaced_part_names=exchange.parts)


def _may_change_addressees(message: IncomingMessage, exchange: Exchange) -> bool:
    """Return whether the edit may have added or removed a leading mention of the bot."""
    return exchange.question.turn.is_observed == bool(message.wake)


def _mark_as_question(exchange: Exchange, result: TurnResult) -> TurnResult:
    """Record that the message is a question, not background, now that it has an answer."""
    if not exchange.question.turn.is_observed or result.change is None or not result.turns:
        return result
    change = replace(result.change, observed_flags={exchange.question.id: False})
    return replace(result, change=change)


def _add_changed_files(
    message: IncomingMessage, exchange: Exchange, result: TurnResult
) -> TurnResult:
    question, change = exchange.question, result.change or HistoryChange()
    is_observed = change.observed_flags.get(question.id, question.turn.is_observed)
    files = () if is_observed else files_to_keep(message)
    if files == question.turn.files:
        return result
    return replace(result, change=replace(change, files={question.id: files}))


def _withdraw_answers(exchange: Exchange, change: HistoryChange) -> TurnResult:
    superseded_ids = (*change.superseded_ids, *(one.id for one in exchange.answers))
    change = replace(change, superseded_ids=superseded_ids)
    return TurnResult(change=change, replaced_part_names=exchange.parts)
