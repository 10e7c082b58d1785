"""Several generations in one batch, on a KV cache that checks every token."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from bot.backends.llama_cpp.bindings_child.batching import Batcher
from bot.backends.llama_cpp.bindings_child.detokenizer import Detokenizer
from bot.backends.llama_cpp.bindings_child.slots import (
    BatchToken,
    GeneratedChunk,
    Generation,
    KvCache,
    Sampler,
)

END = 0
LETTERS = range(1, 128)


class FakeKvCache(KvCache):
    """Keep what was decoded; `on_decode` is called within each batch."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {number: [] for number in range(3)}
        self.batches: list[list[BatchToken]] = []
        self.copied: list[tuple[int, int]] = []
        self.on_decode: Callable[[], object] = lambda: None
        self.sequence_tokens_left = 300

    @property
    @override
    def slot_tokens(self) -> int:
        return self.sequence_tokens_left

    @property
    @override
    def batch_tokens(self) -> int:
        return 100

    @override
    def decode(self, batch: Sequence[BatchToken], interrupted: Callable[[], bool]) -> bool:
        assert 0 < len(batch) <= self.batch_tokens
        self.on_decode()
        if interrupted():
            return False
        for token in batch:
            assert token.position == len(self.held[token.sequence])
            self.held[token.sequence].append(token.token)
        self.batches.append(list(batch))
        return True

    @override
    def truncate(self, sequence: int, keep: int) -> int:
        del self.held[sequence][keep:]
        return keep

    @override
    def copy(self, source: int, target: int) -> None:
        self.copied.append((source, target))
        self.held[target] = list(self.held[source])

    @property
    @override
    def can_shift(self) -> bool:
        return True

    @override
    def shift(self, sequence: int, begin: int, to: int, length: int) -> None:
        held = self.held[sequence]
        held[to:] = held[begin:]


class ScriptedSampler(Sampler):
    """Sample a given text, then end."""

    def __init__(self, says: str) -> None:
        self.closed = False
        self._tokens: Iterator[int] = iter(says.encode())

    @override
    def sample(self, token: int) -> int:
        return next(self._tokens, END)

    @override
    def close(self) -> None:
        self.closed = True


@dataclass
class RunningGeneration:
    """A generation and the chunks that it sent."""

    generation: Generation
    sampler: ScriptedSampler
    chunks: "queue.Queue[GeneratedChunk]" = field(default_factory=queue.Queue)

    def end(self) -> tuple[str, GeneratedChunk]:
        text = ""
        while True:
            chunk = self.chunks.get(timeout=5)
            text += chunk.text
            if chunk.reason is not None:
                return text, chunk


@pytest.fixture
def cache() -> FakeKvCache:
    return FakeKvCache()


@pytest.fixture
def batcher(cache: FakeKvCache) -> Iterator[Batcher]:
    batcher = Batcher(cache, 3)
    thread = threading.Thread(target=batcher.run)
    thread.start()
    yield batcher
    batcher.close()
    thread.join(5)
    assert not thread.is_alive()


def generation(
    prompt: str, says: str = "yes", slot: int | None = None, **options: int
) -> RunningGeneration:
    chunks: queue.Queue[GeneratedChunk] = queue.Queue()
    sampler = ScriptedSampler(says)
    detokenizer = Detokenizer(lambda token: bytes([token]), ends={END}, stop=())
    made = Generation([*prompt.encode()], sampler, detokenizer, chunks.put, slot=slot, **options)  # type: ignore[arg-type]
    return RunningGeneration(made, sampler, chunks)


def ask(batcher: Batcher, *questions: RunningGeneration) -> list[tuple[str, GeneratedChunk]]:
    """Ask all at once, so that they share their batches."""

    def send(_: object) -> None:
        for each in questions:
            batcher.submit(each.generation)

    batcher.run_between_batches(send).result(5)
    return [each.end() for each in questions]


def test_generation_returns_text_and_finish_reason(batcher: Batcher) -> None:
    running = generation("hello")

    assert ask(batcher, running) == [("yes", GeneratedChunk("", "stop", cached=0, generated=4))]
    assert running.sampler.closed


def test_next_turn_decodes_only_new_tokens(batcher: Batcher, cache: FakeKvCache) -> None:
    ask(batcher, generation("hello", slot=1))
    cache.batches.clear()

    ((_, end),) = ask(batcher, generation("helloyes, and you?", slot=1))

    assert end.cached == len("helloyes")
    assert [token.token for token in cache.batches[0]] == [*b", and you?"]


def test_repeated_prompt_decodes_one_token(batcher: Batcher) -> None:
    ask(batcher, generation("hello", slot=1))

    ((_, end),) = ask(batcher, generation("hello", slot=1))

    assert end.cached == len("hello") - 1


