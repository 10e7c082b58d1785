"""Find visible characters, and grapheme clusters, which readers see as single characters."""

import unicodedata
from collections.abc import Set

import regex

# `\X` alone takes quadratic time for a row of flags.
_GRAPHEME_CLUSTER = regex.compile(r"\p{RI}{2}[\p{Grapheme_Extend}\u200d]*|\X")
# Letters that look blank; platforms refuse messages that contain nothing else.
_FILLER_CHARACTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp", "Zs"})


def is_visible(text: str) -> bool:
    """Return whether a text contains any visible character."""
    if text[:1].isalnum() and text.isascii():
        return True
    return any(
        unicodedata.category(character) not in _INVISIBLE_CATEGORIES
        and character not in _FILLER_CHARACTERS
        and not "\ufe00" <= character <= "\ufe0f"  # variation selectors
        for character in text
    )


def grapheme_starts(text: str, start: int, stop: int) -> Set[int]:
    """Return the positions from `start` to `stop` at which grapheme clusters start."""
    return {cluster.start() for cluster in _GRAPHEME_CLUSTER.finditer(text, start, stop)}
