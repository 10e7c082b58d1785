"""Grapheme clusters, which readers see as single characters, and visibility of texts."""

import unicodedata
from collections.abc import Set

import regex

# `\X` alone takes quadratic time for a row of flags.
_CLUSTER = regex.compile(r"\p{RI}{2}[\p{Grapheme_Extend}\u200d]*|\X")
# Letters that show nothing: platforms refuse messages of nothing else.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp", "Zs"})


def is_visible(text: str) -> bool:
    """Return whether readers can see anything in a text."""
    if text[:1].isalnum() and text.isascii():
        return True
    return any(
        unicodedata.category(letter) not in _INVISIBLE
        and letter not in _FILLERS
        and not "\ufe00" <= letter <= "\ufe0f"  # variation selectors
        for letter in text
    )


def grapheme_starts(text: str, start: int, stop: int) -> Set[int]:
    """Return the starts of the grapheme clusters in a range of a text, including its start."""
    return {cluster.start() for cluster in _CLUSTER.finditer(text, start, stop)}
