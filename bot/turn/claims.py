"""Renew the leases of claimed conversations, and isolate messages that crash the process."""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field

from bot.chat.session import MAX_CRASHES, MAX_OWN_CRASHES, AttemptState, Claim, InboxMessage
from bot.errors import Fenced, StoreError
from bot.ports import Clock
from bot.storage.conversations import Conversations

LEASE_SECONDS = 15.0


@dataclass(eq=False)
class LeaseKeeper:
    """Renews all leases of this process together, three times per lease period."""

    conversations: Conversations
    clock: Clock

    def __post_init__(self) -> None:
        self._tasks: dict[Claim, asyncio.Task[object]] = {}
        self._confirmed_at: dict[Claim, float] = {}  # when each claim was known to be held
        self._lost_claims: set[Claim] = set()

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        while True:
            await self.clock.sleep(LEASE_SECONDS / 3)
            with contextlib.suppress(StoreError):  # if the failure lasts, `finish` raises it
                await self._renew_leases()

    def record_held_claims(self, claims: Collection[Claim], queried_at: float) -> None:
        """Record that these claims were still held at `queried_at`, in monotonic time."""
        self._confirmed_at.update(dict.fromkeys(claims, queried_at))

    def is_safely_held(self, claim: Claim) -> bool:
        """Return whether the claim will still be held when a request that is sent now ends."""
        confirmed_at = self._confirmed_at.get(claim, -math.inf)
        return self.clock.monotonic() < confirmed_at + LEASE_SECONDS / 2

    @contextlib.contextmanager
    def hold(self, claim: Claim) -> Iterator[None]:
        """Renew a claim during the block; if the claim is lost, cancel the block with `Fenced`."""
        worker_task = asyncio.current_task()
        assert worker_task is not None  # noqa: S101 -- claims are worked on by tasks
        self._tasks[claim] = worker_task
        try:
            yield
        except asyncio.CancelledError:
            if claim in self._lost_claims and worker_task.uncancel() == 0:
                raise Fenced(f"the lease of {claim.conversation} was lost") from None
            raise
        finally:
            del self._tasks[claim]
            self._confirmed_at.pop(claim, None)
            self._lost_claims.discard(claim)

    async def _renew_leases(self) -> None:
        held_claims = [claim for claim in self._tasks if claim not in self._lost_claims]
        if not held_claims:
            return
        queried_at = self.clock.monotonic()
        lost_claims = await self.conversations.renew(held_claims, LEASE_SECONDS)
        claims = [one for one in held_claims if one in self._tasks and one not in lost_claims]
        self.record_held_claims(claims, queried_at)
        for claim in lost_claims:
            worker_task = self._tasks.get(claim)
            if worker_task is not None:  # the block has not ended in the meantime
                self._lost_claims.add(claim)
                worker_task.cancel()


RecordAttempt = Callable[[AttemptState], Awaitable[None]]

MIN_SUSPECT_CRASHES = 2
"""A message is a suspect, to be isolated, after this many crashes during its processing."""
_FIRST_WAIT_SECONDS = 4.0  # for a suspect; four times as long after each further crash
_MAX_WAIT_SECONDS = 60.0
_DEFERRAL_SECONDS = 10.0
_MAX_SUSPECT_SHARE = 1 / 3
_MIN_RUNNING_SUSPECTS = 2
"""The number of suspects that may always run at once, because one may take very long."""


def has_crashed_too_often(message: InboxMessage) -> bool:
    """Return whether a message has crashed the process too often to be processed again."""
    return message.own_crash_count >= MAX_OWN_CRASHES or message.crash_count >= MAX_CRASHES


@dataclass(slots=True, eq=False)
class _TrackedAttempt:
    """The current attempt to process a message, or its next one."""

    message: InboxMessage
    record_attempt_state: RecordAttempt
    random_rank: float
    """A random number between 0 and 1, which orders equal attempts."""
    may_start_event: asyncio.Event = field(default_factory=asyncio.Event)
    is_start_due: bool = False
    """Whether it has waited long enough to start while others with as many crashes run."""
    recorded_state: AttemptState | None = None

    @property
    def is_suspect(self) -> bool:
        return self.message.crash_count >= MIN_SUSPECT_CRASHES

    @property
    def sort_key(self) -> tuple[int, int, float]:
        """The sort key of waiting attempts: those with the most crashes come first."""
        return -self.message.own_crash_count, -self.message.crash_count, self.random_rank

    @property
    def seconds_until_due(self) -> float:
        wait_factor = 4.0 ** min(self.message.crash_count - MIN_SUSPECT_CRASHES, 3)
        max_seconds = min(_FIRST_WAIT_SECONDS * wait_factor, _MAX_WAIT_SECONDS)
        return max_seconds if self.message.own_crash_count else max_seconds * self.random_rank


