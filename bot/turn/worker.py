"""Claim a conversation and process its inbox: each message is decided, handled and finished.

A message is finished by one transaction, `Conversations.finish`. Nothing before it is stored: after
a crash the next claim finds the message unfinished and starts again, and a worker that was too slow
is fenced by its epoch.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from bot.chat.command import Command
from bot.chat.outgoing import OutgoingPart
from bot.chat.session import Claim, InboxMessage, Turn, TurnResult
from bot.commands.handlers import CommandHandlers
from bot.commands.request import CommandRequest
from bot.errors import BackendError, Fenced, StoreError, UserError
from bot.ports import Clock, ConversationMemory, Conversations
from bot.replying.live_replies import LiveReplies
from bot.routing.active_presets import ActiveCharacters
from bot.routing.decide import Answer, Ignore, Observe, decide
from bot.routing.preset_resolver import PresetResolver
from bot.routing.wake_rules import Dice
from bot.telemetry.metrics import MESSAGES_FINISHED, SECONDS_TO_FINISH
from bot.turn.answer import AnswerPipeline
from bot.turn.lease import LEASE_SECONDS, renewed_lease

_log = structlog.get_logger(__name__)
# A message is set aside when the process died this often while working on it. Not fewer: a message
# that kills the process faster than a long answer takes makes innocent ones count crashes, too.
_MAX_CRASHES = 16
_TURNS_FOR_ROUTING = 40  # who spoke before these does not matter to who speaks next
_SET_ASIDE = "⚠ Processing this message crashed the service repeatedly, so it was set aside."
_BUG = "⚠ Something went wrong on my side. The error was logged; please try again."


@dataclass(frozen=True, slots=True)
class TurnStages:
    """The stages that a message passes between claim and finish."""

    resolver: PresetResolver
    commands: CommandHandlers
    pipeline: AnswerPipeline
    replies: LiveReplies
    dice: Dice = random.random


class ConversationWorker:
    """Processes conversations, each alone and in order; many at once."""

    def __init__(
        self,
        conversations: Conversations,
        memories: Sequence[ConversationMemory],
        stages: TurnStages,
        owner: str,
        clock: Clock,
    ) -> None:
        """Set the worker up.

        Args:
            conversations: claims, messages, results.
            memories: what keeps parts of conversations besides, as backends do.
            stages: what a message passes.
            owner: the name that claims are held under.
            clock: time.
        """
        self._conversations = conversations
        self._memories = memories
        self._stages = stages
        self._owner = owner
        self._clock = clock
        self.stopping = False

    async def work(self, conversation: str) -> None:
        """Process every unfinished message of a conversation, unless another worker has it."""
        more = True
        while more and not self.stopping:
            claim = await self._conversations.claim(conversation, self._owner, LEASE_SECONDS)
            if claim is None:
                return
            try:
                async with renewed_lease(self._conversations, claim, self._clock):
                    await self._process_inbox(claim)
                more = await self._conversations.release(claim)
            except Fenced as error:
                _log.warning("fenced", conversation=conversation, reason=str(error))
                return
            except asyncio.CancelledError:  # others need not wait for the lease to expire
                with contextlib.suppress(Fenced, StoreError):
                    await self._conversations.release(claim)
                raise

    async def _process_inbox(self, claim: Claim) -> None:
        while not self.stopping and (message := await self._conversations.next_message(claim)):
            try:
                await self._process(claim, message)
            except (asyncio.CancelledError, StoreError):  # neither is the message's fault
                with contextlib.suppress(Fenced, StoreError):
                    await self._conversations.undo_attempt(claim, message)
                raise

    async def _process(self, claim: Claim, message: InboxMessage) -> None:
        """Process one message; a failure is replied, and the conversation goes on."""
        outcome = "failed"
        try:
            if message.crashes >= _MAX_CRASHES:
                outcome = "set_aside"
                _log.error("set_aside", turn=message.turn, crashes=message.crashes)
                await self._finish_with_text(claim, message, _SET_ASIDE)
            else:
                outcome = await self._handle(claim, message)
        except (Fenced, StoreError):
            raise
        except UserError as error:
            outcome = "told"
            await self._finish_with_text(claim, message, f"⚠ {error}")
        except BackendError as error:
            _log.warning("not_answered", turn=message.turn, reason=str(error))
            await self._finish_with_text(claim, message, f"⚠ {error.notice}")
        except Exception:  # noqa: BLE001 -- the only one: a bug must not silence a conversation
            _log.exception("turn_failed", turn=message.turn)
            await self._finish_with_text(claim, message, _BUG)
        incoming = message.incoming
        MESSAGES_FINISHED.labels(incoming.address.platform, outcome).inc()
        SECONDS_TO_FINISH.observe(max(0.0, self._clock.now() - incoming.at.timestamp()))

    async def _handle(self, claim: Claim, message: InboxMessage) -> str:
        """Decide what happens to a message and do it; return the outcome for the metrics."""
        stages, incoming = self._stages, message.incoming
        active = await stages.resolver.resolve(incoming.scopes)
        recent = await self._recent(claim, active)
        decision = decide(incoming, active, recent, dice=stages.dice, now=self._now())
        match decision:
            case Ignore():
                await self._conversations.finish(claim, message, TurnResult())
                return "ignored"
            case Observe():
                turns = [_user_turn(message)]
                await self._conversations.finish(claim, message, TurnResult(turns))
                return "overheard"
            case Command() as command:
                request = CommandRequest(command, incoming, active, recent, self._now())
                await self._run_command(claim, message, request)
                return "command"
            case Answer(speakers):
                result = await stages.pipeline.answer(claim, message, active, speakers)
                turns = [_user_turn(message), *result.turns]
                await self._finish(claim, message, replace(result, turns=turns))
                return "answered"

    async def _recent(self, claim: Claim, active: ActiveCharacters) -> Sequence[Turn]:
        """Load the newest turns if routing depends on them."""
        if not active.is_group:
            return ()
        session = await self._conversations.load_session(claim.conversation, _TURNS_FOR_ROUTING)
        return session.turns

    async def _run_command(
        self, claim: Claim, message: InboxMessage, request: CommandRequest
    ) -> None:
        result = await self._stages.commands.handle(request)
        text = result.text
        if result.deletes_history:
            text = f"{await self._delete_history(claim)} {text}"
        if result.file is None:
            outgoing = self._stages.replies.final_parts(message.incoming.address, text)
        else:
            outgoing = (OutgoingPart(0, text, file=result.file),)
        greeting = result.greeting
        turns = [Turn("assistant", greeting, None, request.now, result.greeter)] if greeting else []
        await self._finish(
            claim, message, TurnResult(turns, outgoing, new_session=result.new_session)
        )
        if result.new_session:
            for memory in self._memories:
                await memory.end_session(claim.conversation)

    async def _delete_history(self, claim: Claim) -> str:
        """Delete all that is kept of a conversation; return a sentence that says what it was."""
        for memory in self._memories:
            await memory.forget(claim.conversation)
        turns = await self._conversations.forget(claim)
        return f"Deleted for good: {turns} messages and everything that was kept of them."

    async def _finish_with_text(self, claim: Claim, message: InboxMessage, text: str) -> None:
        """Reply with a text of the service's own, which is no part of the history."""
        outgoing = self._stages.replies.final_parts(message.incoming.address, text)
        await self._finish(claim, message, TurnResult(outgoing=outgoing))

    async def _finish(self, claim: Claim, message: InboxMessage, result: TurnResult) -> None:
        """Store the result, then wake the lane that it is delivered in."""
        await self._conversations.finish(claim, message, result)
        await self._stages.replies.wake_lane(message.incoming.address)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)


def _user_turn(message: InboxMessage) -> Turn:
    incoming = message.incoming
    return Turn("user", incoming.text, incoming.author, incoming.at)
