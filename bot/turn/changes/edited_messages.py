"""Follow the edit of a message: answer it again in place, withdraw it, or change the history."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from bot.chat.attachments import described_text
from bot.chat.incoming import Edited, Said
from bot.chat.session import Claim, Exchange, HistoryChange, InboxMessage, TurnResult
from bot.ports import Clock, Conversations
from bot.routing.command_specs import parse
from bot.routing.decide import Answer, Observe, decide
from bot.routing.preset_resolver import PresetResolver
from bot.routing.wake_rules import Dice
from bot.turn.changes.answers_in_place import AnswersInPlace

_MAX_TURNS_BEFORE = 400
_MAX_AGE = timedelta(minutes=5)
"""An edit of an older message that is not in the history does not make it a question."""


@dataclass(frozen=True, slots=True)
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
        address anybody any more, its answer is deleted. Of older messages the text is replaced.
        """
        said = edited.said
        exchange = await self._load_exchange(claim, said)
        if exchange is None:
            is_question = said.wake is not None and parse(said.text) is None
            is_new = edited.at - said.at < _MAX_AGE and not said.is_late
            return said if is_question and is_new else TurnResult()
        text = described_text(said)
        calls = said.wake is not None and exchange.question.turn.observed
        if text == exchange.question.turn.text and not (calls and not exchange.answers):
            return TurnResult()  # only a preview has changed
        change = HistoryChange({exchange.question.id: text})
        if said.is_late or not exchange.is_newest:
            return TurnResult(change=change)
        active = await self.resolver.resolve(said.scopes)
        now = datetime.fromtimestamp(self.clock.now(), UTC)
        decision = decide(said, active, exchange.before.turns, dice=self.dice, now=now)
        match decision:
            # A line that nobody answered is not drawn for a second time.
            case Answer() if exchange.answers or said.wake is not None:
                texts = {exchange.question.id: text}
                return await self.in_place.answer(
                    claim, message, said, edited.at, exchange, active, decision.speakers, texts
                )
            case Answer() | Observe():
                return _withdrawn(exchange, change)
            case _:
                return _withdrawn(exchange, HistoryChange(superseded=(exchange.question.id,)))

    async def _load_exchange(self, claim: Claim, said: Said) -> Exchange | None:
        if said.message_id is None:
            return None
        return await self.conversations.load_exchange(claim, said.message_id, _MAX_TURNS_BEFORE)


def _withdrawn(exchange: Exchange, change: HistoryChange) -> TurnResult:
    """Take the answers back, from the channel and from the history."""
    answers = tuple(one.id for one in exchange.answers)
    superseded = (*change.superseded, *answers)
    return TurnResult(change=replace(change, superseded=superseded), in_place_of=exchange.parts)
