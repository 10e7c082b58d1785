"""Try a lorebook on a text: which entries it activates, and which keys stand where."""

from collections.abc import Iterator, Sequence

from bot.frozen_dataclass import frozen_dataclass
from bot.ports import TextTokenCounter
from bot.prompting.lorebook.entries import Lorebook, LoreEntry
from bot.prompting.lorebook.keys import KeyMatcher, RegexTimeBudget, compile_key, is_regex
from bot.prompting.lorebook.search import search_lorebook

_SECONDS_PER_KEY = 0.05


@frozen_dataclass
class TriedEntry:
    """An entry, and what a text does to it."""

    entry: LoreEntry
    activated: bool
    reason: str
    found: frozenset[str]
    """Its keys that stand in the text."""


@frozen_dataclass
class LorebookTrial:
    """What a lorebook would add to the prompt of a text."""

    entries: Sequence[TriedEntry]
    tokens: int
    marks: Sequence[tuple[int, int]]
    """Where keys stand in the text: begin and end, in their order, without overlaps."""


def try_lorebook(
    book: Lorebook, text: str, *, budget: int, count: TextTokenCounter
) -> LorebookTrial:
    """Return what a text activates, of which each line is a message and the last the newest.

    What depends on chance is taken to succeed.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    result = search_lorebook(book, lines, budget=budget, count=count, random_float=lambda: 0.0)
    matcher = KeyMatcher(book, RegexTimeBudget())
    searched = "\n".join(f"\x01{line}" for line in lines)
    entries = [
        TriedEntry(
            one.entry, one.activated, one.reason, frozenset(matcher.found(one.entry, searched))
        )
        for one in result.decisions
    ]
    keys = {key for one in entries for key in one.found}
    return LorebookTrial(entries, result.tokens, list(_without_overlaps(_places(keys, text))))


def _places(keys: set[str], text: str) -> Iterator[tuple[int, int]]:
    lowered = text.lower()
    searched = lowered if len(lowered) == len(text) else text
    for key in keys:
        pattern = compile_key(key) if is_regex(key) else None
        if pattern is not None and not isinstance(pattern, str):
            try:
                matches = list(pattern.finditer(text, timeout=_SECONDS_PER_KEY))
            except TimeoutError:
                continue
            yield from (match.span() for match in matches)
            continue
        wanted = key.strip() if searched is text else key.strip().lower()
        at = searched.find(wanted) if wanted else -1
        while at >= 0:
            yield at, at + len(wanted)
            at = searched.find(wanted, at + len(wanted))


def _without_overlaps(places: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield places in their order; of those that overlap, the first and longest."""
    end = 0
    for begin, its_end in sorted(places, key=lambda one: (one[0], -one[1])):
        if begin >= end and its_end > begin:
            yield begin, its_end
            end = its_end
