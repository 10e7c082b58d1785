"""Queue requests for a local model fairly among people and chats, with start-time fair queueing.

Each turn goes to the person and the chat that were served the longest ago: somebody with ten
waiting requests does not delay somebody with one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.ports import Clock

_FIRST_NOTICE_SECONDS = 3.0
_NEXT_NOTICE_SECONDS = 5.0
_SMOOTHING = 0.3  # the weight of the newest answer in the average duration
_DEFAULT_ANSWER_SECONDS = 20.0  # before there was one


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that waits, and then runs."""

    flows: tuple[str, ...]
    """Its chat, and its person if known."""
    arrival: float
    """The virtual time at which it came."""
    number: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    admitted_at: float = 0.0


class FairQueue:
    """Admit `slots` requests at once, and let at most `max_waiting` more wait."""

    def __init__(self, slots: int, max_waiting: int, clock: Clock) -> None:
        self._slots = slots
        self._max_waiting = max_waiting
        self._clock = clock
        self._waiting: list[Ticket] = []
        self._running = 0
        self._tickets = 0
        self._virtual_time = 0.0  # the highest start tag that was admitted
        self._next_start: dict[str, float] = {}  # of the flows that were served lately
        self._answer_seconds: float | None = None

    @property
    def waiting_count(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @contextmanager
    def ticket(self, chat: str, person: str | None) -> Iterator[Ticket]:
        """Wait in the queue, and then hold a slot, until the block ends.

        Raises:
            BackendUnavailable: the queue is full; the notice says how long the wait is.
        """
        if self._running == self._slots and len(self._waiting) >= self._max_waiting:
            raise BackendUnavailable("the queue of the model is full", self._full_notice())
        self._tickets += 1
        flows = (f"chat {chat}", f"person {person}") if person else (f"chat {chat}",)
        ticket = Ticket(flows, self._virtual_time, self._tickets)
        self._waiting.append(ticket)
        self._admit()
        try:
            yield ticket
        finally:
            if ticket.admitted.is_set():
                self._running -= 1
                self._record_duration(self._clock.monotonic() - ticket.admitted_at)
            else:
                self._waiting.remove(ticket)
            self._admit()

    async def wait_admitted(self, ticket: Ticket) -> AsyncIterator[QueuePosition]:
        """Wait for a slot; from the third second on, yield the position."""
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
        """Return the position if nobody else comes."""
        own = self._start_tag(ticket)
        position = 1 + sum(self._start_tag(each) < own for each in self._waiting)
        seconds = self._answer_seconds
        return QueuePosition(
            position, None if seconds is None else seconds * position / self._slots
        )

    def _admit(self) -> None:
        while self._waiting and self._running < self._slots:
            ticket = min(self._waiting, key=self._start_tag)
            start, _ = self._start_tag(ticket)
            self._waiting.remove(ticket)
            self._virtual_time = max(self._virtual_time, start)
            self._next_start |= dict.fromkeys(ticket.flows, start + 1)
            self._drop_idle_flows()
            self._running += 1
            ticket.admitted_at = self._clock.monotonic()
            ticket.admitted.set()

    def _start_tag(self, ticket: Ticket) -> tuple[float, int]:
        next_starts = (self._next_start.get(flow, 0.0) for flow in ticket.flows)
        return max(ticket.arrival, *next_starts), ticket.number

    def _drop_idle_flows(self) -> None:
        waiting = {flow for ticket in self._waiting for flow in ticket.flows}
        for flow, start in list(self._next_start.items()):
            if start <= self._virtual_time and flow not in waiting:
                del self._next_start[flow]

    def _record_duration(self, seconds: float) -> None:
        average = self._answer_seconds
        self._answer_seconds = (
            seconds if average is None else average + _SMOOTHING * (seconds - average)
        )

    def _full_notice(self) -> str:
        average = self._answer_seconds or _DEFAULT_ANSWER_SECONDS
        seconds = average * len(self._waiting) / self._slots
        waiting = f"{len(self._waiting)} questions are" if len(self._waiting) > 1 else "Others are"
        return (
            f"{waiting} waiting for the model already. "
            f"Please try again in {max(1, round(seconds / 60))} min."
        )
