"""The line in front of a model: nobody waits for somebody else's ten questions."""

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack

import pytest
from typing_extensions import override

from bot.backends.llama_cpp.fair_queue import FairQueue, Ticket
from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.runtime.clock import SystemClock


class Watch(SystemClock):
    """Goes on when it is told to."""

    seconds = 0.0

    @override
    def monotonic(self) -> float:
        return self.seconds


class Line:
    """A queue for one seat at a time, whose questions are answered one by one."""

    def __init__(self, seats: int = 1, most_waiting: int = 100) -> None:
        self.watch = Watch()
        self.queue = FairQueue(seats, most_waiting, self.watch)
        self._standing: list[tuple[str, Ticket, ExitStack]] = []

    def stand(self, name: str, chat: str, person: str | None) -> Ticket:
        stack = ExitStack()
        ticket = stack.enter_context(self.queue.ticket(chat, person))
        self._standing.append((name, ticket, stack))
        return ticket

    def leave(self, name: str) -> None:
        for each in [each for each in self._standing if each[0] == name]:
            self._standing.remove(each)
            each[2].close()

    def served(self, seconds: float = 1.0) -> str:
        """Answer the one at the model; gives its name."""
        name = next(name for name, ticket, _ in self._standing if ticket.called.is_set())
        self.watch.seconds += seconds
        self.leave(name)
        return name

    def serve_all(self) -> list[str]:
        return [self.served() for _ in range(len(self._standing))]


def test_who_comes_first_is_served_first() -> None:
    line = Line()
    for name in "abc":
        line.stand(name, chat=name, person=name)

    assert line.serve_all() == ["a", "b", "c"]


def test_person_with_many_questions_takes_turns_with_others() -> None:
    line = Line()
    for number in range(4):
        line.stand(f"ann {number}", chat=f"chat {number}", person="ann")
    line.stand("bob", chat="bob's", person="bob")
    line.stand("eve", chat="eve's", person="eve")

    assert line.serve_all() == ["ann 0", "bob", "eve", "ann 1", "ann 2", "ann 3"]


def test_chat_with_many_people_takes_turns_with_others() -> None:
    line = Line()
    for number in range(4):
        line.stand(f"crowd {number}", chat="crowd", person=f"somebody {number}")
    line.stand("bob", chat="bob's", person="bob")

    assert line.serve_all()[:2] == ["crowd 0", "bob"]


def test_flood_does_not_starve_who_came_before_nor_who_comes_later() -> None:
    line = Line()
    line.stand("flood 0", "flood", "ann")
    waits: list[int] = []
    for number in range(1, 50):
        line.stand(f"flood {number}", "flood", "ann")
        if number % 5 == 0:
            line.stand("bob", "bob's", "bob")
            order = [line.served()]
            while order[-1] != "bob":
                order.append(line.served())
            waits.append(len(order))

    assert max(waits) <= 3


async def test_of_four_at_once_nobody_waits_more_than_twice_the_average() -> None:
    queue = FairQueue(2, 50, SystemClock())
    waits: dict[str, list[float]] = {name: [] for name in "abcd"}

    async def ask(name: str, answers: int) -> None:
        for _ in range(answers):
            began = asyncio.get_running_loop().time()
            with queue.ticket(name, name) as ticket:
                async for _ in queue.until_called(ticket):
                    pass
                waits[name].append(asyncio.get_running_loop().time() - began)
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        for name in waits:
            tasks.create_task(ask(name, 20))

    average = statistics.mean(wait for each in waits.values() for wait in each)
    assert max(statistics.mean(each) for each in waits.values()) <= 2 * average


async def told(said: AsyncIterator[QueuePosition], times: int) -> Sequence[QueuePosition]:
    heard: list[QueuePosition] = []
    async for each in said:
        heard.append(each)
        if len(heard) == times:
            break
    return heard


async def test_who_waits_long_is_told_the_position_and_an_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bot.backends.llama_cpp.fair_queue._TOLD_AFTER_SECONDS", 0.01)
    line = Line()
    line.stand("first", "first", "first")
    line.served(seconds=8)
    line.stand("a", "a", "a")
    line.stand("b", "b", "b")
    mine = line.stand("c", "c", "c")

    assert await told(line.queue.until_called(mine), 1) == [QueuePosition(2, 16.0)]


async def test_nothing_is_told_to_who_is_served_at_once() -> None:
    line = Line()
    ticket = line.stand("a", "a", "a")

    assert [each async for each in line.queue.until_called(ticket)] == []


async def test_nothing_is_known_of_the_time_before_the_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bot.backends.llama_cpp.fair_queue._TOLD_AFTER_SECONDS", 0.01)
    line = Line()
    line.stand("a", "a", "a")
    mine = line.stand("b", "b", "b")

    assert await told(line.queue.until_called(mine), 1) == [QueuePosition(1, None)]


def test_full_line_says_how_long_it_is_and_when_to_come_again() -> None:
    line = Line(most_waiting=2)
    line.stand("before", "before", None)
    line.served(seconds=90)
    for name in "abc":
        line.stand(name, name, name)

    with pytest.raises(BackendUnavailable) as refused:
        line.stand("d", "d", "d")

    assert refused.value.notice == (
        "2 questions are waiting for the model already. Please try again in 3 min."
    )


def test_who_leaves_the_line_or_the_model_makes_room() -> None:
    line = Line(most_waiting=2)
    for name in "abc":
        line.stand(name, name, name)
    line.leave("b")
    line.stand("d", "d", "d")

    assert line.serve_all() == ["a", "c", "d"]


def test_no_seat_is_lost_however_often_people_come_and_go() -> None:
    line = Line(seats=2)
    for turn in range(100):
        for name in "abcde":
            line.stand(name, name, name if turn % 2 else None)
        line.leave("b")
        line.leave("e")
        assert len(line.serve_all()) == 3

    assert line.stand("x", "x", "x").called.is_set()
    assert line.stand("y", "y", "y").called.is_set()
    assert not line.stand("z", "z", "z").called.is_set()
