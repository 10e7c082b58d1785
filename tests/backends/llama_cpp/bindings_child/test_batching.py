"""Several answers in one batch, on a memory that checks every row."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from bot.backends.llama_cpp.bindings_child.batching import Batcher
from bot.backends.llama_cpp.bindings_child.slots import Answer, Memory, Piece, Row, Sampler
from bot.backends.llama_cpp.bindings_child.wording import Wording

END = 0
LETTERS = range(1, 128)


class FakeMemory(Memory):
    """Keeps what was read; `reading` is called within each batch."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {number: [] for number in range(3)}
        self.batches: list[list[Row]] = []
        self.copied: list[tuple[int, int]] = []
        self.reading: Callable[[], object] = lambda: None
        self.sequence_tokens_left = 300

    @property
    @override
    def sequence_tokens(self) -> int:
        return self.sequence_tokens_left

    @property
    @override
    def batch_tokens(self) -> int:
        return 100

    @override
    def read(self, rows: Sequence[Row], interrupted: Callable[[], bool]) -> bool:
        assert 0 < len(rows) <= self.batch_tokens
        self.reading()
        if interrupted():
            return False
        for row in rows:
            assert row.position == len(self.held[row.sequence])
            self.held[row.sequence].append(row.token)
        self.batches.append(list(rows))
        return True

    @override
    def cut(self, sequence: int, keep: int) -> int:
        del self.held[sequence][keep:]
        return keep

    @override
    def copy(self, source: int, target: int) -> None:
        self.copied.append((source, target))
        self.held[target] = list(self.held[source])

    @property
    @override
    def can_move(self) -> bool:
        return True

    @override
    def move(self, sequence: int, begin: int, to: int, length: int) -> None:
        held = self.held[sequence]
        held[to:] = held[begin:]


class Script(Sampler):
    """Says what it is told, then ends."""

    def __init__(self, says: str) -> None:
        self.closed = False
        self._tokens: Iterator[int] = iter(says.encode())

    @override
    def sample(self, row: int) -> int:
        return next(self._tokens, END)

    @override
    def close(self) -> None:
        self.closed = True


@dataclass
class Asked:
    """An answer as it comes."""

    answer: Answer
    sampler: Script
    pieces: "queue.Queue[Piece]" = field(default_factory=queue.Queue)

    def end(self) -> tuple[str, Piece]:
        text = ""
        while True:
            piece = self.pieces.get(timeout=5)
            text += piece.text
            if piece.reason is not None:
                return text, piece


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@pytest.fixture
def batcher(memory: FakeMemory) -> Iterator[Batcher]:
    batcher = Batcher(memory, 3)
    thread = threading.Thread(target=batcher.run)
    thread.start()
    yield batcher
    batcher.close()
    thread.join(5)
    assert not thread.is_alive()


def asked(prompt: str, says: str = "yes", slot: int | None = None, **options: int) -> Asked:
    pieces: queue.Queue[Piece] = queue.Queue()
    sampler = Script(says)
    wording = Wording(lambda token: bytes([token]), ends={END}, stop=())
    answer = Answer([*prompt.encode()], sampler, wording, pieces.put, slot=slot, **options)  # type: ignore[arg-type]
    return Asked(answer, sampler, pieces)


def ask(batcher: Batcher, *questions: Asked) -> list[tuple[str, Piece]]:
    """Ask all at once, so that they share their batches."""

    def send(_: object) -> None:
        for each in questions:
            batcher.ask(each.answer)

    batcher.between_batches(send).result(5)
    return [each.end() for each in questions]


def test_an_answer_says_what_was_chosen_and_why_it_ended(batcher: Batcher) -> None:
    question = asked("hello")

    assert ask(batcher, question) == [("yes", Piece("", "stop", cached=0, written=4))]
    assert question.sampler.closed


def test_next_turn_reads_only_what_is_new(batcher: Batcher, memory: FakeMemory) -> None:
    ask(batcher, asked("hello", slot=1))
    memory.batches.clear()

    ((_, end),) = ask(batcher, asked("helloyes, and you?", slot=1))

    assert end.cached == len("helloyes")
    assert [row.token for row in memory.batches[0]] == [*b", and you?"]


def test_the_same_prompt_again_reads_one_token(batcher: Batcher) -> None:
    ask(batcher, asked("hello", slot=1))

    ((_, end),) = ask(batcher, asked("hello", slot=1))

    assert end.cached == len("hello") - 1


