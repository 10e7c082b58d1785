"""Decode several answers in one batch: a step at a time, each has its share of the tokens read.

A slot keeps what it has read when its answer is over, so that the next turn of the same
conversation reads only what is new. What another slot has read already, such as the rules that all
characters of a channel share, is copied rather than read again.
"""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from bot.backends.llama_cpp.bindings_child.slots import (
    Answer,
    Memory,
    Piece,
    Row,
    Slot,
    choose,
    divide,
    in_common,
    moves,
)

T = TypeVar("T")

_WORTH_COPYING = 32  # tokens; fewer are read as fast
_READ_BESIDE_WRITERS = 64  # tokens of a step: so long those who write wait for those who read


@dataclass(frozen=True, slots=True)
class _Errand:
    """Something to do while nobody writes in a slot, or anywhere between two batches."""

    slot: int | None
    run: Callable[[], None]


class Batcher:
    """Owns the memory. `run` has a thread of its own; the rest may be called from any other."""

    def __init__(self, memory: Memory, slots: int) -> None:
        self._memory = memory
        self._slots = [Slot(number) for number in range(slots)]
        self._arrived: queue.SimpleQueue[Answer | _Errand | None] = queue.SimpleQueue()
        self._waiting: list[Answer | _Errand] = []
        self._interrupted = False
        self._uses = 0

    def ask(self, answer: Answer) -> None:
        """Begin an answer as soon as its slot is free."""
        self._arrived.put(answer)

    def leave(self, answer: Answer) -> None:
        """Stop an answer, be it in the middle of a batch; one that is over may be left, too."""
        if not answer.over:
            answer.left = True
            self._interrupted = True

    def when_free(self, number: int, work: Callable[[Slot], T]) -> Future[T]:
        """Do something with a slot between two answers; an OSError or ValueError is handed on."""
        return self._send(number, lambda: work(self._slots[number]))

    def between_batches(self, work: Callable[[Sequence[Slot]], T]) -> Future[T]:
        """Do something as soon as no batch is being read."""
        return self._send(None, lambda: work(self._slots))

    def close(self) -> None:
        """Let `run` return."""
        self._arrived.put(None)
        self._interrupted = True

    def run(self) -> None:
        """Decode until closed."""
        while self._receive():
            self._interrupted = False
            self._drop_left()
            self._begin()
            self._step()

    def _send(self, slot: int | None, work: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except (OSError, ValueError) as error:
                    done.set_exception(error)

        self._arrived.put(_Errand(slot, run))
        return done

    def _receive(self) -> bool:
        """Take what has arrived, waiting for it if there is nothing to do; False at the end."""
        idle = not self._waiting and not any(slot.answer for slot in self._slots)
        while idle or not self._arrived.empty():
            arrived = self._arrived.get()
            if arrived is None:
                return False
            self._waiting.append(arrived)
            idle = False
        return True

    def _drop_left(self) -> None:
        for slot in self._slots:
            if slot.answer is not None and slot.answer.left:
                self._end(slot, slot.answer)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if isinstance(each, Answer) and each.left:
                each.close()
            else:
                self._waiting.append(each)

    def _begin(self) -> None:
        """Start what has its slot; nobody gets one that somebody before wants."""
        waiting, self._waiting = self._waiting, []
        wanted: set[int] = set()
        for each in waiting:
            if isinstance(each, _Errand) and each.slot is None:
                each.run()
                continue
            free = [
                slot for slot in self._slots if slot.answer is None and slot.number not in wanted
            ]
            if each.slot is not None:
                free = [slot for slot in free if slot.number == each.slot]
            if not free:
                self._waiting.append(each)
                wanted |= {each.slot} if each.slot is not None else set()
            elif isinstance(each, _Errand):
                each.run()
            else:
                self._start(choose(free, each.prompt), each)

    def _start(self, slot: Slot, answer: Answer) -> None:
        kept = self._recall(slot, answer) if answer.remembers else 0
        # The last token is read in any case: what follows it is not remembered.
        kept = self._memory.cut(slot.number, min(kept, len(answer.prompt) - 1))
        slot.tokens = answer.prompt[:kept]
        slot.straight = min(slot.straight, kept)
        slot.answer = answer
        answer.cached, answer.unread = kept, answer.prompt[kept:]

    def _recall(self, slot: Slot, answer: Answer) -> int:
        """Make the slot hold as much of the prompt's beginning as can be had without reading."""
        prompt = answer.prompt
        kept = in_common(slot.tokens, prompt)
        # What moved up was read after what is gone now; others must not inherit that.
        known = {each: in_common(each.tokens[: each.straight], prompt) for each in self._slots}
        richest = max(self._slots, key=known.__getitem__)
        if known[richest] >= kept + _WORTH_COPYING:
            self._memory.copy(richest.number, slot.number)
            kept = slot.straight = known[richest]
        elif answer.least_moved and self._memory.can_move:
            for move in moves(slot.tokens, prompt, kept, answer.least_moved):
                self._memory.move(slot.number, *move)
                slot.straight = min(slot.straight, move.to)
                kept = move.to + move.length
        return kept

    def _step(self) -> None:
        """Read one batch, and let everybody choose a token who has read all there is."""
        busy = [(slot, slot.answer) for slot in self._slots if slot.answer is not None]
        if not busy:
            return
        writes = any(answer.written for _, answer in busy)
        room = self._memory.batch_tokens
        lengths = [len(answer.unread) for _, answer in busy]
        shares = divide(lengths, min(room, _READ_BESIDE_WRITERS) if writes else room)
        rows: list[Row] = []
        choosing: list[tuple[Slot, Answer, int]] = []
        for (slot, answer), share in zip(busy, shares, strict=True):
            complete = share == len(answer.unread)
            rows += _rows(slot, answer.unread[:share], wanted=complete)
            if complete:
                choosing.append((slot, answer, len(rows) - 1))
        if not self._memory.read(rows, lambda: self._interrupted):
            return
        for (slot, answer), share in zip(busy, shares, strict=True):
            if slot.straight == len(slot.tokens):
                slot.straight += share
            slot.tokens += answer.unread[:share]
            del answer.unread[:share]
        for slot, answer, row in choosing:
            self._write(slot, answer, answer.sampler.sample(row))

    def _write(self, slot: Slot, answer: Answer, token: int) -> None:
        answer.written += 1
        text = answer.wording.take(token)
        full = len(slot.tokens) >= self._memory.sequence_tokens
        if answer.wording.ended:
            reason = "stop"
        elif full or answer.written == answer.max_tokens:
            reason = "length"
            text += answer.wording.rest()
        else:
            answer.unread = [token]
            if text:
                answer.tell(Piece(text))
            return
        self._end(slot, answer)
        answer.tell(Piece(text, reason, answer.cached, answer.written))

    def _end(self, slot: Slot, answer: Answer) -> None:
        answer.close()
        slot.answer = None
        self._uses += 1
        slot.last_use = self._uses


def _rows(slot: Slot, tokens: Sequence[int], *, wanted: bool) -> list[Row]:
    begin, last = len(slot.tokens), len(tokens) - 1
    return [
        Row(token, begin + index, slot.number, wanted and index == last)
        for index, token in enumerate(tokens)
    ]