def test_generations_share_batches(batcher: Batcher, cache: FakeKvCache) -> None:
    answers = ask(batcher, *(generation("hello", "abcdef") for _ in range(3)))

    assert [text for text, _ in answers] == ["abcdef"] * 3
    assert {token.sequence for token in cache.batches[-1]} == {0, 1, 2}
    assert len(cache.batches) == 7


def test_long_prefill_does_not_block_running_generations(
    batcher: Batcher, cache: FakeKvCache
) -> None:
    ask(batcher, generation("hi", "a" * 50, slot=0), generation("x" * 250, slot=1))

    both = [batch for batch in cache.batches if {token.sequence for token in batch} == {0, 1}]
    assert max(len(batch) for batch in both[1:]) <= 64


def test_prefix_of_another_slot_is_copied(batcher: Batcher, cache: FakeKvCache) -> None:
    rules = "You are one of the troupe. " * 3
    ask(batcher, generation(rules + "Ann", slot=0))

    ((_, end),) = ask(batcher, generation(rules + "Bob", slot=2))

    assert end.cached == len(rules)
    assert cache.copied == [(0, 2)]
    assert bytes(cache.held[2]).startswith((rules + "Bob").encode())
    assert bytes(cache.held[0]).startswith((rules + "Ann").encode())


def test_tokens_are_shifted_over_a_gap_in_their_own_slot_only(
    batcher: Batcher, cache: FakeKvCache
) -> None:
    rules, oldest, rest = (
        "Be kind. ",
        "I said this first. ",
        "And then we talked of this and that. ",
    )
    ask(batcher, generation(rules + oldest + rest, slot=0))

    ((_, moved),) = ask(batcher, generation(rules + rest + "Well?", slot=0, min_shift_tokens=16))
    ((_, other),) = ask(batcher, generation(rules + rest + "What?", slot=1, min_shift_tokens=16))

    assert moved.cached == len(rules + rest)
    assert bytes(cache.held[0]).startswith((rules + rest + "Well?").encode())
    assert other.cached == 0


def test_cancelled_generation_is_stopped_within_its_batch(
    batcher: Batcher, cache: FakeKvCache
) -> None:
    cancelled, other = generation("x" * 200, slot=0), generation("hello", slot=1)
    cache.on_decode = lambda: (
        batcher.cancel(cancelled.generation) if cancelled.generation.pending else None
    )
    batcher.submit(cancelled.generation)

    ((text, _),) = ask(batcher, other)

    assert text == "yes"
    assert cancelled.sampler.closed
    assert cancelled.chunks.empty()
    assert cache.held[0] == []


def test_cancelling_a_finished_generation_does_nothing(batcher: Batcher) -> None:
    finished = generation("hello", slot=0)
    ask(batcher, finished)

    batcher.cancel(finished.generation)

    assert [text for text, _ in ask(batcher, generation("hello", slot=0))] == ["yes"]


def test_generation_waits_for_its_busy_slot(batcher: Batcher) -> None:
    first, second = generation("hello", "one", slot=0), generation("helloone", "two", slot=0)

    (_, _), (text, end) = ask(batcher, first, second)

    assert text == "two"
    assert end.cached == len("helloone") - 1


def test_slot_task_waits_until_its_slot_is_free(batcher: Batcher) -> None:
    running = generation("hello", slot=0)
    batcher.submit(running.generation)

    held = batcher.run_when_free(0, lambda slot: bytes(slot.tokens)).result(5)

    assert held == b"helloyes"


def test_error_of_a_slot_task_is_set_on_its_future(batcher: Batcher) -> None:
    def fail(_: object) -> None:
        raise OSError("no memory")

    with pytest.raises(OSError, match="no memory"):
        batcher.run_when_free(0, fail).result(5)
    assert [text for text, _ in ask(batcher, generation("hello"))] == ["yes"]


def test_generation_ends_at_max_tokens(batcher: Batcher) -> None:
    ((text, end),) = ask(batcher, generation("hello", "abcdef", max_tokens=3))

    assert (text, end.reason, end.generated) == ("abc", "length", 3)


def test_generation_ends_where_the_slot_is_full(batcher: Batcher, cache: FakeKvCache) -> None:
    cache.sequence_tokens_left = 8

    ((text, end),) = ask(batcher, generation("hello", "abcdef", slot=0))

    assert (text, end.reason) == ("abcd", "length")
    assert len(cache.held[0]) == 8


def test_close_ends_running_generations(cache: FakeKvCache) -> None:
    batcher = Batcher(cache, 3)
    batcher.submit(generation("x" * 250).generation)
    cache.on_decode = batcher.close

    batcher.run()

    assert cache.batches == []
