"""Compare two texts word by word, for people to look at."""

import re
from collections.abc import Iterator
from typing import Literal

from bot.console.answers.comparison import ComparisonBudget, opcodes
from bot.frozen_dataclass import frozen_dataclass

_MAX_WORDS = 20_000
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


@frozen_dataclass
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
