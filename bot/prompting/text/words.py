"""Find a word in a text where it stands alone, also in scripts that put no space between words."""

import regex

# Korean hangs its particles onto a word without a space, so there every place is a border, too.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}ーｰ\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
_JOINS = regex.compile(rf"(?![{_UNSPACED}])[\p{{L}}\p{{M}}\p{{N}}_]")


def find_word(word: str, text: str) -> int | None:
    """Where the word stands first without a letter, a digit or `_` going on with it; None: nowhere.

    Case counts, and whatever else may differ: fold both before.
    """
    place = text.find(word) if word else -1
    while place >= 0:
        end = place + len(word)
        if not (_go_on(text[place - 1 : place], word[0]) or _go_on(word[-1], text[end : end + 1])):
            return place
        place = text.find(word, place + 1)
    return None


def _go_on(left: str, right: str) -> bool:
    """Whether two signs beside each other belong to one word."""
    return bool(_JOINS.match(left) and _JOINS.match(right))
