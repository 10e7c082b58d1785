"""The slots of a KV cache, the generations in them, and the decisions of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bot.backends.llama_cpp.bindings_child.detokenizer import Detokenizer
from bot.frozen_dataclass import frozen_dataclass


class BatchToken(NamedTuple):
    """A token of a batch."""

    token: int
    position: int
    sequence: int
    needs_logits: bool
    """The next token will be sampled from it."""


class Sampler(Protocol):
    """Sample the tokens of one generation."""

    def sample(self, index: int) -> int:
        """Sample what follows this token of the last batch, and accept it."""
        ...

    def close(self) -> None: ...


class KvCache(Protocol):
    """The KV cache of several sequences, one a slot; used by one thread only."""

    @property
    def slot_tokens(self) -> int:
        """How many tokens each sequence can hold."""
        ...

    @property
    def batch_tokens(self) -> int: ...

    def decode(self, batch: Sequence[BatchToken], interrupted: Callable[[], bool]) -> bool:
        """Decode a batch; False if it was interrupted, which leaves nothing of it in the cache."""
        ...

    def truncate(self, sequence: int, keep: int) -> int:
        """Truncate a sequence to its first tokens; return how many are really left."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Replace the content of one sequence by a copy of another."""
        ...

    @property
    def can_shift(self) -> bool: ...

    def shift(self, sequence: int, begin: int, to: int, length: int) -> None:
        """Shift tokens towards the front, over those between, which are removed."""
        ...


@frozen_dataclass
class GeneratedChunk:
    """A part of the generated text, or its end."""

    text: str
    reason: str | None = None
    """At the end: "stop" or "length"."""
    cached: int = 0
    """Prompt tokens that came from the cache."""
    generated: int = 0
    """Tokens generated so far."""


@dataclass(eq=False, slots=True)
class Generation:
    """A question, and how far its generation is."""

    prompt: list[int]
    sampler: Sampler
    detokenizer: Detokenizer
    on_chunk: Callable[[GeneratedChunk], None]
    """Called by the thread that decodes."""
    slot: int | None = None
    """None is any slot."""
    max_tokens: int | None = None
    use_cache: bool = True
    min_shift_tokens: int = 0
    """The shortest run of tokens that is shifted over a gap; 0 shifts none."""
    cancelled: bool = False
    is_over: bool = False
    pending: list[int] = field(default_factory=list)
    """Tokens to decode before the next one can be sampled."""
    cached: int = 0
    generated: int = 0

    def close(self) -> None:
        """Free the sampler; no more tokens follow."""
        self.is_over = True
        self.sampler.close()


@dataclass(eq=False, slots=True)
class Slot:
    """A sequence, and the generation that is being written in it."""

    number: int
    tokens: list[int] = field(default_factory=list)
    """What the cache holds of it."""
    contiguous: int = 0
    """So many tokens were decoded in this order; those after them were shifted."""
    generation: Generation | None = None
    last_used: int = 0


def common_prefix_length(some: Sequence[int], others: Sequence[int]) -> int:
    """Count the equal tokens at the beginning of two sequences."""
    for index, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return index
    return min(len(some), len(others))


class Shift(NamedTuple):
    """Tokens that a prompt has again, further to the front."""

    begin: int
    to: int
    length: int


def find_shifts(held: Sequence[int], prompt: Sequence[int], kept: int, least: int) -> list[Shift]:
    """Find what can be shifted where the prompt has dropped tokens after its first `kept` ones."""
    found: list[Shift] = []
    begin, to = kept, kept
    while begin < len(held) and to < len(prompt):
        length = common_prefix_length(held[begin:], prompt[to:]) if held[begin] == prompt[to] else 0
        if length >= least:
            found.append(Shift(begin, to, length))
            begin, to = begin + length, to + length
        else:
            begin += 1
    return found


def choose_slot(free: Sequence[Slot], prompt: Sequence[int]) -> Slot:
    """Return the slot that the prompt continues, else an empty or the least recently used one.

    A prompt continues a slot if it shares more than half of the slot's tokens: less is what two
    conversations with the same system prompt share, and one would evict the other.
    """
    shares = {slot.number: common_prefix_length(slot.tokens, prompt) for slot in free}
    continued = [slot for slot in free if shares[slot.number] * 2 > len(slot.tokens)]
    if continued:
        return max(continued, key=lambda slot: shares[slot.number])
    return min(free, key=lambda slot: (bool(slot.tokens), slot.last_used))


def divide_batch(wanted: Sequence[int], limit: int) -> list[int]:
    """Give each what it wants, or where that is too much an equal share of the limit."""
    given = [0] * len(wanted)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for position, index in enumerate(by_size):
        given[index] = min(wanted[index], limit // (len(wanted) - position))
        limit -= given[index]
    return given
