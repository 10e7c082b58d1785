"""Compare texts in bounded time: by words, and by lines with marked words."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Literal, TypeAlias

from bot.value_class import value_class

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


_MAX_WORDS = 20_000
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


@value_class
class DifferingPiece:
    """A piece of both texts, or of one of them."""

    text: str
    change: Literal["same", "removed", "added"]


def differing_pieces(
    before: str, after: str, *, budget: ComparisonBudget | None = None
) -> list[DifferingPiece]:
    """Return what both texts share, and what only one of them has, in the order of reading.

    Very long texts are compared line by line.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    if len(old) + len(new) > _MAX_WORDS:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return list(_pieces(old, new, budget or ComparisonBudget()))


def _pieces(
    before: list[str], after: list[str], budget: ComparisonBudget
) -> Iterator[DifferingPiece]:
    for tag, old_begin, old_end, new_begin, new_end in opcodes(before, after, budget):
        if tag == "equal":
            yield DifferingPiece("".join(before[old_begin:old_end]), "same")
            continue
        if old_end > old_begin:
            yield DifferingPiece("".join(before[old_begin:old_end]), "removed")
        if new_end > new_begin:
            yield DifferingPiece("".join(after[new_begin:new_end]), "added")


_CONTEXT_LINES = 3
_MAX_LINES = 2000


@value_class
class DifferingLine:
    """A line of one text, or of both."""

    change: Literal["same", "removed", "added", "gap", "rest"]
    """"gap": lines that are equal are left out here; "rest": what follows is not shown."""
    number: int
    """In the text that has the line; of a gap: how many lines are left out; else 0."""
    pieces: Sequence[DifferingPiece] = ()


_REST = DifferingLine("rest", 0)


@value_class
class LineDifferences:
    """What differs, with some equal lines around it; no lines if nothing does."""

    lines: Sequence[DifferingLine]
    changes: int
    """In how many places the texts differ."""


def differing_lines(before: str, after: str) -> LineDifferences:
    """Compare two texts; where they differ in very many lines, the rest is only counted."""
    old, new = before.splitlines(), after.splitlines()
    budget = ComparisonBudget()
    codes = opcodes(old, new, budget)
    changes = sum(tag != "equal" for tag, *_ in codes)
    lines: list[DifferingLine] = []
    shown_to = 0
    for group in _groups(codes):
        if len(lines) >= _MAX_LINES:
            return LineDifferences([*lines, _REST], changes)
        if left_out := group[0][3] - shown_to:
            lines.append(DifferingLine("gap", left_out))
        for tag, old_begin, old_end, new_begin, new_end in group:
            if tag == "equal":
                lines += [_same(at + 1, new[at]) for at in range(new_begin, new_end)]
                continue
            most = max(0, _MAX_LINES - len(lines))
            removed, added = range(old_begin, old_end)[:most], range(new_begin, new_end)[:most]
            pairs = list(zip(removed, added, strict=False))
            compared = [
                differing_pieces(old[one], new[other], budget=budget) for one, other in pairs
            ]
            lines += _changed("removed", old, removed, compared)
            lines += _changed("added", new, added, compared)
            if max(old_end - old_begin, new_end - new_begin) > most:
                return LineDifferences([*lines, _REST], changes)
        shown_to = group[-1][4]
    if lines and shown_to < len(new):
        lines.append(DifferingLine("gap", len(new) - shown_to))
    return LineDifferences(lines, changes)


def _groups(codes: Sequence[Opcode]) -> Iterator[Sequence[Opcode]]:
    """Yield the changes that are near each other, with the equal lines around them."""
    group: list[Opcode] = []
    for at, (tag, begin, end, other, other_end) in enumerate(codes):
        is_last = at == len(codes) - 1
        if tag != "equal" or (group and not is_last and end - begin <= 2 * _CONTEXT_LINES):
            group.append((tag, begin, end, other, other_end))
            continue
        size = min(_CONTEXT_LINES, end - begin)
        if group:
            yield [*group, ("equal", begin, begin + size, other, other + size)]
        group = [] if is_last else [("equal", end - size, end, other_end - size, other_end)]
    if group:
        yield group


def _same(number: int, text: str) -> DifferingLine:
    return DifferingLine("same", number, [DifferingPiece(text, "same")])


def _changed(
    change: Literal["removed", "added"],
    texts: Sequence[str],
    numbers: range,
    compared: Sequence[Sequence[DifferingPiece]],
) -> Iterator[DifferingLine]:
    for at, number in enumerate(numbers):
        if at < len(compared):
            pieces = [one for one in compared[at] if one.change in {"same", change}]
        else:
            pieces = [DifferingPiece(texts[number], change)]
        yield DifferingLine(change, number + 1, pieces)
