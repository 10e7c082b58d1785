"""Follow the edit of a message: answer it again in place, withdraw it, or change the history."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bot.chat.attachments import described_text, files_of_gathered, files_to_keep
from bot.chat.command import parse
from bot.chat.incoming import Edited, Said
from bot.chat.session import Claim, Exchange, HistoryChange, InboxMessage, TurnResult
from bot.commands.newest_question import pick_speakers
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock, Conversations
from bot.routing.active_presets import ActiveCharacters
from bot.routing.decide import Answer, Decision, Observe, decide
from bot.routing.preset_resolver import PresetResolver
from bot.routing.wake_rules import Dice
from bot.turn.changes.answers_in_place import AnswersInPlace, cut_answers
from bot.turn.changes.webhook_replies import recognize_reply

_MAX_TURNS_BEFORE = 400
_MAX_AGE = timedelta(minutes=5)
"""An edit of an older message that is not in the history does not make it a question."""


@frozen_dataclass
class EditedMessages:
    """Works out what an edit changes; nothing is stored before the result is finished."""

    conversations: Conversations
    resolver: PresetResolver
    in_place: AnswersInPlace
    clock: Clock
    dice: Dice

    async def follow(
        self, claim: Claim, message: InboxMessage, edited: Edited
    ) -> TurnResult | Said:
        """Return what the edit changes, or a message that was no question before and is one now.

        The newest question is answered again, in the messages of its old answer; if it does not
        address anybody any more, its answer is deleted and it is background. Of older messages the
        text is replaced.
        """
        said = await recognize_reply(self.conversations, claim, edited.said)
        exchange = await self._load_exchange(claim, said)
        if exchange is None:
            is_question = said.wake is not None and parse(said.text) is None
            is_new = edited.at - said.at < _MAX_AGE and not said.is_late
            return said if is_question and is_new else TurnResult()
        if exchange.question.turn.observed and await self.resolver.is_unobserved(said):
            return TurnResult()
        said = replace(said, earlier_files=files_of_gathered(exchange.before.turns))
        result = await self._follow_known(claim, message, replace(edited, said=said), exchange)
        return _with_files(said, exchange, result)

    async def _follow_known(
        self, claim: Claim, message: InboxMessage, edited: Edited, exchange: Exchange
    ) -> TurnResult:
        """Return what the edit of a message in the history changes."""
        said = edited.said
        text = described_text(said)
        change = HistoryChange({exchange.question.id: text})
        is_same_text = text == exchange.question.turn.text
        if said.is_late or not exchange.is_newest:
            return TurnResult() if is_same_text else TurnResult(change=change)
        if is_same_text and not _may_call_others(said, exchange):
            return TurnResult()  # only a preview has changed
        active = await self.resolver.resolve(said.scopes)
        decision = self._decide(said, active, exchange)
        match decision:
            case Answer() if (
                is_same_text and exchange.answers and not cut_answers(message, exchange)
            ):
                return TurnResult()  # its name calls it, say
            # A line that nobody answered is not drawn for a second time.
            case Answer() if exchange.answers or said.wake is not None:
                texts = {exchange.question.id: text}
                result = await self.in_place.answer(
                    claim, message, said, edited.at, exchange, active, decision.speakers, texts
                )
                return _asked(exchange, result)
            case Answer():
                return TurnResult(change=change)
            case Observe():
                observed = {exchange.question.id: True}
                return _withdrawn(exchange, replace(change, observed=observed))
            case _:
                return _withdrawn(exchange, HistoryChange(superseded=(exchange.question.id,)))

    def _decide(self, said: Said, active: ActiveCharacters, exchange: Exchange) -> Decision:
        """Decide about a message as it reads now; what chance has answered stays answered."""
        now, before = datetime.fromtimestamp(self.clock.now(), UTC), exchange.before.turns
        decision = decide(said, active, before, dice=self.dice, now=now)
        if isinstance(decision, Answer) or not exchange.answers:
            return decision
        luckiest = decide(said, active, before, dice=lambda: 0.0, now=now)
        if not isinstance(luckiest, Answer):
            return decision
        answers = [one.turn for one in exchange.answers]
        return replace(luckiest, speakers=pick_speakers(active, answers))

    async def _load_exchange(self, claim: Claim, said: Said) -> Exchange | None:
        if said.message_id is None:
            return None
        return await self.conversations.load_exchange(claim, said.message_id, _MAX_TURNS_BEFORE)


def _may_call_others(said: Said, exchange: Exchange) -> bool:
    """Return whether an edit that left the text as it was may change who is asked.

    The text has no leading mention of the bot: one may have been added or removed.
    """
    is_background = exchange.question.turn.observed
    return is_background and not exchange.answers if said.wake else not is_background


def _asked(exchange: Exchange, result: TurnResult) -> TurnResult:
    """Let a message that is answered now be background no longer."""
    if not exchange.question.turn.observed or result.change is None or not result.turns:
        return result
    change = replace(result.change, observed={exchange.question.id: False})
    return replace(result, change=change)


def _with_files(said: Said, exchange: Exchange, result: TurnResult) -> TurnResult:
    """Keep where the files of a question are now."""
    question, change = exchange.question, result.change or HistoryChange()
    is_observed = change.observed.get(question.id, question.turn.observed)
    files = () if is_observed else files_to_keep(said)
    if files == question.turn.files:
        return result
    return replace(result, change=replace(change, files={question.id: files}))


def _withdrawn(exchange: Exchange, change: HistoryChange) -> TurnResult:
    """Take the answers back, from the channel and from the history."""
    answers = tuple(one.id for one in exchange.answers)
    superseded = (*change.superseded, *answers)
    return TurnResult(change=replace(change, superseded=superseded), in_place_of=exchange.parts)