class CrashIsolator:
    """Delays the processing of messages that may crash the process, to find the one that does.

    Most messages start at once. Suspects, which were being processed during several crashes,
    usually start one at a time.
    """

    def __init__(self, clock: Clock, draw_random: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._draw_random = draw_random
        self._running_message_count = 0
        self._suspects: list[_TrackedAttempt] = []
        """Suspects that wait or are in flight."""
        self._running_suspect_count = 0
        self._deferred_attempts: list[_TrackedAttempt] = []
        self._lone_attempt: _TrackedAttempt | None = None
        """The attempt that is recorded as `AttemptState.RUNS_ALONE`, if any."""
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def wait_until_admitted(
        self, message: InboxMessage, record_attempt_state: RecordAttempt
    ) -> AsyncIterator[None]:
        """Wait until a message may be processed, then run the block.

        `record_attempt_state` stores whether other messages are processed at the same time.
        """
        if not message.crash_count and self._lone_attempt is None and not self._lock.locked():
            self._running_message_count += 1  # the normal case: nothing to record
            try:
                yield
            finally:
                self._running_message_count -= 1
            return
        attempt = _TrackedAttempt(message, record_attempt_state, self._draw_random())
        admit_attempt = self._admit_suspect if attempt.is_suspect else self._admit_normally
        async with admit_attempt(attempt):
            yield

    @contextlib.asynccontextmanager
    async def _admit_normally(self, attempt: _TrackedAttempt) -> AsyncIterator[None]:
        self._running_message_count += 1
        try:
            if attempt.message.crash_count:
                await asyncio.sleep(0)  # let messages claimed at the same time start, too
            if attempt.message.crash_count or self._lone_attempt is not None or self._lock.locked():
                await self._record_if_alone(attempt)
            yield
        finally:
            self._running_message_count -= 1
            self._clear_lone_attempt(attempt)

    @contextlib.asynccontextmanager
    async def _admit_suspect(self, attempt: _TrackedAttempt) -> AsyncIterator[None]:
        if attempt.message.own_crash_count:
            await self._delay_suspect(attempt)
        self._suspects.append(attempt)
        wait_seconds = attempt.seconds_until_due
        cancel_timers = [
            self._clock.call_later(wait_seconds, lambda: self._mark_as_due(attempt)),
            self._clock.call_later(wait_seconds + _MAX_WAIT_SECONDS, lambda: self._start(attempt)),
        ]
        try:
            await asyncio.sleep(0)  # let all suspects claimed at the same time join the queue
            self._start_next_suspect()
            await attempt.may_start_event.wait()
            await self._record_if_alone(attempt)
            yield
        finally:
            for cancel_timer in cancel_timers:
                cancel_timer()
            self._suspects.remove(attempt)
            self._end_attempt(attempt)

    async def _delay_suspect(self, attempt: _TrackedAttempt) -> None:
        """Wait some seconds before a suspect starts.

        If the process crashes while this message waits and no suspect runs, the message is no
        longer a suspect, because it did not cause the crash.
        """
        self._deferred_attempts.append(attempt)
        try:
            async with self._lock:
                new_state = (
                    AttemptState.NONE if self._running_suspect_count else AttemptState.DEFERRED
                )
                await _record_attempt(attempt, new_state)
            await self._clock.sleep(_DEFERRAL_SECONDS)
        finally:
            self._deferred_attempts.remove(attempt)

    def _start_next_suspect(self) -> None:
        if self._suspects and not self._running_suspect_count:
            self._start(min(self._suspects, key=lambda one: one.sort_key))

    def _mark_as_due(self, attempt: _TrackedAttempt) -> None:
        attempt.is_start_due = True
        self._start_due_suspects()

    def _start_due_suspects(self) -> None:
        limit = max(_MIN_RUNNING_SUSPECTS, math.ceil(len(self._suspects) * _MAX_SUSPECT_SHARE))
        max_crashes = max((one.message.crash_count for one in self._suspects), default=0)
        for attempt in self._suspects:
            # A crash beside suspects with fewer crashes would make them just as suspicious.
            may_start_now = attempt.is_start_due and attempt.message.crash_count == max_crashes
            if may_start_now and self._running_suspect_count < limit:
                self._start(attempt)

    def _start(self, attempt: _TrackedAttempt) -> None:
        if not attempt.may_start_event.is_set():
            attempt.may_start_event.set()
            self._running_message_count += 1
            self._running_suspect_count += 1

    def _end_attempt(self, attempt: _TrackedAttempt) -> None:
        if attempt.may_start_event.is_set():
            self._running_message_count -= 1
            self._running_suspect_count -= 1
        attempt.may_start_event.set()  # so that a cancelled attempt is not started later
        self._clear_lone_attempt(attempt)
        self._start_due_suspects()
        self._start_next_suspect()

    def _clear_lone_attempt(self, attempt: _TrackedAttempt) -> None:
        if self._lone_attempt is attempt:
            self._lone_attempt = None

    async def _record_if_alone(self, attempt: _TrackedAttempt) -> None:
        """Record whether a message that is about to be processed is the only one."""
        async with self._lock:
            if attempt.is_suspect:  # a crash caused by this suspect must not clear deferred ones
                for deferred_attempt in self._deferred_attempts:
                    await _record_other_attempt(deferred_attempt, AttemptState.NONE)
            lone_attempt = self._lone_attempt
            if lone_attempt is not None and (attempt.is_suspect or not lone_attempt.is_suspect):
                self._lone_attempt = None
                await _record_other_attempt(lone_attempt, AttemptState.WITH_OTHERS)
            if attempt.is_suspect:
                is_only_attempt = self._running_suspect_count == 1
            else:
                is_only_attempt = (
                    self._running_message_count == 1 and attempt.message.crash_count > 0
                )
            if is_only_attempt:
                self._lone_attempt = attempt
                await _record_attempt(attempt, AttemptState.RUNS_ALONE)
            elif attempt.is_suspect:
                await _record_attempt(attempt, AttemptState.WITH_OTHERS)


async def _record_attempt(attempt: _TrackedAttempt, state: AttemptState) -> None:
    if attempt.recorded_state is not state:
        await attempt.record_attempt_state(state)
        attempt.recorded_state = state


async def _record_other_attempt(attempt: _TrackedAttempt, state: AttemptState) -> None:
    """Record another message's attempt; if its claim was lost, the task that processes it ends."""
    with contextlib.suppress(Fenced, StoreError):
        await _record_attempt(attempt, state)
