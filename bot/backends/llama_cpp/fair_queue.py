"""Queue requests for a local model; the least recently served chat or person goes first.

If there are four or more slots, a busy chat leaves some of them to other chats.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bot.backends.chat_shares import MIN_SHARED_SLOTS, ChatShares
from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.ports import Clock
from bot.runtime.in_process import BoundedDict
from bot.texts.text import Text, translatable

_FIRST_NOTICE_SECONDS = 3.0
_NEXT_NOTICE_SECONDS = 5.0
_MAX_REMEMBERED_REQUESTERS = 1000  # chats and people
_SMOOTHING_FACTOR = 0.3  # the weight of the newest answer in the average duration
_DEFAULT_ANSWER_SECONDS = 20.0  # assumed until an answer was measured


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that waits for a slot or holds one."""

    chat: str
    requesters: tuple[str, ...]
    number: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    admitted_at: float = 0.0


class FairQueue:
    """Runs up to `slots` requests at once, while at most `max_waiting` others wait."""

    def __init__(self, slots: int, max_waiting: int, clock: Clock) -> None:
        self._slots = slots
        self._max_waiting = max_waiting
        self._clock = clock
        self._waiting: list[Ticket] = []
        self._running: Counter[str] = Counter()  # by chat
        self._shares = ChatShares(clock, slots)
        self._tickets = self._served_count = 0
        # by chat: the value of `_served_count` when it was last served
        self._served_at = BoundedDict[str, int](_MAX_REMEMBERED_REQUESTERS)
        self._answer_seconds: float | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @contextmanager
    def hold_ticket(self, chat: str, person: str | None) -> Iterator[Ticket]:
        """Hold a place in the queue, then a slot; raise `BackendUnavailable` if it is full."""
        self._tickets += 1
        requesters = (f"chat {chat}", f"person {person}") if person else (f"chat {chat}",)
        ticket = Ticket(chat, requesters, self._tickets)
        self._waiting.append(ticket)
        self._admit_waiting()
        # Checked only now, because a request may have to wait while a slot is free for other chats.
        if not ticket.admitted.is_set() and len(self._waiting) > self._max_waiting:
            self._waiting.remove(ticket)
            raise BackendUnavailable("the model's queue is full", self._full_notice())
        try:
            yield ticket
        finally:
            if ticket.admitted.is_set():
                self._running -= Counter([chat])
                self._record_duration(self._clock.monotonic() - ticket.admitted_at)
            else:
                self._waiting.remove(ticket)
            self._admit_waiting()

    async def wait_for_admission(self, ticket: Ticket) -> AsyncIterator[QueuePosition]:
        """Wait for a slot; after three seconds, yield the queue position from time to time."""
        timeout = _FIRST_NOTICE_SECONDS
        while not ticket.admitted.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await ticket.admitted.wait()
            except TimeoutError:
                if not ticket.admitted.is_set():
                    yield self._position(ticket)
            timeout = _NEXT_NOTICE_SECONDS

    def _position(self, ticket: Ticket) -> QueuePosition:
        own = self._priority(ticket)
        position = 1 + sum(self._priority(each) < own for each in self._waiting)
        average = self._answer_seconds
        seconds = None if average is None else average * position / self._slots
        return QueuePosition(position, seconds)

    @property
    def _free_slots(self) -> int:
        return self._slots - self._running.total()

    def _admit_waiting(self) -> None:
        while self._free_slots and (admissible := list(filter(self._may_run, self._waiting))):
            ticket = min(admissible, key=self._priority)
            self._waiting.remove(ticket)
            self._served_count += 1
            self._served_at.update(dict.fromkeys(ticket.requesters, self._served_count))
            held_by_others = self._running.total() - self._running[ticket.chat]
            self._shares.record_slot(ticket.chat, held_by_others)
            self._running[ticket.chat] += 1
            ticket.admitted_at = self._clock.monotonic()
            ticket.admitted.set()

    def _may_run(self, ticket: Ticket) -> bool:
        """Return whether the ticket's chat may hold another slot at present."""
        if self._slots < MIN_SHARED_SLOTS:
            return True
        if not self._shares.may_take_slot(ticket.chat, self._free_slots):
            return False
        return self._running[ticket.chat] < self._shares.slot_quota(ticket.chat)

    def _priority(self, ticket: Ticket) -> tuple[int, int]:
        served_at = max(self._served_at.get(requester, 0) for requester in ticket.requesters)
        return served_at, ticket.number

    def _record_duration(self, seconds: float) -> None:
        average = seconds if self._answer_seconds is None else self._answer_seconds
        self._answer_seconds = average + _SMOOTHING_FACTOR * (seconds - average)

    def _full_notice(self) -> Text:
        average = self._answer_seconds or _DEFAULT_ANSWER_SECONDS
        seconds = average * len(self._waiting) / self._slots
        return translatable(
            "I am busy: your message would be number {position} in the queue for the model. Please"
            " try again in {minutes} min.",
            position=len(self._waiting) + 1,
            minutes=max(1, round(seconds / 60)),
        )
