"""Compare texts in almost linear time: by words, and by lines with marked words."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import Match, SequenceMatcher
from itertools import pairwise
from typing import Literal

from typing_extensions import override

from bot.value_class import value_class

_MAX_WORDS = 20_000
_MAX_DIFFLIB_PAIRS = 10_000  # of a gap without unique items: its time grows with their cube
_MAX_DEPTH = 8  # of nested gaps; deeper differences count as replaced
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_CONTEXT_LINES = 3
_MAX_LINES = 2000


class PatienceMatcher(SequenceMatcher[str]):
    """Compares sequences by patience diff; difflib's own way takes cubic time.

    It matches the common beginning and end, then the items that are unique in both, then the same
    in the gaps between these.
    """

    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        super().__init__(None, before, after, autojunk=False)
        self._before, self._after = before, after

    @override
    def get_matching_blocks(self) -> list[Match]:
        blocks: list[Match] = []
        for at, other in sorted(_pairs(self._before, self._after)):
            last = blocks[-1] if blocks else None
            if last and (last.a + last.size, last.b + last.size) == (at, other):
                blocks[-1] = last._replace(size=last.size + 1)
            else:
                blocks.append(Match(at, other, 1))
        return [*blocks, Match(len(self._before), len(self._after), 0)]


def _pairs(
    before: Sequence[str], after: Sequence[str], depth: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the positions of equal items, in any order."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    rest = shorter - head
    tail = next((at for at in range(rest) if before[-1 - at] != after[-1 - at]), rest)
    yield from ((at, at) for at in range(head))
    yield from ((len(before) - at, len(after) - at) for at in range(1, tail + 1))
    if tail == rest or depth == _MAX_DEPTH:
        return
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    anchors = _anchors(old, new)
    if not anchors and len(old) * len(new) <= _MAX_DIFFLIB_PAIRS:
        blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        for at, other, size in blocks:
            yield from ((head + at + n, head + other + n) for n in range(size))
        return
    yield from ((head + at, head + other) for at, other in anchors)
    ends = [(-1, -1), *anchors, (len(old), len(new))]
    for (begin, other_begin), (end, other_end) in pairwise(ends) if anchors else ():
        gap = old[begin + 1 : end], new[other_begin + 1 : other_end]
        for at, other in _pairs(*gap, depth + 1):
            yield head + begin + 1 + at, head + other_begin + 1 + other


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of items that each sequence has once, in the same order."""
    counts, others = Counter(before), Counter(after)
    places = {item: at for at, item in enumerate(after) if others[item] == 1}
    pairs = [
        (at, places[item]) for at, item in enumerate(before) if counts[item] == 1 and item in places
    ]
    # The longest increasing part, by patience sorting.
    tops: list[int] = []  # the least place that ends a part of each length
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


# --- words --------------------------------------------------------------------------------------


@value_class
class DifferingPiece:
    """A piece of both texts, or of one of them."""

    text: str
    change: Literal["same", "removed", "added"]


def differing_pieces(before: str, after: str) -> list[DifferingPiece]:
    """Return the words of both texts and of one alone, in the order of reading.

    Very long texts are compared line by line.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    if len(old) + len(new) > _MAX_WORDS:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    pieces = []
    for tag, begin, end, other, other_end in PatienceMatcher(old, new).get_opcodes():
        removed, added = "".join(old[begin:end]), "".join(new[other:other_end])
        if tag == "equal":
            pieces.append(DifferingPiece(removed, "same"))
            continue
        if removed:
            pieces.append(DifferingPiece(removed, "removed"))
        if added:
            pieces.append(DifferingPiece(added, "added"))
    return pieces


# --- lines --------------------------------------------------------------------------------------


@value_class
class DifferingLine:
    """A line of one text, or of both."""

    change: Literal["same", "removed", "added", "gap", "rest"]
    """"gap": equal lines are left out here; "rest": what follows is not shown."""
    number: int
    """In the text that has the line; of a gap: how many lines are left out; else 0."""
    pieces: Sequence[DifferingPiece] = ()


_REST = DifferingLine("rest", 0)


def differing_lines(before: str, after: str) -> tuple[Sequence[DifferingLine], int]:
    """Return what differs, with some equal lines around it, and in how many places.

    Where very many lines differ, the rest is only counted.
    """
    old, new = before.splitlines(), after.splitlines()
    matcher = PatienceMatcher(old, new)
    changes = sum(tag != "equal" for tag, *_ in matcher.get_opcodes())
    lines: list[DifferingLine] = []
    shown_to = 0
    for group in matcher.get_grouped_opcodes(_CONTEXT_LINES):
        if len(lines) >= _MAX_LINES:
            return [*lines, _REST], changes
        if left_out := group[0][3] - shown_to:
            lines.append(DifferingLine("gap", left_out))
        for tag, begin, end, other, other_end in group:
            if tag == "equal":
                lines += [
                    DifferingLine("same", at + 1, [DifferingPiece(new[at], "same")])
                    for at in range(other, other_end)
                ]
                continue
            most = max(0, _MAX_LINES - len(lines))
            removed, added = old[begin:end][:most], new[other:other_end][:most]
            compared = [differing_pieces(*pair) for pair in zip(removed, added, strict=False)]
            lines += _changed("removed", removed, begin, compared)
            lines += _changed("added", added, other, compared)
            if max(end - begin, other_end - other) > most:
                return [*lines, _REST], changes
        shown_to = group[-1][4]
    if lines and shown_to < len(new):
        lines.append(DifferingLine("gap", len(new) - shown_to))
    return lines, changes


def _changed(
    change: Literal["removed", "added"],
    texts: Sequence[str],
    begin: int,
    compared: Sequence[Sequence[DifferingPiece]],
) -> Iterator[DifferingLine]:
    for at, text in enumerate(texts):
        pieces = [DifferingPiece(text, change)]
        if at < len(compared):
            pieces = [one for one in compared[at] if one.change in {"same", change}]
        yield DifferingLine(change, begin + at + 1, pieces)
