"""Compare texts by words and lines, as `difflib` does, in bounded time."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

from bot.value_class import value_class

_MAX_COMPARED_PAIRS = 2_000_000  # of differing words or lines; the worst texts take a second
_WORD_PATTERN = re.compile(r"\s+|\w+|[^\w\s]")
_CONTEXT_LINES = 3
_MAX_SHOWN_LINES = 2000
Opcodes: TypeAlias = Sequence[tuple[str, int, int, int, int]]
"""`difflib`'s opcodes: a tag, then start and end in the first and in the second sequence."""


def find_edits(before: Sequence[str], after: Sequence[str]) -> Opcodes:
    """Return the edits between two sequences, or a single edit if they differ too much."""
    opcodes = _find_edits_if_similar(before, after)
    return [("replace", 0, len(before), 0, len(after))] if opcodes is None else opcodes


def _find_edits_if_similar(before: Sequence[str], after: Sequence[str]) -> Opcodes | None:
    shorter_length = min(len(before), len(after))
    head = next((at for at in range(shorter_length) if before[at] != after[at]), shorter_length)
    max_tail = shorter_length - head
    tail = next((at for at in range(max_tail) if before[-1 - at] != after[-1 - at]), max_tail)
    old_middle, new_middle = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(old_middle) * len(new_middle) > _MAX_COMPARED_PAIRS:
        return None
    inner_opcodes = SequenceMatcher(None, old_middle, new_middle).get_opcodes()
    opcodes = [
        (tag, begin + head, end + head, new_begin + head, new_end + head)
        for tag, begin, end, new_begin, new_end in inner_opcodes
    ]
    if head:
        opcodes.insert(0, ("equal", 0, head, 0, head))
    if tail:
        opcodes.append(("equal", len(before) - tail, len(before), len(after) - tail, len(after)))
    return opcodes


@value_class
class DifferingPiece:
    """Words or a line, and whether they are in both texts or only in one of them."""

    text: str
    change: Literal["same", "removed", "added"]


def compare_texts(before: str, after: str) -> list[DifferingPiece]:
    """Merge two texts into one sequence of shared, removed and added pieces (words or lines)."""
    old, new = _WORD_PATTERN.findall(before), _WORD_PATTERN.findall(after)
    if (opcodes := _find_edits_if_similar(old, new)) is None:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        opcodes = find_edits(old, new)
    pieces = []
    for tag, begin, end, new_begin, new_end in opcodes:
        removed_text, added_text = "".join(old[begin:end]), "".join(new[new_begin:new_end])
        if tag == "equal":
            pieces.append(DifferingPiece(removed_text, "same"))
            continue
        if removed_text:
            pieces.append(DifferingPiece(removed_text, "removed"))
        if added_text:
            pieces.append(DifferingPiece(added_text, "added"))
    return pieces


def compare_lines(before: str, after: str) -> tuple[Sequence[DifferingPiece], int]:
    """Return the first differing lines with some context, and the number of differences."""
    old_lines, new_lines = before.splitlines(), after.splitlines()
    opcodes = find_edits(old_lines, new_lines)
    lines: list[DifferingPiece] = []
    for tag, begin, end, new_begin, new_end in opcodes:
        same_lines = old_lines[begin:end] if tag == "equal" else []
        if len(same_lines) > 2 * _CONTEXT_LINES:
            same_lines = [*same_lines[:_CONTEXT_LINES], "…", *same_lines[-_CONTEXT_LINES:]]
        lines += [DifferingPiece(one, "same") for one in same_lines]
        if tag != "equal":
            lines += [DifferingPiece(one, "removed") for one in old_lines[begin:end]]
            lines += [DifferingPiece(one, "added") for one in new_lines[new_begin:new_end]]
        if len(lines) > _MAX_SHOWN_LINES:
            lines = [*lines[:_MAX_SHOWN_LINES], DifferingPiece("…", "same")]
            break
    change_count = sum(tag != "equal" for tag, *_ in opcodes)
    return lines if change_count else [], change_count
