"""Lorebook entries (SillyTavern's World Info), the matching of their keys, and search results."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import regex

from bot.chat.prompt import Role
from bot.prompting.text.words import find_word
from bot.texts.text import StoredPattern, Text, marked, translatable
from bot.value_class import value_class

_MAX_PATTERN_CHARS = 1000
_MAX_COMPILED_SIZE = 1000
# The library prepares long literals in quadratic time, which its timeout does not interrupt.
_MAX_ALTERNATIVE_LENGTH = 300
_MAX_SEARCH_SECONDS_PER_KEY = 0.05
_MAX_SEARCH_SECONDS_PER_PROMPT = 0.25  # a book may contain thousands of slow keys
_MAX_QUOTED_CHARS = 60
_KEY_REASON = StoredPattern(marked("key {key}"))
_KEY_IN_LINE_REASON = StoredPattern(marked("key {key} in “{line}”"))
_SECONDARY_KEYS_REASON = StoredPattern(marked("{found}; secondary keys: {logic}"))
# As in SillyTavern, a text with more slashes, such as a path, is not a regular expression.
_REGEX_LITERAL = re.compile(r"/((?:[^/\\]|\\.)+)/([gimsuy]*)", re.DOTALL)
_REGEX_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\{\s*(\d+)[\d\s,]*\}|.", re.DOTALL)
# In this syntax, brackets may be plain text, so that a pattern's compiled size cannot be computed.
_UNSUPPORTED_SYNTAX = re.compile(r"\(\?(?:#|[\w-]*[xV])")
_SYNTAX_REPLACEMENTS = (("\\/", "/"), ("[^]", r"[\s\S]"), ("\\k<", "\\g<"))
_REGEX_FLAGS = {
    "i": regex.IGNORECASE,
    "m": regex.MULTILINE,
    "s": regex.DOTALL,
    "g": 0,
    "u": 0,
    "y": 0,
}


class KeyLogic(StrEnum):
    """How secondary keys affect a match, in the order of SillyTavern's numbers for them."""

    AND_ANY = "and_any"
    NOT_ALL = "not_all"
    NOT_ANY = "not_any"
    AND_ALL = "and_all"


class EntryPosition(StrEnum):
    BEFORE_CHAR = "before_char"
    AFTER_CHAR = "after_char"
    NOTE_TOP = "note_top"
    """At the top of the author's note, shortly before the newest message."""
    NOTE_BOTTOM = "note_bottom"
    AT_DEPTH = "at_depth"
    """Before the last `depth` messages."""
    EXAMPLES_TOP = "examples_top"
    EXAMPLES_BOTTOM = "examples_bottom"
    OUTLET = "outlet"
    """At the macro `{{outlet::name}}`."""


@value_class
class LoreEntry:
    """A text in a lorebook, and the conditions for inserting it."""

    uid: str
    """An id that is unique in its book."""
    content: str
    name: str = ""
    """A name for people, which the model does not see."""
    keys: tuple[str, ...] = ()
    secondary_keys: tuple[str, ...] = ()
    """Keys that must also match, according to `logic`; empty if the entry is not selective."""
    logic: KeyLogic = KeyLogic.AND_ANY
    enabled: bool = True
    constant: bool = False
    vectorized: bool = False
    """Whether SillyTavern also finds the entry by vector similarity."""
    never_active: bool = False
    """Whether the entry has the decorator `@@dont_activate` of V3 cards."""
    order: int = 100
    """Entries with higher orders come later at the same position, but use the budget first."""
    position: EntryPosition = EntryPosition.BEFORE_CHAR
    depth: int = 4
    outlet: str = ""
    role: Role = "system"
    probability: float = 100
    ignores_budget: bool = False
    exclude_recursion: bool = False
    """Whether the texts of other entries cannot activate this entry."""
    prevent_recursion: bool = False
    """Whether this entry's text cannot activate other entries."""
    delay_until_recursion: int = 0
    """The recursion level before which the entry cannot be activated, or 0."""
    scan_depth: int | None = None
    """How many messages are searched for its keys; None: the book's setting."""
    case_sensitive: bool | None = None
    match_whole_words: bool | None = None
    """Whether keys match only whole words; None, here and above, means the book's setting."""
    sticky: int = 0
    """The number of messages for which the entry stays active once it is activated."""
    cooldown: int = 0
    """The number of messages after `sticky` for which the entry cannot be activated again."""
    delay: int = 0
    """How many messages a conversation must have before the entry can be activated."""
    groups: tuple[str, ...] = ()
    """Inclusion groups: only one entry of each group is activated."""
    group_weight: float = 100
    group_override: bool = False
    """Whether the entry with the highest order wins in its groups, instead of a random one."""

    @property
    def label(self) -> str:
        return self.name or ", ".join(self.keys[:3]) or self.uid


