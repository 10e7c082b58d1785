"""Gather messages that are answered together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from bot.chat.attachments import described_text, files_to_keep
from bot.chat.command import Command
from bot.chat.incoming import Said, WakeReason
from bot.chat.outgoing import Limits
from bot.chat.session import Attempt, Claim, InboxMessage, Turn
from bot.commands.request import AskedQuestion
from bot.errors import StoreError
from bot.ports import Clock
from bot.prompting.presets.preset import BusyMode, BusyRules
from bot.replying.stop_flag import StopFlag
from bot.routing.decide import Answer, Decision, Ignore, Observe, Unreadable
from bot.runtime.tasks import cancel_and_wait
from bot.storage.conversations import Conversations
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.turn.arrivals import ArrivalSignals
from bot.turn.claims import CRASHES_OF_A_SUSPECT
from bot.value_class import value_class

_FULL_SHARE = 0.98  # clients cut a long text at a space near the limit
_MOST_UNITS = 2  # of one character, whatever the platform counts
_MAX_PARTS = 20
_MAX_WAIT_SECONDS = 5.0
_LOOK_SECONDS = 0.2  # between two looks for the next part


@dataclass(slots=True)
class MessageGroup:
    """What is being processed of a conversation; more may be gathered with it."""

    message: InboxMessage
    between: list[InboxMessage] = field(default_factory=list)
    """What others said between the parts of the message; not gathered yet."""
    asked: AskedQuestion | None = None
    """The question that is being answered."""


@value_class
class MessageParts:
    """What belongs to one message in a channel; an ordinary message has no further parts."""

    limits: Limits
    rules: BusyRules

    def seconds_to_wait(self, said: Said) -> float:
        """Return how long after a message its next part may come; 0: there is none."""
        if said.interaction is not None:
            return 0.0
        if said.album is not None:
            return self.rules.album_seconds
        longest = self.limits.max_units  # a longer one was not cut by a client
        if len(said.text) * _MOST_UNITS < longest * _FULL_SHARE:
            return 0.0  # nearly always: its units need not be counted
        is_cut = longest * _FULL_SHARE <= self._units(said.text) <= longest
        return self.rules.paste_seconds if is_cut else 0.0

    def continues(self, whole: Said, newest: InboxMessage, later: InboxMessage) -> bool:
        """Return whether a message is the next part of another one.

        Args:
            whole: what the parts so far say.
            newest: the newest of them.
            later: the message that came after it.
        """
        said, last = later.incoming, newest.incoming
        if not (isinstance(said, Said) and isinstance(last, Said)):
            return False
        if said.author.id != whole.author.id or said.interaction is not None:
            return False
        if whole.album is not None or said.album is not None:
            return said.album == whole.album
        wait = self.seconds_to_wait(last)
        is_text = bool(said.text) and not said.attachments and said.quote is None
        return wait > 0 and is_text and later.received_at - newest.received_at <= wait

    def join(self, whole: Said, newest: InboxMessage, later: InboxMessage) -> Said:
        """Return what the parts say together; the message is named after the first one."""
        said, last = later.incoming, newest.incoming
        if not (isinstance(said, Said) and isinstance(last, Said)):
            return whole
        is_cut_in_a_word = self._units(last.text) >= self.limits.max_units
        texts = [one for one in (whole.text, said.text) if one]
        text = ("" if is_cut_in_a_word else "\n").join(texts)
        masked = mask_pasted_tokens(text)  # a token may have been cut in two
        return replace(
            whole,
            text=masked,
            has_masked_token=whole.has_masked_token or masked != text,
            wake=whole.wake or said.wake,
            quote=whole.quote or said.quote,
            mentions=(*whole.mentions, *said.mentions),
            attachments=(*whole.attachments, *said.attachments),
        )

    def _units(self, text: str) -> int:
        in_utf16 = self.limits.unit == "utf16"
        return len(text.encode("utf-16-le")) // 2 if in_utf16 else len(text)


class PartJoiner:
    """Waits for the parts of a message, in its inbox."""

    def __init__(self, conversations: Conversations, clock: Clock) -> None:
        self._conversations = conversations
        self._clock = clock

    async def join(
        self, claim: Claim, group: MessageGroup, said: Said, parts: MessageParts
    ) -> Said:
        """Return a message with its further parts, for which it waits; most have none.

        What was in flight when two processes died is processed alone.
        """
        newest, until = group.message, self._clock.monotonic() + _MAX_WAIT_SECONDS
        if group.message.crashes >= CRASHES_OF_A_SUSPECT:
            return said
        while isinstance(newest.incoming, Said) and parts.seconds_to_wait(newest.incoming) > 0:
            others: list[InboxMessage] = []
            for message in await self._conversations.following(claim, group.message, _MAX_PARTS):
                if not parts.continues(said, newest, message):
                    others.append(message)
                else:
                    group.between += others
                    others = []
                    said, newest = parts.join(said, newest, message), message
                    gathered = (*group.message.gathered, message)
                    group.message = replace(group.message, gathered=gathered)
            if not isinstance(newest.incoming, Said):
                break
            wait = newest.received_at + parts.seconds_to_wait(newest.incoming) - self._clock.now()
            wait = min(wait, until - self._clock.monotonic())
            if wait <= 0:
                break
            await self._clock.sleep(min(wait, _LOOK_SECONDS))
        first = group.message.incoming
        if said.has_masked_token and isinstance(first, Said):  # so that its author is told
            told = replace(first, has_masked_token=True)
            group.message = replace(group.message, incoming=told)
        if group.message.gathered:
            await self._conversations.record_attempt(claim, group.message, Attempt.BESIDE_OTHERS)
        return said


_log = structlog.get_logger(__name__)
_MAX_COUNTED = 100


@value_class
class _SeenMessage:
    parts: tuple[InboxMessage, ...]
    """One, or those that a client has cut it into."""
    said: Said
    decision: Decision


def busy_mode(rules: BusyRules, said: Said, limits: Limits) -> BusyMode:
    """Return what happens to messages that come while this one is answered."""
    if rules.mode is not None:
        return rules.mode
    if limits.answers_each_message:
        return "queue"
    return "interrupt" if said.wake is WakeReason.DM else "collect"


class MessageGatherer:
    """Begins to gather: what it takes is the same for all conversations."""

    def __init__(
        self, conversations: Conversations, arrivals: ArrivalSignals, clock: Clock
    ) -> None:
        self._conversations = conversations
        self._arrivals = arrivals
        self._clock = clock

    def begin(
        self,
        claim: Claim,
        group: MessageGroup,
        asked: AskedQuestion,
        limits: Limits,
        decide_next: Callable[[Said], Awaitable[Decision]],
    ) -> "Gathering":
        """Begin with a message that is to be answered; nothing is gathered yet.

        A native command has a response of its own, and what was in flight when a process died is
        answered alone: nothing is gathered with those.

        Args:
            claim: the conversation.
            group: the message; gets those that are gathered with it.
            asked: what it says, and who answers; the first one's preset says what is gathered.
            limits: of the channel.
            decide_next: decides what happens to a later message.
        """
        rules, message, said = asked.speakers[0].preset.busy, group.message, asked.incoming
        can_gather = isinstance(message.incoming, Said) and said.interaction is None
        mode: BusyMode = "queue"
        if can_gather and not message.crashes:
            mode = busy_mode(rules, said, limits)
        return self._make(claim, group, asked, mode, decide_next, MessageParts(limits, rules))

    def repeat(
        self,
        claim: Claim,
        group: MessageGroup,
        asked: AskedQuestion,
        limits: Limits,
    ) -> "Gathering":
        """Answer a question again, with what was gathered before it; nothing is added."""
        parts = MessageParts(limits, asked.speakers[0].preset.busy)
        return self._make(claim, group, asked, "queue", _ignore, parts)

    def _make(
        self,
        claim: Claim,
        group: MessageGroup,
        asked: AskedQuestion,
        mode: BusyMode,
        decide_next: Callable[[Said], Awaitable[Decision]],
        parts: MessageParts,
    ) -> "Gathering":
        return Gathering(
            claim,
            group,
            asked,
            mode,
            decide_next,
            parts,
            self._conversations,
            self._arrivals,
            self._clock,
        )


class Gathering:
    """The messages that one answer covers, until it is finished."""

    def __init__(
        self,
        claim: Claim,
        group: MessageGroup,
        asked: AskedQuestion,
        mode: BusyMode,
        decide_next: Callable[[Said], Awaitable[Decision]],
        parts: MessageParts,
        conversations: Conversations,
        arrivals: ArrivalSignals,
        clock: Clock,
    ) -> None:
        """Begin with one message; see `MessageGatherer.begin`."""
        self.asked = asked
        """What the answer replies to, and who answers."""
        self.askers = {asked.incoming.author.id}
        """Whose messages are gathered into the answer: they may stop it."""
        self.decided: list[tuple[Said, Decision]] = []
        """What was decided on everything that was gathered."""
        self.left_over = 0
        """How many more messages wait that this answer does not cover."""
        self._claim = claim
        self._group = group
        self._mode, self._rules, self._parts = mode, asked.speakers[0].preset.busy, parts
        self._decide_next = decide_next
        self._conversations = conversations
        self._arrivals = arrivals
        self._clock = clock
        self._seen: list[_SeenMessage] = []  # not gathered yet
        self._is_ended = self._mode == "queue"
        self._has_arrived = False
        self._was_interrupted = False
        self._received_at = group.message.received_at  # of the newest
        self._quiet_seconds = self._rules.quiet_seconds  # longer while a message is not whole

    async def gather_waiting(self) -> None:
        """Gather what waits behind the message, once the channel has been quiet for a moment."""
        if self._group.message.is_followed:
            await self.gather_until_quiet()

    async def gather_until_quiet(self) -> None:
        """Gather what has come and still comes, until the channel is quiet for a moment."""
        until = self._clock.monotonic() + _MAX_WAIT_SECONDS
        while not self._is_ended:
            await self._look()
            quiet = self._quiet_seconds
            wait = min(self._received_at + quiet - self._clock.now(), quiet)
            wait = min(wait, until - self._clock.monotonic())
            if wait <= 0 or self._free == 0:
                break
            await self._clock.sleep(wait)
        await self._take()

    @contextlib.asynccontextmanager
    async def interrupting(self, stop: StopFlag) -> AsyncIterator[None]:
        """End the answer in the block when a message arrives that it is to cover.

        With `collect` that is only while nobody has read anything of it: in the first moment.
        """
        began = self._clock.monotonic()
        checks: list[asyncio.Task[None]] = []

        def on_arrival() -> None:
            self._has_arrived = self._may_interrupt(began)
            if self._has_arrived and not (checks and not checks[-1].done()):
                name = f"look for messages: {self._claim.conversation}"
                checks[:] = [asyncio.create_task(self._interrupt(stop), name=name)]

        if self._is_ended or self._free == 0:
            yield
            return
        unsubscribe = self._arrivals.subscribe(self._claim.conversation, on_arrival)
        try:
            yield
        finally:
            unsubscribe()
            if checks:
                await cancel_and_wait(checks)

    def _may_interrupt(self, began: float) -> bool:
        if self._mode == "interrupt":
            return True
        is_first_moment = self._clock.monotonic() - began < self._rules.quiet_seconds
        return is_first_moment and not self._was_interrupted

    async def _interrupt(self, stop: StopFlag) -> None:
        try:
            while self._has_arrived:
                self._has_arrived = False
                await self._look()
        except StoreError as error:  # it is found when the answer is finished
            _log.warning("not_interrupted", reason=str(error))
            return
        if any(isinstance(one.decision, Answer) for one in self._seen):
            self._was_interrupted = True
            stop.supersede()

    @property
    def at_most(self) -> int:
        """How many messages the answer may cover."""
        return self._rules.at_most

    @property
    def _free(self) -> int:
        """How many more messages the answer may cover."""
        covered = 1 + len(self._group.message.gathered) + sum(len(one.parts) for one in self._seen)
        return max(0, self._rules.at_most - covered)

    @property
    def _newest(self) -> InboxMessage:
        """The newest message that was gathered or seen."""
        seen = (part for one in self._seen for part in one.parts)
        return max((self._group.message.newest, *seen), key=lambda one: one.id)

    async def _look(self) -> None:
        """Read what has come since; a command, or what needs its own answer, ends the group."""
        if self._is_ended or self._free == 0:
            return
        after, between = self._newest, self._group.between
        following = await self._conversations.following(self._claim, after, self._free)
        self._group.between = []
        for message in [*between, *following]:
            said = message.incoming
            if not isinstance(said, Said) or said.interaction is not None:
                self._is_ended = True
                return
            seen = self._with_part(message) or _SeenMessage((message,), said, Ignore())
            decision = await self._decide_next(seen.said)
            if isinstance(decision, Command | Unreadable):
                self._is_ended = True
                return
            self._seen.append(replace(seen, decision=decision))
            self._received_at = message.received_at
            wait = self._parts.seconds_to_wait(said)
            self._quiet_seconds = max(self._rules.quiet_seconds, wait)

    def _with_part(self, message: InboxMessage) -> _SeenMessage | None:
        """Take a message that was seen and is continued by this one, and add it."""
        for index, one in enumerate(self._seen):
            newest = one.parts[-1]
            if self._parts.continues(one.said, newest, message):
                del self._seen[index]
                said = self._parts.join(one.said, newest, message)
                return _SeenMessage((*one.parts, message), said, one.decision)
        return None

    async def _take(self) -> None:
        """Gather what was seen, up to the last message that is to be answered."""
        answered = [
            number for number, one in enumerate(self._seen) if isinstance(one.decision, Answer)
        ]
        if not answered:
            return
        taken = self._seen[: answered[-1] + 1]
        del self._seen[: len(taken)]
        message = self._group.message
        parts = [part for one in taken for part in one.parts]
        gathered = sorted((*message.gathered, *parts), key=lambda one: one.id)
        self._group.message = replace(message, gathered=tuple(gathered))
        # Recorded before anything is done with them: if the process dies, each is tried alone.
        await self._conversations.record_attempt(
            self._claim, self._group.message, Attempt.BESIDE_OTHERS
        )
        speakers = list(self.asked.speakers)
        turns = [
            user_turn(self.asked.incoming),
            *(turn for one in taken[:-1] for turn in _kept(one)),
        ]
        self.decided += [(one.said, one.decision) for one in taken]
        self.askers.update(one.said.author.id for one in taken)
        for one in taken:
            if isinstance(one.decision, Answer):
                speakers += [each for each in one.decision.speakers if each not in speakers]
        before = [self.asked.incoming, *(one.said for one in taken[:-1])]
        files = [file for said in before for file in (*said.earlier_files, *said.attachments)]
        askers = [one.said.author.id for one in taken if isinstance(one.decision, Answer)]
        newest = replace(
            taken[-1].said,
            earlier_files=tuple(files),
            asked_with=(*reversed(askers), *self.asked.incoming.charged_people),
        )
        earlier = (*self.asked.earlier, *turns)
        self.asked = replace(self.asked, incoming=newest, speakers=tuple(speakers), earlier=earlier)
        if self._free == 0 and not self._is_ended:
            await self._count_left_over()

    async def _count_left_over(self) -> None:
        more = await self._conversations.following(self._claim, self._newest, _MAX_COUNTED)
        waiting = (one.incoming for one in more)
        self.left_over = sum(isinstance(one, Said) and one.wake is not None for one in waiting)


async def _ignore(_said: Said) -> Decision:
    return Ignore()


def _kept(seen: _SeenMessage) -> tuple[Turn, ...]:
    match seen.decision:
        case Answer():
            return (user_turn(seen.said),)
        case Observe():
            return (observed_turn(seen.said),)
        case _:
            return ()


def user_turn(said: Said) -> Turn:
    """Return a person's message as the history keeps it."""
    return Turn(
        *("user", described_text(said), said.author, said.at),
        message_id=said.message_id,
        files=files_to_keep(said),
    )


def observed_turn(said: Said) -> Turn:
    """Return a message that nobody answers; in a private chat it was said to nobody else."""
    is_observed = said.wake is not WakeReason.DM
    files = () if is_observed else files_to_keep(said)
    return replace(user_turn(said), observed=is_observed, files=files)
