"""Find the keys of a large lorebook that occur in a text, all of them in one pass over it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import ahocorasick
from typing_extensions import override

from bot.prompting.lorebook.entries import BookIndex, Lorebook, LoreEntry
from bot.prompting.lorebook.keys import is_case_sensitive, is_regex

_MIN_KEYS = 200  # below, searching for one key after the other is as fast
_SEPARATORS = ("\n", "\x01")  # a key with one could match across two messages


class KeyIndex(BookIndex):
    """The plain keys of a book; entries with other keys are always searched."""

    def __init__(self, entries: Iterable[LoreEntry], *, case_sensitive: bool) -> None:
        unindexed: set[str] = set()
        with_macros: set[str] = set()
        sensitive: dict[str, list[str]] = defaultdict(list)
        insensitive: dict[str, list[str]] = defaultdict(list)
        for entry in entries:
            if has_macros(entry):
                with_macros.add(entry.uid)
            if entry.constant or entry.uid in with_macros or not all(map(_is_plain, entry.keys)):
                unindexed.add(entry.uid)
                continue
            for key in filter(None, (key.strip() for key in entry.keys)):
                if is_case_sensitive(entry, default=case_sensitive):
                    sensitive[key].append(entry.uid)
                else:
                    insensitive[key.lower()].append(entry.uid)
        super().__init__(frozenset(unindexed), frozenset(with_macros))
        self._sensitive = _KeySet(sensitive)
        self._insensitive = _KeySet(insensitive)

    @override
    def find(self, text: str) -> set[str]:
        return self._sensitive.find(text) | self._insensitive.find(text.lower())


class _KeySet:
    """An automaton over keys, each with the uids of its entries."""

    def __init__(self, uids_of_keys: Mapping[str, Sequence[str]]) -> None:
        self._uids = tuple(uids_of_keys.values())
        self._automaton = ahocorasick.Automaton()
        for number, key in enumerate(uids_of_keys):
            self._automaton.add_word(key, number)
        self._automaton.make_automaton()

    def find(self, text: str) -> set[str]:
        if not self._uids:
            return set()
        numbers = {number for _, number in self._automaton.iter(text)}
        return {uid for number in numbers for uid in self._uids[number]}


def with_key_index(book: Lorebook) -> Lorebook:
    """Return the book with an index if it is large enough for one to be worth it."""
    if sum(len(entry.keys) for entry in book.entries) < _MIN_KEYS:
        return book
    index = KeyIndex(book.entries, case_sensitive=book.case_sensitive)
    return replace(book, index=index)


def has_macros(entry: LoreEntry) -> bool:
    """Whether a text of the entry may hold a macro."""
    texts = (entry.content, *entry.keys, *entry.secondary_keys)
    return any("{{" in text or "<" in text for text in texts)


def _is_plain(key: str) -> bool:
    return not (is_regex(key) or any(one in key for one in _SEPARATORS))
