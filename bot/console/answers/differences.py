"""Compare two texts word by word, for people to look at."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_MAX_WORDS = 20_000
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class DifferingPiece:
    """A piece of both texts, or of one of them."""

    text: str
    change: Literal["same", "removed", "added"]


def differing_pieces(before: str, after: str) -> list[DifferingPiece]:
    """Return what both texts share, and what only one of them has, in the order of reading.

    Very long texts are compared line by line.
    """
    words = [_WORD.findall(text) for text in (before, after)]
    if sum(map(len, words)) > _MAX_WORDS:
        words = [text.splitlines(keepends=True) for text in (before, after)]
    return list(_pieces(*words))


def _pieces(before: list[str], after: list[str]) -> Iterator[DifferingPiece]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(before) > 2000)
    for tag, old_begin, old_end, new_begin, new_end in matcher.get_opcodes():
        if tag == "equal":
            yield DifferingPiece("".join(before[old_begin:old_end]), "same")
            continue
        if old_end > old_begin:
            yield DifferingPiece("".join(before[old_begin:old_end]), "removed")
        if new_end > new_begin:
            yield DifferingPiece("".join(after[new_begin:new_end]), "added")
