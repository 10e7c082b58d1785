"""Compare texts by words and lines, as `difflib` does, in bounded time."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

from bot.value_class import value_class

_MAX_PAIRS = 2_000_000  # of differing words or lines; a second for the worst texts
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_CONTEXT_LINES = 3
_MAX_LINES = 2000

Opcodes: TypeAlias = Sequence[tuple[str, int, int, int, int]]
"""As difflib has them: a tag, begin and end in the first sequence, and in the second one."""


def opcodes(before: Sequence[str], after: Sequence[str]) -> Opcodes:
    """Return the edits between two sequences; a single edit if they differ too much."""
    codes = _opcodes(before, after)
    return [("replace", 0, len(before), 0, len(after))] if codes is None else codes


def _opcodes(before: Sequence[str], after: Sequence[str]) -> Opcodes | None:
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    rest = shorter - head
    tail = next((at for at in range(rest) if before[-1 - at] != after[-1 - at]), rest)
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(old) * len(new) > _MAX_PAIRS:
        return None
    inner = SequenceMatcher(None, old, new).get_opcodes()
    codes = [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in inner]
    if head:
        codes.insert(0, ("equal", 0, head, 0, head))
    if tail:
        codes.append(("equal", len(before) - tail, len(before), len(after) - tail, len(after)))
    return codes


@value_class
class DifferingPiece:
    """A run of words in both texts, or in only one."""

    text: str
    change: Literal["same", "removed", "added"]


def differing_pieces(before: str, after: str) -> list[DifferingPiece]:
    """Return the shared and differing words, in reading order.

    Very long texts are compared by lines, and huge ones not at all.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    if (codes := _opcodes(old, new)) is None:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        codes = opcodes(old, new)
    pieces = []
    for tag, begin, end, other, other_end in codes:
        removed, added = "".join(old[begin:end]), "".join(new[other:other_end])
        if tag == "equal":
            pieces.append(DifferingPiece(removed, "same"))
            continue
        if removed:
            pieces.append(DifferingPiece(removed, "removed"))
        if added:
            pieces.append(DifferingPiece(added, "added"))
    return pieces


@value_class
class DifferingLine:
    """A line of one text, or of both."""

    change: Literal["same", "removed", "added", "gap", "rest"]
    """"gap": equal lines are left out here; "rest": what follows is not shown."""
    number: int
    """In the text that has the line; of a gap: how many lines are left out; else 0."""
    pieces: Sequence[DifferingPiece] = ()


def differing_lines(before: str, after: str) -> tuple[Sequence[DifferingLine], int]:
    """Return the differing lines with some context, and the number of differences.

    Differences beyond a limit are only counted.
    """
    old, new = before.splitlines(), after.splitlines()
    codes = opcodes(old, new)
    changes = sum(tag != "equal" for tag, *_ in codes)
    lines: list[DifferingLine] = []
    for tag, begin, end, other, other_end in codes if changes else ():
        if tag == "equal":
            is_first = not (begin or other)
            is_last = (end, other_end) == (len(old), len(new))
            lines += _equal_lines(new, other, other_end, is_first=is_first, is_last=is_last)
            continue
        removed, added = old[begin:end][:_MAX_LINES], new[other:other_end][:_MAX_LINES]
        compared = [differing_pieces(*pair) for pair in zip(removed, added, strict=False)]
        lines += _changed_lines("removed", removed, begin, compared)
        lines += _changed_lines("added", added, other, compared)
        if len(lines) >= _MAX_LINES:
            return [*lines, DifferingLine("rest", 0)], changes
    return lines, changes


def _equal_lines(
    lines: Sequence[str], begin: int, end: int, *, is_first: bool, is_last: bool
) -> Iterator[DifferingLine]:
    shown_to = begin if is_first else min(end, begin + _CONTEXT_LINES)
    shown_from = end if is_last else max(shown_to, end - _CONTEXT_LINES)
    for at in range(begin, shown_to):
        yield DifferingLine("same", at + 1, [DifferingPiece(lines[at], "same")])
    if shown_from > shown_to:
        yield DifferingLine("gap", shown_from - shown_to)
    for at in range(shown_from, end):
        yield DifferingLine("same", at + 1, [DifferingPiece(lines[at], "same")])


def _changed_lines(
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
