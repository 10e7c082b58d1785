"""Grapheme clusters, which readers see as one character each, and whether a text shows any."""

import unicodedata
from collections.abc import Set

import regex

# `\X` alone takes quadratic time for a row of flags.
_CLUSTER = regex.compile(r"\p{RI}{2}[\p{Grapheme_Extend}\u200d]*|\X")
# Letters that show nothing: platforms refuse messages of nothing else.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp", "Zs"})


def is_visible(text: str) -> bool:
    """Return whether a text shows anything to a reader."""
    if text[:1].isalnum() and text.isascii():
        return True
    return any(
        unicodedata.category(letter) not in _INVISIBLE
        and letter not in _FILLERS
        and not "\ufe00" <= letter <= "\ufe0f"  # variation selectors
        for letter in text
    )


def grapheme_starts(text: str, start: int, stop: int) -> Set[int]:
    """Return where grapheme clusters begin in a part of a text; its start is included."""
    return {cluster.start() for cluster in _CLUSTER.finditer(text, start, stop)}