@value_class
class Lorebook:
    """The entries of a file or card, with its search settings."""

    entries: tuple[LoreEntry, ...]
    name: str = ""
    scan_depth: int = 2
    token_budget: int | None = None
    """The token budget for all entries; None: a quarter of the prompt's budget."""
    recursive: bool = False
    max_recursion_steps: int = 10
    case_sensitive: bool = False
    match_whole_words: bool = True
    problems: tuple[Text, ...] = field(default=(), compare=False, repr=False)


@value_class
class EntryDecision:
    entry: LoreEntry
    is_activated: bool
    reason: str
    is_over_budget: bool = False


@value_class
class LoreResult:
    entries: tuple[LoreEntry, ...]
    """The active entries, in insertion order."""
    decisions: tuple[EntryDecision, ...]
    """The decision about each entry of the book, in the book's order."""
    reasons: Mapping[str, str]
    """The reason why each entry is active or inactive, by uid."""
    tokens: int
    activation_turns: Mapping[str, int]
    """The message count at which each sticky or cooling-down entry was activated, by uid."""


@dataclass
class RegexTimeBudget:
    """The CPU time that all regular expressions of a prompt together may use."""

    seconds_left: float = _MAX_SEARCH_SECONDS_PER_PROMPT
    slow_keys: set[str] = field(default_factory=set)
    """Keys that were skipped because they took too long."""


