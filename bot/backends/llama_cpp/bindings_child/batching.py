"""Decode several generations in one batch: each step gives every one its share of the tokens.

A slot keeps its KV cache after a generation, so that the next turn of the conversation decodes only
its new tokens. A prefix that another slot holds, such as the system prompt of a channel, is copied
instead of decoded again.
"""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from bot.backends.llama_cpp.bindings_child.slots import (
    BatchToken,
    GeneratedChunk,
    Generation,
    KvCache,
    Slot,
    choose_slot,
    common_prefix_length,
    divide_batch,
    find_shifts,
)
from bot.frozen_dataclass import frozen_dataclass

T = TypeVar("T")

_MIN_COPY_TOKENS = 32  # fewer are decoded as fast
_MAX_STEP_TOKENS_WHILE_GENERATING = 64  # limits how long a prefill delays running generations


@frozen_dataclass
class _SlotTask:
    """A task to run while a slot is free, or without a slot between two batches."""

    slot: int | None
    run: Callable[[], None]


class Batcher:
    """Own the KV cache. `run` has its own thread; the other methods may be called from any."""

    def __init__(self, cache: KvCache, slots: int) -> None:
        self._cache = cache
        self._slots = [Slot(number) for number in range(slots)]
        self._inbox: queue.SimpleQueue[Generation | _SlotTask | None] = queue.SimpleQueue()
        self._waiting: list[Generation | _SlotTask] = []
        self._interrupted = False
        self._uses = 0

    def submit(self, generation: Generation) -> None:
        """Start a generation as soon as its slot is free."""
        self._inbox.put(generation)

    def cancel(self, generation: Generation) -> None:
        """Stop a generation, also in the middle of a batch; one that is over may be cancelled."""
        if not generation.is_over:
            generation.cancelled = True
            self._interrupted = True

    def run_when_free(self, number: int, work: Callable[[Slot], T]) -> Future[T]:
        """Run a function while a slot is free; its OSError or ValueError is set on the future."""
        return self._send(number, lambda: work(self._slots[number]))

    def run_between_batches(self, work: Callable[[Sequence[Slot]], T]) -> Future[T]:
        """Run a function as soon as no batch is being decoded."""
        return self._send(None, lambda: work(self._slots))

    def close(self) -> None:
        """Make `run` return."""
        self._inbox.put(None)
        self._interrupted = True

    def run(self) -> None:
        """Decode until closed."""
        while self._receive():
            self._interrupted = False
            self._drop_cancelled()
            self._start_waiting()
            self._step()

    def _send(self, slot: int | None, work: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except (OSError, ValueError) as error:
                    done.set_exception(error)

        self._inbox.put(_SlotTask(slot, run))
        return done

    def _receive(self) -> bool:
        """Take what was submitted, waiting for it when idle; False once closed."""
        idle = not self._waiting and not any(slot.generation for slot in self._slots)
        while idle or not self._inbox.empty():
            received = self._inbox.get()
            if received is None:
                return False
            self._waiting.append(received)
            idle = False
        return True

    def _drop_cancelled(self) -> None:
        for slot in self._slots:
            if slot.generation is not None and slot.generation.cancelled:
                self._end(slot, slot.generation)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if isinstance(each, Generation) and each.cancelled:
                each.close()
            else:
                self._waiting.append(each)

    def _start_waiting(self) -> None:
        """Start those whose slot is free, in the order of their arrival."""
        waiting, self._waiting = self._waiting, []
        taken: set[int] = set()
        for each in waiting:
            if isinstance(each, _SlotTask) and each.slot is None:
                each.run()
                continue
            free = [
                slot for slot in self._slots if slot.generation is None and slot.number not in taken
            ]
            if each.slot is not None:
                free = [slot for slot in free if slot.number == each.slot]
            if not free:
                self._waiting.append(each)
                taken |= {each.slot} if each.slot is not None else set()
            elif isinstance(each, _SlotTask):
                each.run()
            else:
                self._start(choose_slot(free, each.prompt), each)

    def _start(self, slot: Slot, generation: Generation) -> None:
        reused = self._reuse_cache(slot, generation) if generation.use_cache else 0
        # The last prompt token is always decoded: the cache does not hold its logits.
        reused = self._cache.truncate(slot.number, min(reused, len(generation.prompt) - 1))
        slot.tokens = generation.prompt[:reused]
        slot.contiguous = min(slot.contiguous, reused)
        slot.generation = generation
        generation.cached, generation.pending = reused, generation.prompt[reused:]

    def _reuse_cache(self, slot: Slot, generation: Generation) -> int:
        """Reuse as much of the prompt's prefix as any slot holds; return its length in tokens."""
        prompt = generation.prompt
        reused = common_prefix_length(slot.tokens, prompt)
        # Shifted tokens were decoded after tokens that are gone; other slots must not copy them.
        shared = {
            each: common_prefix_length(each.tokens[: each.contiguous], prompt)
            for each in self._slots
        }
        source = max(self._slots, key=shared.__getitem__)
        if shared[source] >= reused + _MIN_COPY_TOKENS:
            self._cache.copy(source.number, slot.number)
            reused = slot.contiguous = shared[source]
        elif generation.min_shift_tokens and self._cache.can_shift:
            for shift in find_shifts(slot.tokens, prompt, reused, generation.min_shift_tokens):
                self._cache.shift(slot.number, *shift)
                slot.contiguous = min(slot.contiguous, shift.to)
                reused = shift.to + shift.length
        return reused

    def _step(self) -> None:
        """Decode one batch, and sample a token for each generation without pending tokens."""
        busy = [(slot, slot.generation) for slot in self._slots if slot.generation is not None]
        if not busy:
            return
        is_generating = any(generation.generated for _, generation in busy)
        limit = self._cache.batch_tokens
        lengths = [len(generation.pending) for _, generation in busy]
        shares = divide_batch(
            lengths, min(limit, _MAX_STEP_TOKENS_WHILE_GENERATING) if is_generating else limit
        )
        batch: list[BatchToken] = []
        sampling: list[tuple[Slot, Generation, int]] = []
        for (slot, generation), share in zip(busy, shares, strict=True):
            complete = share == len(generation.pending)
            batch += _to_batch(slot, generation.pending[:share], needs_logits=complete)
            if complete:
                sampling.append((slot, generation, len(batch) - 1))
        if not self._cache.decode(batch, lambda: self._interrupted):
            return
        for (slot, generation), share in zip(busy, shares, strict=True):
            if slot.contiguous == len(slot.tokens):
                slot.contiguous += share
            slot.tokens += generation.pending[:share]
            del generation.pending[:share]
        for slot, generation, row in sampling:
            self._add_token(slot, generation, generation.sampler.sample(row))

    def _add_token(self, slot: Slot, generation: Generation, token: int) -> None:
        generation.generated += 1
        text = generation.detokenizer.add(token)
        full = len(slot.tokens) >= self._cache.slot_tokens
        if generation.detokenizer.ended:
            reason = "stop"
        elif full or generation.generated == generation.max_tokens:
            reason = "length"
            text += generation.detokenizer.flush()
        else:
            generation.pending = [token]
            if text:
                generation.on_chunk(GeneratedChunk(text))
            return
        self._end(slot, generation)
        generation.on_chunk(GeneratedChunk(text, reason, generation.cached, generation.generated))

    def _end(self, slot: Slot, generation: Generation) -> None:
        generation.close()
        slot.generation = None
        self._uses += 1
        slot.last_used = self._uses


def _to_batch(slot: Slot, tokens: Sequence[int], *, needs_logits: bool) -> list[BatchToken]:
    begin, last = len(slot.tokens), len(tokens) - 1
    return [
        BatchToken(token, begin + index, slot.number, needs_logits and index == last)
        for index, token in enumerate(tokens)
    ]
