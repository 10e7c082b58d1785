"""The walk: claim a conversation, and answer what was said in it, one message after the other.

A message is answered by one transaction, `finish`. Whatever happens before it leaves no trace:
after a crash the next claim finds the message unanswered and begins again, and an older claim that
wakes up late is fenced by its epoch.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import structlog

from bot.chat.command import Command
from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, Limits, OutgoingPart
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage, Turn, TurnResult
from bot.commands.handlers import CommandHandlers
from bot.errors import BackendError, Fenced, StoreError, UserError
from bot.ports import Clock, ConversationMemory, Conversations
from bot.replying.stream import final
from bot.routing.active_presets import PresetResolver
from bot.routing.decide import Answer, Ignore, Observe
from bot.routing.speakers import ActiveCharacters
from bot.telemetry.metrics import MESSAGES_FINISHED, SECONDS_TO_FINISH
from bot.turn.answer import AnswerPipeline
from bot.turn.lease import LEASE_SECONDS, renewed_lease

_log = structlog.get_logger(__name__)
# A message is set aside when the process died this often over it. Not fewer: whoever kills a
# process again and again, faster than a long answer is written, takes innocent messages with it.
_MOST_CRASHES = 16
_TURNS_TO_SCHEDULE = 40  # who spoke before these is out of the talk
_SET_ASIDE = "⚠ Something in this message stops me every time. I have set it aside."
_BUG = "⚠ Something went wrong on my side. It has been noted; please try again."


class ConversationWorker:
    """One process's way through conversations."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        resolver: PresetResolver,
        commands: CommandHandlers,
        pipeline: AnswerPipeline,
        limits: Callable[[Address], Limits],
        wake_lanes: Callable[[Sequence[str]], Awaitable[None]],
        owner: str,
        clock: Clock,
        memories: Sequence[ConversationMemory],
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._conversations = conversations
        self._resolver = resolver
        self._commands = commands
        self._pipeline = pipeline
        self._limits = limits
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
                async with renewed_lease(self._conversations, claim, self._clock):
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
        while not self.stopping and (message := await self._conversations.next_message(claim)):
            try:
                await self._answer_safely(claim, message)
            except (asyncio.CancelledError, StoreError):  # a full disk is not its fault either
                with contextlib.suppress(Fenced, StoreError):
                    await self._conversations.undo_attempt(claim, message)
                raise

    async def _answer_safely(self, claim: Claim, message: InboxMessage) -> None:
        """Whatever goes wrong with one message, it is told, and the conversation goes on."""
        outcome = "failed"
        try:
            if message.crashes >= _MOST_CRASHES:
                outcome = "set_aside"
                _log.error("set_aside", turn=message.turn, crashes=message.crashes)
                await self._say(claim, message, _SET_ASIDE)
            else:
                outcome = await self._answer(claim, message)
        except (Fenced, StoreError):
            raise
        except UserError as error:
            outcome = "told"
            await self._say(claim, message, f"⚠ {error}")
        except BackendError as error:
            _log.warning("not_answered", turn=message.turn, reason=str(error))
            await self._say(claim, message, f"⚠ {error.notice}")
        except Exception:  # noqa: BLE001 -- the only one: a bug must not silence a conversation
            _log.exception("walk_failed", turn=message.turn)
            await self._say(claim, message, _BUG)
        incoming = message.incoming
        MESSAGES_FINISHED.labels(incoming.address.platform, outcome).inc()
        SECONDS_TO_FINISH.observe(max(0.0, self._clock.now() - incoming.at.timestamp()))

    async def _answer(self, claim: Claim, message: InboxMessage) -> str:
        """Do what the message asks for; gives what became of it, for the metrics."""
        incoming = message.incoming
        active = ActiveCharacters(await self._resolver.resolve(incoming.scopes))
        recent = await self._recent(claim, active)
        decision, chosen = active.decide(incoming, recent, dice=self._dice, now=self._now())
        match decision:
            case Ignore():
                await self._conversations.finish(claim, message, TurnResult())
                return "ignored"
            case Observe():
                await self._conversations.finish(claim, message, TurnResult([_said(message)]))
                return "overheard"
            case Command() as command:
                if (command.name, command.action) == ("preset", "who"):
                    await self._explain(claim, message, active, command.argument)
                else:
                    await self._carry_out(claim, message, command)
                return "command"
            case Answer():
                said = await self._pipeline.answers(claim, message, active, chosen)
                turns = [_said(message), *said.turns]
                await self._finish(claim, message, turns, said.parts, said.receipts)
                return "answered"

    async def _recent(self, claim: Claim, active: ActiveCharacters) -> Sequence[Turn]:
        """What was said lately, if it matters to who speaks next."""
        if len(active.casts) == 1:
            return ()
        return (
            await self._conversations.load_session(claim.conversation, _TURNS_TO_SCHEDULE)
        ).turns

    async def _explain(
        self, claim: Claim, message: InboxMessage, active: ActiveCharacters, text: str
    ) -> None:
        if not text:
            raise UserError("Who would answer what? For example: /preset who good morning")
        recent = await self._recent(claim, active)
        told = active.explain(text, message.incoming, recent, dice=self._dice, now=self._now())
        await self._say(claim, message, told)

    async def _carry_out(self, claim: Claim, message: InboxMessage, command: Command) -> None:
        reply = await self._commands.handle(command, message.incoming)
        greeting = [self._greeting(reply.greeting, reply.greeter)] if reply.greeting else []
        text = f"{await self._forget(claim)} {reply.text}" if reply.forgets else reply.text
        await self._say(
            claim, message, text, greeting, new_session=reply.new_session, file=reply.file
        )
        if reply.new_session:
            for memory in self._memories:
                await memory.end_session(claim.conversation)

    async def _forget(self, claim: Claim) -> str:
        """Delete all that is kept of a conversation; says what that was."""
        for memory in self._memories:
            await memory.forget(claim.conversation)
        turns = await self._conversations.forget(claim)
        return f"Forgotten for good: {turns} messages and all that was kept of them."

    async def _say(
        self,
        claim: Claim,
        message: InboxMessage,
        text: str,
        turns: Sequence[Turn] = (),
        *,
        new_session: bool = False,
        file: Attachment | None = None,
    ) -> None:
        """Answer with a text of our own, not the model's; beside a file it is one short line."""
        parts = final(text, self._limits(message.incoming.address))
        if file is not None:
            parts = (OutgoingPart(0, text, file=file),)
        await self._finish(claim, message, turns, parts, new_session=new_session)

    async def _finish(
        self,
        claim: Claim,
        message: InboxMessage,
        turns: Sequence[Turn],
        outgoing: Sequence[OutgoingPart],
        receipts: Sequence[Receipt] = (),
        *,
        new_session: bool = False,
    ) -> None:
        result = TurnResult(turns, outgoing, receipts, new_session)
        await self._conversations.finish(claim, message, result)
        await self._wake_lanes([message.incoming.address.lane])

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)

    def _greeting(self, text: str, preset: str | None) -> Turn:
        return Turn("assistant", text, None, self._now(), preset)


def _said(message: InboxMessage) -> Turn:
    incoming = message.incoming
    return Turn("user", incoming.text, incoming.author, incoming.at)
