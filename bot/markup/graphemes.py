"""Tell whether a cut would split a grapheme cluster: what readers see as one character."""

import unicodedata

_ZERO_WIDTH_JOINER = "\u200d"
# Letters by category that show nothing: platforms refuse messages made of them alone.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp", "Zs"})
_VIRAMA = 9  # the combining class of the sign that joins two Indic letters


def is_visible(text: str) -> bool:
    """Return whether a text has anything that readers can see."""
    if text[:1].isalnum() and text.isascii():
        return True
    return any(
        unicodedata.category(letter) not in _INVISIBLE
        and letter not in _FILLERS
        and not "\ufe00" <= letter <= "\ufe0f"  # variation selectors
        for letter in text
    )


def is_inside_grapheme(text: str, position: int, since: int = 0) -> bool:
    """Return whether a cut before `text[position]` would split a grapheme cluster.

    Follows Unicode annex 29 for what occurs in chats: accents, joined emoji, skin tones, flags,
    Korean syllables in parts, Indic conjuncts.

    Args:
        text: the text.
        position: the cut.
        since: a position at which a cluster is known to begin.
    """
    if not 0 < position < len(text):
        return False
    before, after = text[position - 1], text[position]
    if before < "\u0300" and after < "\u0300":
        return before == "\r" and after == "\n"
    return (
        _extends(after)
        or before == _ZERO_WIDTH_JOINER
        or (unicodedata.combining(before) == _VIRAMA and after.isalpha())
        or (_is_jamo_tail(after) and _is_korean(before))
        or (_is_flag_half(after) and _flag_halves_before(text, position, since) % 2 == 1)
    )


def _extends(letter: str) -> bool:
    return (
        unicodedata.category(letter) in {"Mn", "Me", "Mc"}
        or letter in {_ZERO_WIDTH_JOINER, "\u200c"}
        or "\U0001f3fb" <= letter <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= letter <= "\U000e007f"  # the tags of a region's flag
    )


def _is_flag_half(letter: str) -> bool:
    return "\U0001f1e6" <= letter <= "\U0001f1ff"


def _flag_halves_before(text: str, position: int, since: int) -> int:
    start = position
    while start > since and _is_flag_half(text[start - 1]):
        start -= 1
    return position - start


def _is_jamo_tail(letter: str) -> bool:
    return "\u1160" <= letter <= "\u11ff" or "\ud7b0" <= letter <= "\ud7fb"


def _is_korean(letter: str) -> bool:
    return "\u1100" <= letter <= "\u11ff" or "\ua960" <= letter <= "\ud7fb"