class KeyMatcher:
    def __init__(
        self,
        book: Lorebook,
        time_budget: RegexTimeBudget,
        *,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._book = book
        self._time_budget = time_budget
        self._cpu_clock = cpu_clock
        self._lowercase_texts: dict[str, str] = {}  # most keys are searched in the same text

    def describe_match(self, entry: LoreEntry, text: str) -> str | None:
        """Describe, for receipts, which key of an entry matches a text; return None if none do."""
        found_key = next((key for key in entry.keys if self._contains_key(text, key, entry)), None)
        if found_key is None:
            return None
        lines = (line for line in text.split("\n") if self._contains_key(line, found_key, entry))
        reason = _KEY_REASON.with_values(key=repr(found_key))
        if line := next(lines, ""):  # "" if a pattern spans several lines
            quote = _shorten_around_key(" ".join(line.removeprefix("\x01").split()), found_key)
            reason = _KEY_IN_LINE_REASON.with_values(key=repr(found_key), line=quote)
        if not entry.secondary_keys:
            return reason
        if not self._secondary_keys_match(entry, text):
            return None
        return _SECONDARY_KEYS_REASON.with_values(found=reason, logic=entry.logic.replace("_", " "))

    def find_matching_keys(self, entry: LoreEntry, text: str) -> list[str]:
        """Return the entry's keys, primary and secondary, that a text contains."""
        keys = (*entry.keys, *entry.secondary_keys)
        return [key for key in dict.fromkeys(keys) if self._contains_key(text, key, entry)]

    def _secondary_keys_match(self, entry: LoreEntry, text: str) -> bool:
        key_matches = (self._contains_key(text, key, entry) for key in entry.secondary_keys)
        needs_any_match = entry.logic in {KeyLogic.AND_ANY, KeyLogic.NOT_ANY}
        is_negated = entry.logic in {KeyLogic.NOT_ANY, KeyLogic.NOT_ALL}
        return (any(key_matches) if needs_any_match else all(key_matches)) != is_negated

    def _contains_key(self, text: str, key: str, entry: LoreEntry) -> bool:
        if is_regex(key) and not isinstance(pattern := compile_key(key), str):
            return self._matches_pattern(text, key, pattern)
        key = key.strip()
        if not key:
            return False
        book = self._book
        if not (book.case_sensitive if entry.case_sensitive is None else entry.case_sensitive):
            key, text = key.lower(), self._get_lowercase_text(text)
        match_whole_words = (
            book.match_whole_words if entry.match_whole_words is None else entry.match_whole_words
        )
        # SillyTavern matches phrases as substrings.
        if not match_whole_words or len(key.split()) > 1:
            return key in text
        return find_word(key, text) is not None

    def _get_lowercase_text(self, text: str) -> str:
        if text not in self._lowercase_texts:
            self._lowercase_texts[text] = text.lower()
        return self._lowercase_texts[text]

    def _matches_pattern(self, text: str, key: str, pattern: regex.Pattern[str]) -> bool:
        time_budget = self._time_budget
        if key in time_budget.slow_keys or time_budget.seconds_left <= 0:
            time_budget.slow_keys.add(key)
            return False
        started_at = self._cpu_clock()
        try:
            timeout_seconds = min(_MAX_SEARCH_SECONDS_PER_KEY, time_budget.seconds_left)
            return pattern.search(text, timeout=timeout_seconds) is not None
        except TimeoutError:
            time_budget.slow_keys.add(key)
            return False
        finally:
            time_budget.seconds_left -= self._cpu_clock() - started_at


def is_regex(key: str) -> bool:
    return len(key) > 2 and key[0] == "/" and _REGEX_LITERAL.fullmatch(key) is not None


@lru_cache(maxsize=2048)
def compile_key(key: str) -> regex.Pattern[str] | Text:
    """Compile a key of the form `/pattern/flags`, or return what is wrong with it."""
    literal_match = _REGEX_LITERAL.fullmatch(key)
    if literal_match is None:
        return translatable("it is not of the form {form}", form="/pattern/flags")
    pattern, flag_letters = literal_match[1], literal_match[2]
    for javascript_syntax, python_syntax in _SYNTAX_REPLACEMENTS:
        pattern = pattern.replace(javascript_syntax, python_syntax)
    if len(pattern) > _MAX_PATTERN_CHARS:
        return translatable("it is longer than {limit} characters", limit=_MAX_PATTERN_CHARS)
    if _UNSUPPORTED_SYNTAX.search(pattern):
        return translatable("it has (?x), (?V1) or a comment, which JavaScript does not support")
    if estimate_compiled_size(pattern) > _MAX_COMPILED_SIZE:
        return translatable("its repetition counts are too high; lower the numbers in braces")
    if _measure_longest_alternative(pattern) > _MAX_ALTERNATIVE_LENGTH:
        return translatable(
            "it has more than {limit} characters between two bars (|)",
            limit=_MAX_ALTERNATIVE_LENGTH,
        )
    flags = regex.VERSION0
    for letter in flag_letters:
        flags |= _REGEX_FLAGS[letter]
    try:
        return regex.compile(pattern, flags)
    except (regex.error, ValueError, RecursionError, OverflowError) as error:
        return translatable("it is not a regular expression: {error}", error=str(error))


def estimate_compiled_size(pattern: str) -> int:
    """Estimate a pattern's compiled size: `regex` unrolls `a{1000}` and even `(a{9}){9}`."""
    groups = [[0]]
    for token in _REGEX_TOKEN.finditer(pattern):
        if token[1]:
            groups[-1][-1] *= max(1, int(token[1]))
        elif token[0] == "(":
            groups.append([0])
        elif token[0] == ")" and len(groups) > 1:
            group_size = sum(groups.pop())
            groups[-1].append(max(1, group_size))  # an empty group is unrolled, too
        else:
            groups[-1].append(1)
    return sum(map(sum, groups))


def _measure_longest_alternative(pattern: str) -> int:
    """Count the tokens in the longest alternative, which limits the length of its literals."""
    alternative_lengths = [0]
    for token in _REGEX_TOKEN.finditer(pattern):
        if token[0] == "|":
            alternative_lengths.append(0)
        else:
            alternative_lengths[-1] += 1
    return max(alternative_lengths)


def _shorten_around_key(line: str, key: str) -> str:
    if len(line) <= _MAX_QUOTED_CHARS:
        return line
    key_position = max(0, line.lower().find(key.strip().lower()))
    begin = max(0, min(key_position - _MAX_QUOTED_CHARS // 3, len(line) - _MAX_QUOTED_CHARS))
    end = begin + _MAX_QUOTED_CHARS
    return f"{'… ' if begin else ''}{line[begin:end]}{' …' if end < len(line) else ''}"


def has_macros(entry: LoreEntry) -> bool:
    texts = (entry.content, *entry.keys, *entry.secondary_keys)
    return any("{{" in text or "<" in text for text in texts)
