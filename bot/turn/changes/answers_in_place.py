"""Answer a question again in the messages of its old answer, which is kept as a version.

What an edit of the question cut is no version: nobody asks for the rest of it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from bot.chat.incoming import Said
from bot.chat.session import Claim, Exchange, HistoryChange, InboxMessage, TurnRange, TurnResult
from bot.errors import BackendError, ToldAlready, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.replying.answer_buttons import answer_buttons
from bot.replying.live_replies import LiveReplies
from bot.routing.active_presets import ActiveCharacters, ActivePreset
from bot.texts.text import language_of, translatable, translate
from bot.turn.answer import AnswerPipeline
from bot.turn.stops import StopRequests

_log = structlog.get_logger(__name__)


@frozen_dataclass
class AnswersInPlace:
    """Has the answer of an exchange written again."""

    pipeline: AnswerPipeline
    replies: LiveReplies
    stops: StopRequests

    async def answer(
        self,
        claim: Claim,
        message: InboxMessage,
        said: Said,
        at: datetime,
        exchange: Exchange,
        active: ActiveCharacters,
        speakers: Sequence[ActivePreset],
        texts: Mapping[int, str],
    ) -> TurnResult:
        """Return the new answer; the old one stays if that fails.

        Args:
            claim: the conversation.
            message: the row of the inbox that asks for it.
            said: the question as it reads now.
            at: when another answer was asked for.
            exchange: the question as it was, with its answers.
            active: the characters of the channel.
            speakers: who answers.
            texts: what people's messages read now; without any, the same question is answered in
                other words.
        """
        removed = None if texts else TurnRange(0, 0)  # nothing is deleted, but variety is wanted
        try:
            async with self.stops.answering(claim, message, said, at) as stop:
                result = await self.pipeline.answer(
                    claim,
                    message,
                    said,
                    active,
                    speakers,
                    stop,
                    removed,
                    before=exchange.before,
                    in_place_of=exchange.parts,
                )
        except ToldAlready:
            return TurnResult(change=HistoryChange(texts))
        except (BackendError, UserError) as error:  # the old answer stays
            _log.warning("not_answered_again", turn=message.turn, reason=str(error))
            notice = error.notice if isinstance(error, BackendError) else error.text
            text = translatable("⚠ {problem}", problem=notice)
            shown = translate(text, language_of(said.locale))
            outgoing = self.replies.final_parts(said.address, shown)
            return TurnResult(outgoing=outgoing, change=HistoryChange(texts))
        if not result.turns:  # stopped before the first word
            return TurnResult(change=HistoryChange(texts))
        cut = cut_answers(message, exchange) if texts else set()
        if active.first.preset.buttons:
            result = self._with_versions(said, exchange, result, cut)
        return _in_place(exchange, result, texts, cut)

    def _with_versions(
        self, said: Said, exchange: Exchange, result: TurnResult, cut: Collection[int]
    ) -> TurnResult:
        """Return the result with buttons that lead back to the older versions."""
        if not exchange.versions:
            return result
        older = [one for one in exchange.versions[-1] if one.id not in cut]
        count = len(older) + 1
        buttons = answer_buttons(result.turns[-1].sent_as[-1], said.locale, count, count)
        outgoing = self.replies.with_buttons(said.address, result.outgoing, buttons)
        return replace(result, outgoing=outgoing)


def cut_answers(message: InboxMessage, exchange: Exchange) -> set[int]:
    """Return the ids of the answers that were being written when the edit was received."""
    received = datetime.fromtimestamp(message.received_at, UTC)
    return {one.id for one in exchange.answers if one.turn.at >= received}


def _in_place(
    exchange: Exchange, result: TurnResult, texts: Mapping[int, str], cut: set[int]
) -> TurnResult:
    """Let the new answers take the places of the old ones, in the history and in the channel."""
    places = [one.id for one in exchange.answers]
    versions = dict(zip(places, result.turns, strict=False))
    rest = set(places[len(result.turns) :])
    change = HistoryChange(
        texts,
        versions,
        superseded=sorted(rest - cut),
        restored=sorted(rest & cut),
        replaced=sorted(cut.intersection(versions)),
    )
    turns = result.turns[len(places) :]
    return replace(result, turns=turns, change=change, in_place_of=exchange.parts)
