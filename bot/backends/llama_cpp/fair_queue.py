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
_NOTICE_INTERVAL_SECONDS = 5.0
_MAX_REMEMBERED_REQUESTERS = 1000  # chats and people
_SMOOTHING_FACTOR = 0.3  # the weight of the newest answer in the average duration
_DEFAULT_ANSWER_SECONDS = 20.0  # assumed before the first answer is measured


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that waits for a slot or holds one."""

    chat_id: str
    requesters: tuple[str, ...]
    arrival_number: int
    admission: asyncio.Event = field(default_factory=asyncio.Event)
    admitted_at: float = 0.0


class FairQueue:
    """Runs up to `slot_count` requests at once, while at most `max_waiting_count` others wait."""

    def __init__(self, slot_count: int, max_waiting_count: int, clock: Clock) -> None:
        self._slot_count = slot_count
        self._max_waiting_count = max_waiting_count
        self._clock = clock
        self._waiting_tickets: list[Ticket] = []
        self._slots_by_chat: Counter[str] = Counter()
        self._chat_shares = ChatShares(clock, slot_count)
        self._ticket_count = self._admitted_count = 0
        # By requester: the value of `_admitted_count` when it was last admitted.
        self._admission_numbers = BoundedDict[str, int](_MAX_REMEMBERED_REQUESTERS)
        self._seconds_per_answer: float | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiting_tickets)

    @contextmanager
    def hold_ticket(self, chat_id: str, person_id: str | None) -> Iterator[Ticket]:
        """Queue for a slot, then hold it; raise `BackendUnavailable` if the queue is full."""
        self._ticket_count += 1
        requesters = [f"chat {chat_id}", *([f"person {person_id}"] if person_id else [])]
        ticket = Ticket(chat_id, tuple(requesters), self._ticket_count)
        self._waiting_tickets.append(ticket)
        self._admit_waiting_tickets()
        # Checked only now, because a request may have to wait while a slot is free for other chats.
        if not ticket.admission.is_set() and len(self._waiting_tickets) > self._max_waiting_count:
            self._waiting_tickets.remove(ticket)
            raise BackendUnavailable("the model's queue is full", self._build_queue_full_notice())
        try:
            yield ticket
        finally:
            if ticket.admission.is_set():
                self._slots_by_chat -= Counter([chat_id])
                self._record_duration(self._clock.monotonic() - ticket.admitted_at)
            else:
                self._waiting_tickets.remove(ticket)
            self._admit_waiting_tickets()

    async def wait_for_admission(self, ticket: Ticket) -> AsyncIterator[QueuePosition]:
        """Wait for a slot; after three seconds, yield the queue position every five seconds."""
        timeout_seconds = _FIRST_NOTICE_SECONDS
        while not ticket.admission.is_set():
            try:
                async with asyncio.timeout(timeout_seconds):
                    await ticket.admission.wait()
            except TimeoutError:
                if not ticket.admission.is_set():
                    yield self._find_queue_position(ticket)
            timeout_seconds = _NOTICE_INTERVAL_SECONDS

    def _find_queue_position(self, ticket: Ticket) -> QueuePosition:
        ticket_key = self._queue_key(ticket)
        position = 1 + sum(self._queue_key(each) < ticket_key for each in self._waiting_tickets)
        answer_seconds = self._seconds_per_answer
        seconds = None if answer_seconds is None else answer_seconds * position / self._slot_count
        return QueuePosition(position, seconds)

    @property
    def _free_slot_count(self) -> int:
        return self._slot_count - self._slots_by_chat.total()

    def _admit_waiting_tickets(self) -> None:
        while self._free_slot_count and (
            eligible_tickets := list(filter(self._may_admit, self._waiting_tickets))
        ):
            ticket = min(eligible_tickets, key=self._queue_key)
            self._waiting_tickets.remove(ticket)
            self._admitted_count += 1
            self._admission_numbers.update(dict.fromkeys(ticket.requesters, self._admitted_count))
            other_slot_count = self._slots_by_chat.total() - self._slots_by_chat[ticket.chat_id]
            self._chat_shares.record_slot_use(ticket.chat_id, other_slot_count)
            self._slots_by_chat[ticket.chat_id] += 1
            ticket.admitted_at = self._clock.monotonic()
            ticket.admission.set()

    def _may_admit(self, ticket: Ticket) -> bool:
        """Return whether the ticket's chat may hold another slot right now."""
        if self._slot_count < MIN_SHARED_SLOTS:
            return True
        if not self._chat_shares.may_take_slot(ticket.chat_id, self._free_slot_count):
            return False
        return self._slots_by_chat[ticket.chat_id] < self._chat_shares.slot_quota(ticket.chat_id)

    def _queue_key(self, ticket: Ticket) -> tuple[int, int]:
        admission_number = max(self._admission_numbers.get(one, 0) for one in ticket.requesters)
        return admission_number, ticket.arrival_number

    def _record_duration(self, seconds: float) -> None:
        answer_seconds = seconds if self._seconds_per_answer is None else self._seconds_per_answer
        self._seconds_per_answer = answer_seconds + _SMOOTHING_FACTOR * (seconds - answer_seconds)

    def _build_queue_full_notice(self) -> Text:
        answer_seconds = self._seconds_per_answer or _DEFAULT_ANSWER_SECONDS
        wait_seconds = answer_seconds * len(self._waiting_tickets) / self._slot_count
        return translatable(
            "I'm busy: your message would be number {position} in the queue for the model. Please"
            " try again in {minutes} min.",
            position=len(self._waiting_tickets) + 1,
            minutes=max(1, round(wait_seconds / 60)),
        )
