"""Compare two texts line by line, as a reader of code expects it; words that differ are marked."""

from collections.abc import Iterator, Sequence
from typing import Literal

from bot.console.answers.comparison import ComparisonBudget, Opcode, opcodes
from bot.console.answers.differences import DifferingPiece, differing_pieces
from bot.frozen_dataclass import frozen_dataclass

_CONTEXT_LINES = 3
_MAX_LINES = 2000


@frozen_dataclass
class DifferingLine:
    """A line of one text, or of both."""

    change: Literal["same", "removed", "added", "gap", "rest"]
    """"gap": lines that are equal are left out here; "rest": what follows is not shown."""
    number: int
    """In the text that has the line; of a gap: how many lines are left out; else 0."""
    pieces: Sequence[DifferingPiece] = ()


_REST = DifferingLine("rest", 0)


@frozen_dataclass
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
