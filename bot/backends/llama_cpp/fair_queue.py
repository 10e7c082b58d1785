"""The line in front of a model: people take turns, whoever asks most, and so do chats.

Each turn goes to the person and the chat that were served the longest ago (start-time fair
queueing): who has ten questions waiting does not stand in front of somebody with one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.ports import Clock

_TOLD_AFTER_SECONDS = 3.0
_TOLD_AGAIN_SECONDS = 5.0
_NEWEST_SHARE = 0.3  # of the average time that an answer takes
_GUESSED_SECONDS = 20.0  # for an answer, before there was one


@dataclass(eq=False, slots=True)
class Ticket:
    """A question in the line, then at the model."""

    names: tuple[str, ...]  # its chat, and its person if known
    arrived: float  # when, by the line's count of turns
    number: int
    called: asyncio.Event = field(default_factory=asyncio.Event)
    called_at: float = 0.0


class FairQueue:
    """Lets `seats` questions at once to the model, and lets `most_waiting` more stand in line."""

    def __init__(self, seats: int, most_waiting: int, clock: Clock) -> None:
        self._seats = seats
        self._most_waiting = most_waiting
        self._clock = clock
        self._line: list[Ticket] = []
        self._seated = 0
        self._tickets = 0
        self._turn = 0.0  # the highest start that was served
        self._next_start: dict[str, float] = {}  # of those who were served lately
        self._answer_seconds: float | None = None

    @contextmanager
    def ticket(self, chat: str, person: str | None) -> Iterator[Ticket]:
        """Stand in line, and then hold a seat, until the block ends.

        Raises:
            BackendUnavailable: the line is full; the notice says how long it is.
        """
        if self._seated == self._seats and len(self._line) >= self._most_waiting:
            raise BackendUnavailable("the line in front of the model is full", self._full())
        self._tickets += 1
        names = (f"chat {chat}", f"person {person}") if person else (f"chat {chat}",)
        ticket = Ticket(names, self._turn, self._tickets)
        self._line.append(ticket)
        self._call()
        try:
            yield ticket
        finally:
            if ticket.called.is_set():
                self._seated -= 1
                self._note(self._clock.monotonic() - ticket.called_at)
            else:
                self._line.remove(ticket)
            self._call()

    async def until_called(self, ticket: Ticket) -> AsyncIterator[QueuePosition]:
        """Wait for the turn; from the third second on, say how it stands."""
        patience = _TOLD_AFTER_SECONDS
        while not ticket.called.is_set():
            try:
                async with asyncio.timeout(patience):
                    await ticket.called.wait()
            except TimeoutError:
                if not ticket.called.is_set():
                    yield self._standing(ticket)
            patience = _TOLD_AGAIN_SECONDS

    def _standing(self, ticket: Ticket) -> QueuePosition:
        """Where somebody stands if nobody else comes."""
        own = self._start(ticket)
        position = 1 + sum(self._start(each) < own for each in self._line)
        seconds = self._answer_seconds
        return QueuePosition(
            position, None if seconds is None else seconds * position / self._seats
        )

    def _call(self) -> None:
        while self._line and self._seated < self._seats:
            ticket = min(self._line, key=self._start)
            start, _ = self._start(ticket)
            self._line.remove(ticket)
            self._turn = max(self._turn, start)
            self._next_start |= dict.fromkeys(ticket.names, start + 1)
            self._forget_who_is_gone()
            self._seated += 1
            ticket.called_at = self._clock.monotonic()
            ticket.called.set()

    def _start(self, ticket: Ticket) -> tuple[float, int]:
        lately = (self._next_start.get(name, 0.0) for name in ticket.names)
        return max(ticket.arrived, *lately), ticket.number

    def _forget_who_is_gone(self) -> None:
        here = {name for ticket in self._line for name in ticket.names}
        for name, start in list(self._next_start.items()):
            if start <= self._turn and name not in here:
                del self._next_start[name]

    def _note(self, seconds: float) -> None:
        known = self._answer_seconds
        newest = seconds if known is None else known + _NEWEST_SHARE * (seconds - known)
        self._answer_seconds = newest

    def _full(self) -> str:
        seconds = (self._answer_seconds or _GUESSED_SECONDS) * len(self._line) / self._seats
        waiting = f"{len(self._line)} questions are" if len(self._line) > 1 else "Others are"
        return (
            f"{waiting} waiting for the model already. "
            f"Please try again in {max(1, round(seconds / 60))} min."
        )