def test_answers_are_written_side_by_side(batcher: Batcher, memory: FakeMemory) -> None:
    answers = ask(batcher, *(asked("hello", "abcdef") for _ in range(3)))

    assert [text for text, _ in answers] == ["abcdef"] * 3
    assert {row.sequence for row in memory.batches[-1]} == {0, 1, 2}
    assert len(memory.batches) == 7


def test_a_long_prompt_does_not_hold_up_those_who_write(
    batcher: Batcher, memory: FakeMemory
) -> None:
    ask(batcher, asked("hi", "a" * 50, slot=0), asked("x" * 250, slot=1))

    both = [rows for rows in memory.batches if {row.sequence for row in rows} == {0, 1}]
    assert max(len(rows) for rows in both[1:]) <= 64


def test_what_another_slot_has_read_is_copied(batcher: Batcher, memory: FakeMemory) -> None:
    rules = "You are one of the troupe. " * 3
    ask(batcher, asked(rules + "Ann", slot=0))

    ((_, end),) = ask(batcher, asked(rules + "Bob", slot=2))

    assert end.cached == len(rules)
    assert memory.copied == [(0, 2)]
    assert bytes(memory.held[2]).startswith((rules + "Bob").encode())
    assert bytes(memory.held[0]).startswith((rules + "Ann").encode())


def test_after_a_gap_the_rest_moves_up_for_its_own_conversation_only(
    batcher: Batcher, memory: FakeMemory
) -> None:
    rules, oldest, rest = (
        "Be kind. ",
        "I said this first. ",
        "And then we talked of this and that. ",
    )
    ask(batcher, asked(rules + oldest + rest, slot=0))

    ((_, moved),) = ask(batcher, asked(rules + rest + "Well?", slot=0, least_moved=16))
    ((_, other),) = ask(batcher, asked(rules + rest + "What?", slot=1, least_moved=16))

    assert moved.cached == len(rules + rest)
    assert bytes(memory.held[0]).startswith((rules + rest + "Well?").encode())
    assert other.cached == 0


def test_an_answer_that_is_left_is_stopped_within_its_batch(
    batcher: Batcher, memory: FakeMemory
) -> None:
    left, other = asked("x" * 200, slot=0), asked("hello", slot=1)
    memory.reading = lambda: batcher.leave(left.answer) if left.answer.unread else None
    batcher.ask(left.answer)

    ((text, _),) = ask(batcher, other)

    assert text == "yes"
    assert left.sampler.closed
    assert left.pieces.empty()
    assert memory.held[0] == []


def test_leaving_an_answer_that_is_over_disturbs_nobody(batcher: Batcher) -> None:
    over = asked("hello", slot=0)
    ask(batcher, over)

    batcher.leave(over.answer)

    assert [text for text, _ in ask(batcher, asked("hello", slot=0))] == ["yes"]


def test_who_wants_a_busy_slot_waits_for_it(batcher: Batcher) -> None:
    first, second = asked("hello", "one", slot=0), asked("helloone", "two", slot=0)

    (_, _), (text, end) = ask(batcher, first, second)

    assert text == "two"
    assert end.cached == len("helloone") - 1


def test_an_errand_waits_until_nobody_writes_in_its_slot(batcher: Batcher) -> None:
    question = asked("hello", slot=0)
    batcher.ask(question.answer)

    held = batcher.when_free(0, lambda slot: bytes(slot.tokens)).result(5)

    assert held == b"helloyes"


def test_an_errand_that_fails_tells_who_sent_it(batcher: Batcher) -> None:
    def fail(_: object) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        batcher.when_free(0, fail).result(5)
    assert [text for text, _ in ask(batcher, asked("hello"))] == ["yes"]


def test_an_answer_ends_at_its_limit(batcher: Batcher) -> None:
    ((text, end),) = ask(batcher, asked("hello", "abcdef", max_tokens=3))

    assert (text, end.reason, end.written) == ("abc", "length", 3)


def test_an_answer_ends_where_the_memory_does(batcher: Batcher, memory: FakeMemory) -> None:
    memory.sequence_tokens_left = 8

    ((text, end),) = ask(batcher, asked("hello", "abcdef", slot=0))

    assert (text, end.reason) == ("abcd", "length")
    assert len(memory.held[0]) == 8


def test_closing_ends_what_is_under_way(memory: FakeMemory) -> None:
    batcher = Batcher(memory, 3)
    batcher.ask(asked("x" * 250).answer)
    memory.reading = batcher.close

    batcher.run()

    assert memory.batches == []
