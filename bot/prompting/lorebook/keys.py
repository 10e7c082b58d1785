"""Find the keys of a lorebook in what was said: plain words, whole words, regular expressions."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import regex

from bot.prompting.lorebook.entries import Entry, Logic, Lorebook
from bot.prompting.text.words import find_word

_MAX_PATTERN_CHARS = 1000
_MAX_PATTERN_WEIGHT = 1000
_SECONDS_A_KEY = 0.05
_SECONDS_ALTOGETHER = 0.25  # for one prompt: a book may hold thousands of slow keys
_LITERAL = re.compile(r"/(.+)/([a-z]*)", re.DOTALL)
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\{\s*(\d+)[\d\s,]*\}|.", re.DOTALL)
_OTHER_RULES = re.compile(r"\(\?(?:#|[\w-]*[xV])")  # where brackets are not what they seem
_FLAGS = {"i": regex.IGNORECASE, "m": regex.MULTILINE, "s": regex.DOTALL, "g": 0, "u": 0, "y": 0}


@dataclass
class Patience:
    """What all regular expressions of a prompt may take; `slow` are those that took too long."""

    seconds: float = _SECONDS_ALTOGETHER
    slow: set[str] = field(default_factory=set)


class Keys:
    """The keys of one book, searched for one prompt."""

    def __init__(
        self,
        book: Lorebook,
        patience: Patience,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._patience = patience
        self._monotonic = monotonic
        self._lower: dict[str, str] = {}  # most keys are looked for in the same text

    def found(self, entry: Entry, text: str) -> str | None:
        """Tell which keys wake this entry, in words for the receipt; None if they do not."""
        first = next((key for key in entry.keys if self._holds(text, key, entry)), None)
        if first is None:
            return None
        if not entry.secondary_keys:
            return f"key {first!r}"
        if not self._secondary(entry, text):
            return None
        return f"key {first!r} with {entry.logic.replace('_', ' ')} of its secondary keys"

    def score(self, entry: Entry, text: str) -> int:
        """Count the keys found: in a group with scoring the best ones stay."""
        hits = sum(self._holds(text, key, entry) for key in entry.keys)
        more = [self._holds(text, key, entry) for key in entry.secondary_keys]
        match entry.logic:
            case Logic.AND_ANY:
                return hits + sum(more)
            case Logic.AND_ALL:
                return hits + (len(more) if all(more) else 0)
            case Logic.NOT_ALL | Logic.NOT_ANY:
                return hits

    def _secondary(self, entry: Entry, text: str) -> bool:
        holds = [self._holds(text, key, entry) for key in entry.secondary_keys]
        match entry.logic:
            case Logic.AND_ANY:
                return any(holds)
            case Logic.AND_ALL:
                return all(holds)
            case Logic.NOT_ANY:
                return not any(holds)
            case Logic.NOT_ALL:
                return not all(holds)

    def _holds(self, text: str, key: str, entry: Entry) -> bool:
        if is_regex(key):
            return self._matches(text, key)
        if not key.strip():
            return False
        sensitive = _first(entry.case_sensitive, self._book.case_sensitive)
        if not sensitive:
            key, text = key.lower(), self._lowered(text)
        whole = _first(entry.match_whole_words, self._book.match_whole_words)
        if not whole or " " in key.strip():  # SillyTavern looks for phrases as they are
            return key in text
        return find_word(key.strip(), text) is not None

    def _lowered(self, text: str) -> str:
        if text not in self._lower:
            self._lower[text] = text.lower()
        return self._lower[text]

    def _matches(self, text: str, key: str) -> bool:
        patience = self._patience
        if key in patience.slow or patience.seconds <= 0:
            patience.slow.add(key)
            return False
        pattern = compiled(key)
        if isinstance(pattern, str):
            return False
        begun = self._monotonic()
        try:
            timeout = min(_SECONDS_A_KEY, patience.seconds)
            return pattern.search(text, timeout=timeout) is not None
        except TimeoutError:
            patience.slow.add(key)
            return False
        finally:
            patience.seconds -= self._monotonic() - begun


def is_regex(key: str) -> bool:
    return len(key) > 2 and key[0] == "/" and _LITERAL.fullmatch(key) is not None


@lru_cache(maxsize=2048)
def compiled(key: str) -> regex.Pattern[str] | str:
    """Compile `/pattern/flags`; gives what is wrong with it, if something is."""
    literal = _LITERAL.fullmatch(key)
    if literal is None:
        return "it is not of the form /pattern/flags"
    pattern, letters = literal[1].replace("\\/", "/"), literal[2]
    if len(pattern) > _MAX_PATTERN_CHARS:
        return f"it is longer than {_MAX_PATTERN_CHARS} characters"
    if _OTHER_RULES.search(pattern):
        return "it has (?x), (?V1) or a comment, which no browser knows"
    if weight(pattern) > _MAX_PATTERN_WEIGHT:
        return "it repeats too much; count less in its braces"
    flags = regex.VERSION0
    for letter in letters:
        if letter not in _FLAGS:
            return f"it has the unknown flag {letter!r}"
        flags |= _FLAGS[letter]
    try:
        return regex.compile(pattern, flags)
    except (regex.error, RecursionError, OverflowError) as error:
        return f"it is no regular expression: {error}"


def weight(pattern: str) -> int:
    """About how long it becomes: the library writes `a{1000}` out, and `(a{9}){9}` too."""
    groups = [[0]]
    for piece in _PIECE.finditer(pattern):
        if piece[1]:
            groups[-1][-1] *= max(1, int(piece[1]))
        elif piece[0] == "(":
            groups.append([0])
        elif piece[0] == ")" and len(groups) > 1:
            whole = sum(groups.pop())
            groups[-1].append(max(1, whole))  # an empty one is written out as often
        else:
            groups[-1].append(1)
    return sum(map(sum, groups))


def _first(own: bool | None, books: bool) -> bool:
    return books if own is None else own


def joined(messages: Sequence[str], depth: int) -> str:
    """The newest `depth` messages as one text, newest first.

    A mark stands between them, so that no key matches across two messages.
    """
    newest = list(reversed(messages))[:depth]
    return "".join(f"\x01{message}\n" for message in newest)
