"""Have gathered questions answered, and finish with the answer or with why there is none."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

import structlog

from bot.chat.incoming import Said
from bot.chat.session import Claim, InboxMessage, TurnRange, TurnResult
from bot.commands.request import AskedQuestion
from bot.errors import AnswerRefused, BackendError
from bot.frozen_dataclass import frozen_dataclass
from bot.replying.live_replies import LiveReplies
from bot.routing.active_presets import ActiveCharacters
from bot.routing.decision_log import DecisionLog
from bot.texts.text import Text, language_of, translatable, translatable_count, translate
from bot.turn.answer import AnswerPipeline
from bot.turn.gathering import Gathering, MessageGatherer, observed_turn, user_turn
from bot.turn.joining import MessageGroup
from bot.turn.limits.queue_limit import QueueLimit
from bot.turn.limits.refused_chats import RefusedChats
from bot.turn.outcomes.command_replies import CommandReplies, has_private_response
from bot.turn.outcomes.finishing import TurnFinisher
from bot.turn.stops import StopRequests

_log = structlog.get_logger(__name__)
_SECONDS_BETWEEN_PAUSE_NOTICES = 600.0
_PAUSED = translatable(
    "⏸ I am paused and answer nobody at the moment. I remember what you write; please ask again"
    " later."
)


@frozen_dataclass
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
