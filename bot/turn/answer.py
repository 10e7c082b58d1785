"""Answer one message: recall what was said, then for each speaker compose, generate and write."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import structlog

from bot.chat.outgoing import OutgoingPart
from bot.chat.prompt import FinishReason
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage, Session, Turn
from bot.commands.personas import UserPersonas
from bot.errors import BackendError, UserError
from bot.ports import Backend, Clock, Conversations
from bot.prompting.compose.compose import compose
from bot.prompting.compose.fit_for_backend import fit_for_backend
from bot.prompting.draft.fit import FittedPrompt
from bot.prompting.presets.preset import Preset
from bot.replying.generate import GeneratedAnswer, generate_answer, receipt_of
from bot.replying.live_replies import LiveReplies
from bot.replying.stream import LiveReply, final
from bot.routing.active_presets import ActivePreset, PresetResolver
from bot.routing.scheduling import LONGEST_CHAIN
from bot.routing.speakers import ActiveCharacters
from bot.stories.retrieve import RetrieveStories
from bot.summaries.summarizer import Summarizer

_log = structlog.get_logger(__name__)
_MOST_TURNS = 400  # read for one prompt
_LEAST_TOKENS_A_TURN = 10  # with its frame, on average: what cannot fit is not read
_ONLY_THOUGHT = "The model thought about it, but gave no answer. Please try again or ask for less."
_NOTHING_SAID = "The model gave an empty answer. Please try again or say it differently."


@dataclass(slots=True)
class AnswerSet:
    """What was said to one message; its readers see `parts`."""

    turns: list[Turn] = field(default_factory=list)
    parts: list[OutgoingPart] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Talk:
    """What every speaker has to know, and what has been said so far."""

    claim: Claim
    message: InboxMessage
    active: ActiveCharacters
    session: Session
    company: Mapping[str, str]  # what characters are called, by preset
    personas: Mapping[str, str]  # who people say they are, by id
    said: AnswerSet = field(default_factory=AnswerSet)


class AnswerPipeline:
    """Lets characters answer, one after the other, each hearing those before."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        resolver: PresetResolver,
        personas: UserPersonas,
        retrieve_stories: RetrieveStories,
        summarizer: Summarizer,
        backends: Mapping[str, Backend],
        showing: LiveReplies,
        clock: Clock,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._conversations = conversations
        self._resolver = resolver
        self._personas = personas
        self._retrieve_stories = retrieve_stories
        self._summarizer = summarizer
        self._backends = backends
        self._showing = showing
        self._clock = clock
        self._dice = dice

    async def answers(
        self,
        claim: Claim,
        message: InboxMessage,
        active: ActiveCharacters,
        chosen: Sequence[ActivePreset],
    ) -> AnswerSet:
        """Let the chosen speak, and then whoever has something to say to that.

        Raises:
            BackendError: nobody had an answer; this is what the first of them failed with.
            UserError: the same, and it is for the author to mend.
        """
        talk = await self._recall(claim, message, active, chosen)
        failures: list[Exception] = []
        queue = list(chosen)
        while queue and len(talk.said.turns) < LONGEST_CHAIN:
            cast = queue.pop(0)
            try:
                await self._speak(cast, talk)
            except (BackendError, UserError) as error:  # others may have more room, or a model
                _log.warning("fell_silent", preset=cast.preset.name, reason=str(error))
                failures.append(error)
            else:
                queue += () if queue else self._reaction(talk)
        if not talk.said.turns:
            raise failures[0]
        return talk.said

    async def _recall(
        self,
        claim: Claim,
        message: InboxMessage,
        active: ActiveCharacters,
        chosen: Sequence[ActivePreset],
    ) -> _Talk:
        session = await self._conversations.load_session(
            claim.conversation, _turns_worth_reading(chosen)
        )
        spoke = {turn.preset for turn in session.turns if turn.preset}
        company = self._resolver.character_names(active.presets | spoke)
        personas = await self._personas.of_speakers(session, message.incoming)
        return _Talk(claim, message, active, session, company, personas)

    async def _speak(self, cast: ActivePreset, talk: _Talk) -> None:
        """One character's answer, shown while it grows."""
        said, address = talk.said, talk.message.incoming.address
        async with self._showing.live(talk.claim, talk.message, len(said.parts)) as live:
            receipt = await self._first_answer(cast, talk, live)
        text = self._line(cast, talk) + receipt.answer
        said.parts += final(text, self._showing.limits(address), len(said.parts))
        said.turns.append(
            Turn("assistant", receipt.answer, None, self._now(), cast.preset.name, cast.version)
        )
        said.receipts.append(receipt)

    async def _first_answer(self, cast: ActivePreset, talk: _Talk, live: LiveReply) -> Receipt:
        """Ask the preset's model, and as long as there is no word, each of its fallbacks."""
        *others, last = (replace(cast, preset=one) for one in cast.preset.alternatives)
        for one in others:
            try:
                return await self._ask(one, talk, live)
            except BackendError as error:
                provider, reason = one.preset.provider, str(error)
                _log.warning("fell_back", preset=one.preset.name, provider=provider, reason=reason)
        return await self._ask(last, talk, live)

    async def _ask(self, cast: ActivePreset, talk: _Talk, live: LiveReply) -> Receipt:
        preset, backend = cast.preset, self._backends[cast.preset.provider]
        fitted = await self._fitted(preset, talk)
        show = prefix_speaker_line(
            self._line(cast, talk), live.feed if preset.stream else _show_nothing
        )
        queued_seconds = max(0.0, self._clock.now() - talk.message.incoming.at.timestamp())
        written = await generate_answer(backend, fitted.prompt, show, live.announce, self._clock)
        _check(written, preset)
        self._sum_up(preset, talk, fitted)
        return receipt_of(written, fitted, preset, cast.version, queued_seconds)

    def _line(self, cast: ActivePreset, talk: _Talk) -> str:
        """What tells readers who speaks."""
        form = self._showing.limits(talk.message.incoming.address).speaker_line
        return talk.active.line(cast, talk.company, form)

    async def _fitted(self, preset: Preset, talk: _Talk) -> FittedPrompt:
        """Compose what this speaker reads, and take as much of it as its budget allows."""
        incoming = talk.message.incoming
        draft = compose(
            preset,
            talk.session,
            incoming,
            company=talk.company,
            answers=tuple(talk.said.turns),
            personas=talk.personas,
            stories=await self._retrieve_stories(preset, incoming.text),
            summary=await self._summarizer.part(preset, talk.claim.conversation),
        )
        return await fit_for_backend(preset, draft, self._backends[preset.provider])

    def _sum_up(self, preset: Preset, talk: _Talk, fitted: FittedPrompt) -> None:
        """What no longer fits into the history is for the summary."""
        if any(one.section == "history" for one in fitted.dropped):
            kept = sum(len(unit.messages) for unit in fitted.draft.history)
            self._summarizer.want(preset, talk.claim.conversation, kept)

    def _reaction(self, talk: _Talk) -> tuple[ActivePreset, ...]:
        return talk.active.reaction(
            talk.said.turns, talk.session.turns, dice=self._dice, now=self._now()
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)


def prefix_speaker_line(line: str, show: Callable[[str], None]) -> Callable[[str], None]:
    """Show a line once, just before the first words."""
    waiting = [line]

    def show_with_line(text: str) -> None:
        show("".join([*waiting, text]) if text else "")
        if text:
            waiting.clear()

    return show_with_line if line else show


def _check(written: GeneratedAnswer, preset: Preset) -> None:
    if not written.text:
        notice = _ONLY_THOUGHT if written.thoughts else _NOTHING_SAID
        raise BackendError("an empty answer", notice=notice)
    if written.reason is FinishReason.LENGTH:
        _log.info("answer_cut_at_length", preset=preset.name)


def _turns_worth_reading(speakers: Sequence[ActivePreset]) -> int:
    budgets = [cast.preset.max_input_tokens for cast in speakers]
    tokens = [_MOST_TURNS if one is None else one // _LEAST_TOKENS_A_TURN for one in budgets]
    return min(_MOST_TURNS, max(tokens))


def _show_nothing(_text: str) -> None:
    """Some presets show their answers only when they are whole."""
