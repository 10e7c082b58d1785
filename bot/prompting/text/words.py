"""Find whole words in texts, even in scripts without spaces between words."""

from itertools import pairwise

import regex

# Korean appends particles to words without a space, so every position is a word boundary there.
_SCRIPTS_WITHOUT_SPACES = (
    r"\p{Han}\p{Hiragana}\p{Katakana}ーｰ\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
_WORD = regex.compile(rf"[\p{{L}}\p{{M}}\p{{N}}_{_SCRIPTS_WITHOUT_SPACES}]+")
_HOMOGENEOUS_RUN = regex.compile(rf"[{_SCRIPTS_WITHOUT_SPACES}]+|[^{_SCRIPTS_WITHOUT_SPACES}]+")
_UNSPACED_LETTER = regex.compile(rf"[{_SCRIPTS_WITHOUT_SPACES}]")
_SPACED_LETTER = regex.compile(rf"(?![{_SCRIPTS_WITHOUT_SPACES}])[\p{{L}}\p{{M}}\p{{N}}_]")


def find_word(word: str, text: str) -> int | None:
    """Return the first position of a whole word in a text (case-sensitive), or None."""
    index = text.find(word) if word else -1
    while index >= 0:
        end = index + len(word)
        if not (
            _are_in_same_word(text[index - 1 : index], word[0])
            or _are_in_same_word(word[-1], text[end : end + 1])
        ):
            return index
        index = text.find(word, index + 1)
    return None


def split_words(text: str) -> list[str]:
    """Return the case-folded words of a text; in scripts without spaces, letters and pairs."""
    words: list[str] = []
    for run in _WORD.findall(text.casefold(), concurrent=False):
        if run.isascii():  # as most are; the next pattern takes four times as long
            words.append(run)
            continue
        for word in _HOMOGENEOUS_RUN.findall(run):
            if _UNSPACED_LETTER.match(word):
                words += [*word, *map("".join, pairwise(word))]
            else:
                words.append(word)
    return words


def _are_in_same_word(left: str, right: str) -> bool:
    return bool(_SPACED_LETTER.match(left) and _SPACED_LETTER.match(right))
