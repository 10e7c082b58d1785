"""Compare two texts line by line, as a reader of code expects it; words that differ are marked."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bot.console.answers.differences import DifferingPiece, differing_pieces

_CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True)
class DifferingLine:
    """A line of one text, or of both."""

    change: Literal["same", "removed", "added", "gap"]
    """"gap": lines that are equal are left out here."""
    number: int
    """In the text that has the line; of a gap: how many lines are left out."""
    pieces: Sequence[DifferingPiece] = ()


def differing_lines(before: str, after: str) -> list[DifferingLine]:
    """Return what differs, with some equal lines around it; empty if nothing does."""
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    lines: list[DifferingLine] = []
    shown_to = 0
    for group in matcher.get_grouped_opcodes(_CONTEXT_LINES):
        if left_out := group[0][3] - shown_to:
            lines.append(DifferingLine("gap", left_out))
        for tag, old_begin, old_end, new_begin, new_end in group:
            if tag == "equal":
                lines += [_same(at + 1, new[at]) for at in range(new_begin, new_end)]
                continue
            pairs = list(zip(range(old_begin, old_end), range(new_begin, new_end), strict=False))
            compared = [differing_pieces(old[one], new[other]) for one, other in pairs]
            lines += _changed("removed", old, range(old_begin, old_end), compared)
            lines += _changed("added", new, range(new_begin, new_end), compared)
        shown_to = group[-1][4]
    if lines and shown_to < len(new):
        lines.append(DifferingLine("gap", len(new) - shown_to))
    return lines


def count_changes(lines: Sequence[DifferingLine]) -> int:
    """Return in how many places two texts differ."""
    kinds = [one.change in {"removed", "added"} for one in lines]
    return sum(now and not before for before, now in zip([False, *kinds], kinds, strict=False))


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
