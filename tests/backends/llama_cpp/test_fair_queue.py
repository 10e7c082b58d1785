"""A model's fair queue: one person's many requests do not delay anyone else."""

import heapq
import random
import statistics
from contextlib import ExitStack

import pytest
from typing_extensions import override

from bot.backends.llama_cpp.fair_queue import FairQueue, Ticket
from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.runtime.clock import SystemClock
from bot.texts.text import translate


class ManualClock(SystemClock):
    """Advances only when a test sets it."""

    seconds = 0.0

    @override
    def monotonic(self) -> float:
        return self.seconds


class QueueHarness:
    """A queue whose requests the test finishes one at a time."""

    def __init__(self, slots: int = 1, max_waiting: int = 100) -> None:
        self.clock = ManualClock()
        self.queue = FairQueue(slots, max_waiting, self.clock)
        self._entries: list[tuple[str, Ticket, ExitStack]] = []

    def enqueue(self, name: str, chat: str, person: str | None) -> Ticket:
        stack = ExitStack()
        ticket = stack.enter_context(self.queue.hold_ticket(chat, person))
        self._entries.append((name, ticket, stack))
        return ticket

    def leave(self, name: str) -> None:
        for each in [each for each in self._entries if each[0] == name]:
            self._entries.remove(each)
            each[2].close()

    def finish_running(self, seconds: float = 1.0) -> str:
        """Finish the running request and return its name."""
        name = next(name for name, ticket, _ in self._entries if ticket.admission.is_set())
        self.clock.seconds += seconds
        self.leave(name)
        return name

    def finish_all(self) -> list[str]:
        return [self.finish_running() for _ in range(len(self._entries))]


def test_person_with_many_requests_takes_turns_with_other_people() -> None:
    harness = QueueHarness()
    for number in range(4):
        harness.enqueue(f"ann {number}", chat=f"chat {number}", person="ann")
    harness.enqueue("bob", chat="bob's", person="bob")
    harness.enqueue("eve", chat="eve's", person="eve")

    assert harness.finish_all() == ["ann 0", "bob", "eve", "ann 1", "ann 2", "ann 3"]


def test_chat_with_many_people_takes_turns_with_other_chats() -> None:
    harness = QueueHarness()
    for number in range(4):
        harness.enqueue(f"group {number}", chat="group", person=f"somebody {number}")
    harness.enqueue("bob", chat="bob's", person="bob")

    assert harness.finish_all()[:2] == ["group 0", "bob"]


def test_flood_does_not_starve_earlier_or_later_requests() -> None:
    harness = QueueHarness()
    harness.enqueue("flood 0", "flood", "ann")
    waits: list[int] = []
    for number in range(1, 50):
        harness.enqueue(f"flood {number}", "flood", "ann")
        if number % 5 == 0:
            harness.enqueue("bob", "bob's", "bob")
            order = [harness.finish_running()]
            while order[-1] != "bob":
                order.append(harness.finish_running())
            waits.append(len(order))

    assert max(waits) <= 3


