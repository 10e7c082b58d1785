"""The sequences in a model's memory, and what is being written in them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bot.backends.llama_cpp.bindings_child.wording import Wording


class Row(NamedTuple):
    """A token's place in a batch."""

    token: int
    position: int
    sequence: int
    wanted: bool  # the token after it will be asked for


class Sampler(Protocol):
    """Chooses the tokens of one answer."""

    def sample(self, row: int) -> int:
        """Choose what follows this row of the last batch, and remember the choice."""
        ...

    def close(self) -> None: ...


class Memory(Protocol):
    """What a model remembers of each sequence. Used by one thread only."""

    @property
    def sequence_tokens(self) -> int:
        """How many tokens each sequence has room for."""
        ...

    @property
    def batch_tokens(self) -> int: ...

    def read(self, rows: Sequence[Row], interrupted: Callable[[], bool]) -> bool:
        """Read a batch; False if it was interrupted, and nothing of it remains."""
        ...

    def cut(self, sequence: int, keep: int) -> int:
        """Forget all but a sequence's first tokens; gives how many are really left."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Make one sequence hold what another does, instead of what it did."""
        ...

    @property
    def can_move(self) -> bool: ...

    def move(self, sequence: int, begin: int, to: int, length: int) -> None:
        """Bring tokens forward, over those between, which are forgotten."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer, or its end."""

    text: str
    reason: str | None = None  # at the end: "stop" or "length"
    cached: int = 0  # tokens of the prompt that needed no reading
    written: int = 0  # tokens


@dataclass(eq=False, slots=True)
class Answer:
    """A question, and how far its answer is."""

    prompt: list[int]
    sampler: Sampler
    wording: Wording
    tell: Callable[[Piece], None]  # called by the thread that decodes
    slot: int | None = None  # None: any
    max_tokens: int | None = None
    remembers: bool = True  # may use what the memory holds
    least_moved: int = 0  # tokens that are worth moving up over a gap; 0: none is moved
    left: bool = False  # nobody waits for it any more
    over: bool = False
    unread: list[int] = field(default_factory=list)
    cached: int = 0
    written: int = 0

    def close(self) -> None:
        """Let go of what chose its tokens; nothing comes any more."""
        self.over = True
        self.sampler.close()


@dataclass(eq=False, slots=True)
class Slot:
    """A sequence, and the answer that is being written in it."""

    number: int
    tokens: list[int] = field(default_factory=list)  # what the memory holds of it
    straight: int = 0  # so many of them were read in this order; then a gap was closed
    answer: Answer | None = None
    last_use: int = 0


def in_common(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens at their beginning are the same."""
    for index, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return index
    return min(len(some), len(others))


class Move(NamedTuple):
    """Tokens that come again in a prompt, further to the front."""

    begin: int
    to: int
    length: int


def moves(held: Sequence[int], prompt: Sequence[int], kept: int, least: int) -> list[Move]:
    """Find what can move up where the prompt has lost something after its first `kept` tokens."""
    found: list[Move] = []
    begin, to = kept, kept
    while begin < len(held) and to < len(prompt):
        length = in_common(held[begin:], prompt[to:]) if held[begin] == prompt[to] else 0
        if length >= least:
            found.append(Move(begin, to, length))
            begin, to = begin + length, to + length
        else:
            begin += 1
    return found


def choose(free: Sequence[Slot], prompt: Sequence[int]) -> Slot:
    """Find the slot whose memory the prompt goes on from; else an empty or long unused one.

    A prompt goes on where it shares more than half of what the slot holds: less is what
    conversations with the same beginning share, and one of them would push the other out.
    """
    shares = {slot.number: in_common(slot.tokens, prompt) for slot in free}
    continued = [slot for slot in free if shares[slot.number] * 2 > len(slot.tokens)]
    if continued:
        return max(continued, key=lambda slot: shares[slot.number])
    return min(free, key=lambda slot: (bool(slot.tokens), slot.last_use))


def divide(wanted: Sequence[int], room: int) -> list[int]:
    """Give each what it wants, or where that is too much an equal share of what is left."""
    given = [0] * len(wanted)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, index in enumerate(by_size):
        given[index] = min(wanted[index], room // (len(wanted) - place))
        room -= given[index]
    return given
