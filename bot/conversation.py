"""The walk: claim a conversation, and answer what was said in it, one message after the other.

A message is answered by one transaction, `finish`. Whatever happens before it leaves no trace:
after a crash the next claim finds the message unanswered and begins again, and an older claim that
wakes up late is fenced by its epoch.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

import structlog

from bot.chat.command import Command
from bot.chat.incoming import Incoming
from bot.chat.outgoing import Outgoing
from bot.chat.prompt import FinishReason
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, Heard, Session, Turn
from bot.ensemble import Cue, Ensemble, announcing
from bot.errors import (
    BackendError,
    CoordinatorDown,
    Fenced,
    StoreError,
    UserError,
)
from bot.lease import LEASE_SECONDS, held
from bot.ports import Backend, Clock, Conversations, Remembers, Surface
from bot.prompting.compose import compose
from bot.prompting.fitting import fit_for
from bot.prompting.people import MOST_ASKED_ABOUT
from bot.replying.stream import LiveReply, final, keep_typing
from bot.replying.writing import receipt_of, write
from bot.routing.decide import Answer, Ignore, Overhear
from bot.routing.scheduling import LONGEST_CHAIN
from bot.sessions.casting import Cast, Casting
from bot.sessions.commands import CommandDesk
from bot.sessions.finding import FindStories
from bot.sessions.people import People
from bot.sessions.summaries import Summarizer
from bot.telemetry.metrics import FINISHED, SECONDS_TO_FINISH

_log = structlog.get_logger(__name__)
_MOST_TURNS = 400  # read for one prompt
_LEAST_TOKENS_A_TURN = 10  # with its frame, on average: what cannot fit is not read
# A message is set aside when the process died this often over it. Not fewer: whoever kills a
# process again and again, faster than a long answer is written, takes innocent messages with it.
_MOST_CRASHES = 16
_TURNS_TO_SCHEDULE = 40  # who spoke before these is out of the talk
_SET_ASIDE = "⚠ Something in this message stops me every time. I have set it aside."
_BUG = "⚠ Something went wrong on my side. It has been noted; please try again."
_ONLY_THOUGHT = "The model thought about it, but gave no answer. Please try again or ask for less."
_NOTHING_SAID = "The model gave an empty answer. Please try again or say it differently."


class Walk:
    """One process's way through conversations; `surfaces` are those of live, unhurried edits."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        casting: Casting,
        people: People,
        commands: CommandDesk,
        find_stories: FindStories,
        summarizer: Summarizer,
        backends: Mapping[str, Backend],
        surfaces: Mapping[str, Surface],
        arrival: Callable[[int], Awaitable[str]],
        wake_lanes: Callable[[Sequence[str]], Awaitable[None]],
        owner: str,
        clock: Clock,
        memories: Sequence[Remembers] = (),
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._conversations = conversations
        self._casting = casting
        self._people = people
        self._commands = commands
        self._find_stories = find_stories
        self._summarizer = summarizer
        self._backends = backends
        self._surfaces = surfaces
        self._arrival = arrival
        self._wake_lanes = wake_lanes
        self._owner = owner
        self._clock = clock
        self._memories = memories
        self._dice = dice
        self.stopping = False

    async def work(self, conversation: str) -> None:
        """Answer everything that is unanswered in a conversation, unless somebody else does."""
        more = True
        while more and not self.stopping:
            claim = await self._conversations.claim(conversation, self._owner, LEASE_SECONDS)
            if claim is None:
                return
            try:
                async with held(self._conversations, claim, self._clock):
                    await self._answer_all(claim)
                more = await self._conversations.release(claim)
            except Fenced as error:
                _log.warning("fenced", conversation=conversation, reason=str(error))
                return
            except asyncio.CancelledError:  # others need not wait for our lease to end
                with contextlib.suppress(Fenced, StoreError):
                    await self._conversations.release(claim)
                raise

    async def _answer_all(self, claim: Claim) -> None:
        while not self.stopping and (heard := await self._conversations.next(claim)):
            try:
                await self._answer_safely(claim, heard)
            except (asyncio.CancelledError, StoreError):  # a full disk is not its fault either
                with contextlib.suppress(Fenced, StoreError):
                    await self._conversations.spare(claim, heard)
                raise

    async def _answer_safely(self, claim: Claim, heard: Heard) -> None:
        """Whatever goes wrong with one message, it is told, and the conversation goes on."""
        outcome = "failed"
        try:
            if heard.crashes >= _MOST_CRASHES:
                outcome = "set_aside"
                _log.error("set_aside", turn=heard.turn, crashes=heard.crashes)
                await self._say(claim, heard, _SET_ASIDE)
            else:
                outcome = await self._answer(claim, heard)
        except (Fenced, StoreError):
            raise
        except UserError as error:
            outcome = "told"
            await self._say(claim, heard, f"⚠ {error}")
        except BackendError as error:
            _log.warning("not_answered", turn=heard.turn, reason=str(error))
            await self._say(claim, heard, f"⚠ {error.notice}")
        except Exception:  # noqa: BLE001 -- the only one: a bug must not silence a conversation
            _log.exception("walk_failed", turn=heard.turn)
            await self._say(claim, heard, _BUG)
        incoming = heard.incoming
        FINISHED.labels(incoming.address.platform, outcome).inc()
        SECONDS_TO_FINISH.observe(max(0.0, self._clock.now() - incoming.at.timestamp()))

    async def _answer(self, claim: Claim, heard: Heard) -> str:
        """Do what the message asks for; gives what became of it, for the metrics."""
        incoming = heard.incoming
        ensemble = Ensemble(await self._casting.ensemble(incoming.scopes))
        recent = await self._recent(claim, ensemble)
        decision, chosen = ensemble.decide(incoming, recent, dice=self._dice, now=self._now())
        match decision:
            case Ignore():
                await self._conversations.finish(claim, heard, turns=(), outgoing=())
                return "ignored"
            case Overhear():
                await self._conversations.finish(claim, heard, turns=[_said(heard)], outgoing=())
                return "overheard"
            case Command() as command:
                if (command.name, command.action) == ("preset", "who"):
                    await self._rehearse(claim, heard, ensemble, command.argument)
                else:
                    await self._carry_out(claim, heard, command)
                return "command"
            case Answer():
                await self._reply(claim, heard, ensemble, chosen)
                return "answered"

    async def _recent(self, claim: Claim, ensemble: Ensemble) -> Sequence[Turn]:
        """What was said lately, if it matters to who speaks next."""
        if len(ensemble.casts) == 1:
            return ()
        return (await self._conversations.recall(claim.conversation, _TURNS_TO_SCHEDULE)).turns

    async def _rehearse(self, claim: Claim, heard: Heard, ensemble: Ensemble, text: str) -> None:
        if not text:
            raise UserError("Who would answer what? For example: /preset who good morning")
        recent = await self._recent(claim, ensemble)
        told = ensemble.rehearse(text, heard.incoming, recent, dice=self._dice, now=self._now())
        await self._say(claim, heard, told)

    async def _carry_out(self, claim: Claim, heard: Heard, command: Command) -> None:
        reply = await self._commands.carry_out(command, heard.incoming)
        greeting = [self._turn(reply.greeting, reply.greeter)] if reply.greeting else []
        text = f"{await self._forget(claim)} {reply.text}" if reply.forgets else reply.text
        await self._say(claim, heard, text, greeting, new_session=reply.new_session)
        if reply.new_session:
            for memory in self._memories:
                await memory.leave(claim.conversation)

    async def _forget(self, claim: Claim) -> str:
        """Delete all that is kept of a conversation; says what that was."""
        for memory in self._memories:
            await memory.forget(claim.conversation)
        turns = await self._conversations.forget(claim)
        return f"Forgotten for good: {turns} messages and all that was kept of them."

    async def _reply(
        self, claim: Claim, heard: Heard, ensemble: Ensemble, chosen: Sequence[Cast]
    ) -> None:
        """Let the chosen answer, one after the other, each hearing those before; others react."""
        session = await self._conversations.recall(claim.conversation, _turns_worth_reading(chosen))
        limits = self._surfaces[heard.incoming.address.platform].limits(heard.incoming.address)
        spoke = {turn.preset for turn in session.turns if turn.preset}
        company = self._casting.names(ensemble.presets | spoke)
        personas = await self._personas(session, heard.incoming)
        turns: list[Turn] = []
        parts: list[Outgoing] = []
        receipts: list[Receipt] = []
        failures: list[Exception] = []
        queue = list(chosen)
        while queue and len(turns) < LONGEST_CHAIN:
            cast = queue.pop(0)
            line = ensemble.line(cast, company, limits.speaker_line)
            cue = Cue(tuple(turns), len(parts), company, personas, line)
            try:
                receipt = await self._answer_as(cast, claim, heard, session, cue)
            except (BackendError, UserError) as error:  # others may have more room, or a model
                _log.warning("fell_silent", preset=cast.preset.name, reason=str(error))
                failures.append(error)
                continue
            parts += final(line + receipt.answer, limits, len(parts))
            turns.append(self._turn(receipt.answer, cast.preset.name, cast.version))
            receipts.append(receipt)
            if not queue:
                queue += ensemble.reaction(turns, session.turns, dice=self._dice, now=self._now())
        if not turns:
            raise failures[0]
        await self._finish(claim, heard, [_said(heard), *turns], parts, receipts)

    async def _answer_as(
        self, cast: Cast, claim: Claim, heard: Heard, session: Session, cue: Cue
    ) -> Receipt:
        """One character's answer, shown while it grows."""
        preset, backend = cast.preset, self._backends[cast.preset.provider]
        async with self._live(claim, heard, cue.first_part) as live:
            draft = compose(
                preset,
                session,
                heard.incoming,
                bot_name=preset.name,
                company=cue.company,
                answers=cue.answers,
                personas=cue.personas,
                stories=await self._find_stories(preset, heard.incoming.text),
                summary=await self._summarizer.part(preset, claim.conversation),
            )
            fitted = await fit_for(preset, draft, backend)
            show = announcing(cue.line, live.feed if preset.stream else _show_nothing)
            queued_seconds = max(0.0, self._clock.now() - heard.incoming.at.timestamp())
            written = await write(backend, fitted.prompt, show, live.announce, self._clock)
        if not written.text:
            notice = _ONLY_THOUGHT if written.thoughts else _NOTHING_SAID
            raise BackendError("an empty answer", notice=notice)
        if written.reason is FinishReason.LENGTH:
            _log.info("answer_cut_at_length", preset=preset.name)
        if any(one.section == "history" for one in fitted.dropped):
            kept = sum(len(unit.messages) for unit in fitted.draft.history)
            self._summarizer.want(preset, claim.conversation, kept)
        return receipt_of(written, fitted, preset, cast.version, queued_seconds)

    async def _personas(self, session: Session, incoming: Incoming) -> dict[str, str]:
        speakers = (turn.speaker.id for turn in reversed(session.turns) if turn.speaker)
        newest = dict.fromkeys([incoming.author.id, *speakers])
        return await self._people.personas(islice(newest, MOST_ASKED_ABOUT), incoming.scopes)

    @contextlib.asynccontextmanager
    async def _live(self, claim: Claim, heard: Heard, first_part: int) -> AsyncIterator[LiveReply]:
        """Show an answer while it grows. When the block ends, nothing live is under way."""
        address = heard.incoming.address
        surface = self._surfaces[address.platform]

        async def open_part(opening: Outgoing) -> int:
            row = await self._conversations.open(claim, heard, opening)
            await self._wake(address.lane)
            return row

        typing = asyncio.create_task(keep_typing(surface, address, self._clock))
        try:
            async with LiveReply(
                surface, address, open_part, self._arrival, self._clock, first_part
            ) as live:
                yield live
        finally:
            typing.cancel()
            await asyncio.wait([typing])

    async def _say(
        self,
        claim: Claim,
        heard: Heard,
        text: str,
        turns: Sequence[Turn] = (),
        *,
        new_session: bool = False,
    ) -> None:
        """Answer with a text of our own, not the model's."""
        limits = self._surfaces[heard.incoming.address.platform].limits(heard.incoming.address)
        await self._finish(claim, heard, turns, final(text, limits), new_session=new_session)

    async def _finish(
        self,
        claim: Claim,
        heard: Heard,
        turns: Sequence[Turn],
        outgoing: Sequence[Outgoing],
        receipts: Sequence[Receipt] = (),
        *,
        new_session: bool = False,
    ) -> None:
        await self._conversations.finish(
            claim,
            heard,
            turns=turns,
            outgoing=outgoing,
            receipts=receipts,
            new_session=new_session,
        )
        await self._wake(heard.incoming.address.lane)

    async def _wake(self, lane: str) -> None:
        with contextlib.suppress(CoordinatorDown):  # the senders' janitor finds it in SQL
            await self._wake_lanes([lane])

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)

    def _turn(self, text: str, preset: str | None, version: int | None = None) -> Turn:
        return Turn("assistant", text, None, self._now(), preset, version)


def _said(heard: Heard) -> Turn:
    incoming = heard.incoming
    return Turn("user", incoming.text, incoming.author, incoming.at)


def _turns_worth_reading(speakers: Sequence[Cast]) -> int:
    budgets = [cast.preset.max_input_tokens for cast in speakers]
    tokens = [_MOST_TURNS if one is None else one // _LEAST_TOKENS_A_TURN for one in budgets]
    return min(_MOST_TURNS, max(tokens))


def _show_nothing(_text: str) -> None:
    """Some presets show their answers only when they are whole."""