@pytest.mark.parametrize(("last_answer", "estimate"), [(8, 16.0), (None, None)])
async def test_long_wait_yields_position_and_estimate(
    last_answer: float | None, estimate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.backends.llama_cpp.fair_queue._FIRST_NOTICE_SECONDS", 0.01)
    harness = QueueHarness()
    if last_answer is not None:
        harness.enqueue("first", "first", "first")
        harness.finish_running(seconds=last_answer)
    harness.enqueue("a", "a", "a")
    harness.enqueue("b", "b", "b")
    mine = harness.enqueue("c", "c", "c")

    assert await anext(harness.queue.wait_for_admission(mine)) == QueuePosition(2, estimate)


async def test_immediate_admission_yields_no_position() -> None:
    harness = QueueHarness()
    ticket = harness.enqueue("a", "a", "a")

    assert [each async for each in harness.queue.wait_for_admission(ticket)] == []


def test_request_to_a_full_queue_is_refused_with_the_length_and_wait() -> None:
    harness = QueueHarness(max_waiting=2)
    harness.enqueue("before", "before", None)
    harness.finish_running(seconds=90)
    for name in "abc":
        harness.enqueue(name, name, name)

    with pytest.raises(BackendUnavailable) as refused:
        harness.enqueue("d", "d", "d")

    assert refused.value.notice == (
        "I'm busy: your message would be number 3 in the queue for the model."
        " Please try again in 3 min."
    )
    assert "3" in translate(refused.value.notice, "zh")
    assert translate(refused.value.notice, "zh") != refused.value.notice


def test_one_chat_cannot_take_all_slots() -> None:
    harness = QueueHarness(slots=4)
    noisy = [harness.enqueue(f"noisy {n}", "noisy", f"somebody {n}") for n in range(6)]
    assert [one.admission.is_set() for one in noisy] == [True] * 3 + [False] * 3
    assert harness.enqueue("quiet", "quiet", "quiet").admission.is_set()
    harness.leave("noisy 0")
    assert noisy[3].admission.is_set()
    harness.leave("noisy 1")
    assert not noisy[4].admission.is_set(), "others held one slot, and one more may come"


def test_full_queue_refuses_a_busy_chat_even_if_a_slot_is_reserved_for_others() -> None:
    harness = QueueHarness(slots=4, max_waiting=2)
    for number in range(5):
        harness.enqueue("noisy", "noisy", f"somebody {number}")
    with pytest.raises(BackendUnavailable):
        harness.enqueue("noisy", "noisy", "one more")
    assert harness.queue.waiting_count == 2
    assert harness.enqueue("quiet", "quiet", "quiet").admission.is_set()


def _answer_seconds(*, with_noise: bool) -> list[float]:
    """Measure the waiting times of eight quiet chats that share four slots."""
    harness = QueueHarness(slots=4)
    clock, taken, asked_at = harness.clock, list[float](), dict[str, float]()
    chances = {f"quiet {number}": random.Random(number) for number in range(8)}
    if with_noise:
        chances |= {f"noisy {number}": random.Random(number) for number in range(12)}
    waiting: dict[str, Ticket] = {}
    events = [(rng.uniform(0, 20), "ask", name) for name, rng in chances.items()]
    heapq.heapify(events)
    while len(taken) < 2000:
        clock.seconds, event, name = heapq.heappop(events)
        is_quiet = name.startswith("quiet")
        if event == "ask":
            asked_at[name] = clock.seconds
            waiting[name] = harness.enqueue(name, name if is_quiet else "noisy", name)
        else:
            harness.leave(name)
            if is_quiet:
                taken.append(clock.seconds - asked_at[name])
            pause = chances[name].expovariate(1 / 20) if is_quiet else 0
            heapq.heappush(events, (clock.seconds + pause, "ask", name))
        for one in [one for one, ticket in waiting.items() if ticket.admission.is_set()]:
            del waiting[one]
            heapq.heappush(events, (clock.seconds + chances[one].uniform(5, 15), "end", one))
    return taken


def test_noisy_chat_delays_eight_quiet_chats_by_at_most_a_fifth() -> None:
    alone, beside_noise = _answer_seconds(with_noise=False), _answer_seconds(with_noise=True)
    for place in (50, 95, 99):
        most = 1.2 * statistics.quantiles(alone, n=100)[place - 1]
        assert statistics.quantiles(beside_noise, n=100)[place - 1] <= most


def test_cancelled_request_frees_its_position() -> None:
    harness = QueueHarness(max_waiting=2)
    for name in "abc":
        harness.enqueue(name, name, name)
    harness.leave("b")
    harness.enqueue("d", "d", "d")

    assert harness.finish_all() == ["a", "c", "d"]


def test_no_slot_is_lost_over_many_requests() -> None:
    harness = QueueHarness(slots=2)
    for turn in range(100):
        for name in "abcde":
            harness.enqueue(name, name, name if turn % 2 else None)
        harness.leave("b")
        harness.leave("e")
        assert len(harness.finish_all()) == 3

    assert harness.enqueue("x", "x", "x").admission.is_set()
    assert harness.enqueue("y", "y", "y").admission.is_set()
    assert not harness.enqueue("z", "z", "z").admission.is_set()
