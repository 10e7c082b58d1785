"""Compose the prompt of a message that is still being written: nothing is asked, nothing stored.

It takes the path of a real answer up to the request (`PromptSources.fit`), so that the prompt is
the one that would be sent.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from bot.chat.command import Command
from bot.chat.incoming import Said
from bot.chat.playground.next_answer import ConsideredCharacter, NextAnswer
from bot.chat.prompt import Usage
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage
from bot.chat.usage import AnswerCharge
from bot.errors import BackendError, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.intake.intake import storable_said
from bot.ports import Clock, Conversations
from bot.replying.generate import GeneratedAnswer, WaitedSeconds, build_receipt
from bot.routing.active_presets import ActiveCharacters, ActivePreset
from bot.routing.decide import Answer, Ignore, Observe, Unreadable, decide
from bot.routing.preset_resolver import PresetResolver
from bot.routing.speaker_selection import SpeakerCandidate
from bot.routing.wake_rules import Dice
from bot.texts.text import translatable
from bot.turn.limits.spending import Spending
from bot.turn.prompt_sources import PromptSources, TurnContext
from bot.turn.worker import TURNS_FOR_ROUTING

_BEGINS_BRANCH = translatable(
    "A reply to a message in the middle begins a history of its own; its prompt is known when it is"
    " sent."
)
_NO_ANSWER = GeneratedAnswer("", None, Usage(), None, 0.0)
_NO_EPOCH = 0  # less than any claim's: it reads, and never writes


@frozen_dataclass
class PromptPreview:
    """Tells what would happen to a message."""

    sources: PromptSources
    resolver: PresetResolver
    conversations: Conversations
    spending: Spending
    clock: Clock
    find_history: Callable[[Said], Awaitable[Said | None]]
    """Gives a message its history; None: it would begin another one, which is not made yet."""
    dice: Dice | None = None
    """Draws chances; None: the same ones for the same text, so that they do not change all the
    time while somebody writes."""

    async def preview(self, said: Said) -> NextAnswer:
        """Return who would answer a message, and the prompt of the first of them.

        Raises:
            StoreError: the history cannot be read.
        """
        placed = await self.find_history(storable_said(said))
        if placed is None:
            return NextAnswer(problem=_BEGINS_BRANCH)
        said = placed
        active = await self.resolver.resolve(said.scopes)
        claim = Claim(said.address.conversation, _NO_EPOCH, "preview")
        recent = await self.conversations.load_session(claim, TURNS_FOR_ROUTING)
        now = datetime.fromtimestamp(self.clock.now(), UTC)
        dice = self.dice or random.Random(said.text).random  # noqa: S311
        decision = decide(said, active, recent.turns, dice=dice, now=now)
        match decision:
            case Command() | Unreadable():
                return NextAnswer(is_command=isinstance(decision, Command))
            case Ignore(candidates) | Observe(candidates):
                return NextAnswer(_considered(candidates, active))
            case Answer(speakers, candidates):
                return await self._compose(claim, said, active, speakers, candidates)

    async def _compose(
        self,
        claim: Claim,
        said: Said,
        active: ActiveCharacters,
        speakers: Sequence[ActivePreset],
        candidates: Sequence[SpeakerCandidate],
    ) -> NextAnswer:
        """Compose the prompt of the first speaker whose prompt can be composed."""
        characters, problem = _considered(candidates, active), None
        message = InboxMessage(0, said, 0)
        context = await self.sources.load(claim, message, said, active, speakers)
        for speaker in speakers:
            try:
                receipt = await self._prompt(speaker, context)
            except (BackendError, UserError) as error:
                problem = problem or (error.text if isinstance(error, UserError) else error.notice)
            else:
                limit = receipt.prompt.max_output_tokens
                return NextAnswer(characters, prompt=receipt, max_answer_tokens=limit)
        return NextAnswer(characters, problem=problem)

    async def _prompt(self, speaker: ActivePreset, context: TurnContext) -> Receipt:
        fitted = await self.sources.fit(speaker.preset, context)
        fitted = self.spending.bounded(speaker.preset, context.said, fitted)
        preset, version, scopes = speaker.preset, speaker.version, context.said.scopes
        spent = (WaitedSeconds(), AnswerCharge())
        return build_receipt(_NO_ANSWER, fitted, preset, version, *spent, scopes)


def _considered(
    candidates: Sequence[SpeakerCandidate], active: ActiveCharacters
) -> tuple[ConsideredCharacter, ...]:
    names = {one.name: one.character_name for one in active.presets}
    return tuple(
        ConsideredCharacter(one.preset, names[one.preset], one.chosen, one.score, one.reasons)
        for one in candidates
    )
