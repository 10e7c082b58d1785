"""Compare two sequences in bounded time: that of difflib grows with the cube of their length."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Literal, TypeAlias

Opcode: TypeAlias = tuple[Literal["equal", "replace", "delete", "insert"], int, int, int, int]
"""What changed, and where: begin and end in the first sequence, then in the second."""

_Block: TypeAlias = tuple[int, int, int]  # where it begins in both, and its length


@dataclass
class ComparisonBudget:
    """How much work comparisons may still be, together; 20 million steps take about a second."""

    steps: int = 4_000_000


def opcodes(
    before: Sequence[str], after: Sequence[str], budget: ComparisonBudget | None = None
) -> list[Opcode]:
    """Return difflib's opcodes as far as the budget allows.

    Beyond it only items that stand once in each sequence are matched, in linear time, and what is
    between them counts as replaced.
    """
    blocks = sorted(_blocks(before, after, budget or ComparisonBudget()))
    found: list[Opcode] = []
    at, other = 0, 0
    for begin, other_begin, size in [*blocks, (len(before), len(after), 0)]:
        if at < begin and other < other_begin:
            found.append(("replace", at, begin, other, other_begin))
        elif at < begin:
            found.append(("delete", at, begin, other, other_begin))
        elif other < other_begin:
            found.append(("insert", at, begin, other, other_begin))
        at, other = begin + size, other_begin + size
        if found and size and found[-1][0] == "equal":
            found[-1] = ("equal", found[-1][1], at, found[-1][3], other)
        elif size:
            found.append(("equal", begin, at, other_begin, other))
    return found


def _blocks(
    before: Sequence[str], after: Sequence[str], budget: ComparisonBudget
) -> Iterator[_Block]:
    """Yield what both have, in any order."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next(
        (at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head
    )
    yield 0, 0, head
    yield len(before) - tail, len(after) - tail, tail
    middle = before[head : len(before) - tail], after[head : len(after) - tail]
    whole = list(_match(*middle, budget))
    yield from ((head + one, head + other, size) for one, other, size in whole)
    if whole:
        return
    anchors = _anchors(*middle)
    yield from ((head + one, head + other, 1) for one, other in anchors)
    ends = [(-1, -1), *anchors, (len(middle[0]), len(middle[1]))]
    for (begin, other_begin), (end, other_end) in pairwise(ends):
        gap = middle[0][begin + 1 : end], middle[1][other_begin + 1 : other_end]
        for one, other, size in _match(*gap, budget):
            yield head + begin + 1 + one, head + other_begin + 1 + other, size


def _match(
    before: Sequence[str], after: Sequence[str], budget: ComparisonBudget
) -> Iterator[_Block]:
    """Yield difflib's blocks; none where the budget does not suffice."""
    cost = _cost(before, after)
    if 0 < cost <= budget.steps:
        budget.steps -= cost
        yield from SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()[:-1]


def _cost(before: Sequence[str], after: Sequence[str]) -> int:
    """Return how many steps difflib takes at most: each block it finds is searched in all pairs."""
    if not before or not after:
        return 0
    counts = Counter(after)
    pairs = sum(counts[item] for item in before)
    return (len(before) + pairs) * min(len(before), len(after), pairs)


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return where items stand that each sequence has once, as far as their order is the same."""
    counts, others = Counter(before), Counter(after)
    places = {item: at for at, item in enumerate(after) if others[item] == 1}
    pairs = [
        (at, places[item]) for at, item in enumerate(before) if counts[item] == 1 and item in places
    ]
    return _longest_increasing(pairs)


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of pairs whose second numbers grow, as patience sorting finds it."""
    tops: list[int] = []  # the least second number that ends a part of each length
    ends: list[int] = []  # the index of its pair
    earlier: list[int] = []  # the index of the pair before each
    for index, (_, place) in enumerate(pairs):
        length = bisect_left(tops, place)
        tops[length : length + 1] = [place]
        ends[length : length + 1] = [index]
        earlier.append(ends[length - 1] if length else -1)
    found = []
    index = ends[-1] if ends else -1
    while index >= 0:
        found.append(pairs[index])
        index = earlier[index]
    return found[::-1]
