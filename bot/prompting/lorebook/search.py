"""Find the lorebook entries that a conversation activates."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bot.ports import TextTokenCounter
from bot.prompting.lorebook.entries import (
    EntryDecision,
    KeyMatcher,
    Lorebook,
    LoreEntry,
    LoreResult,
    RegexTimeBudget,
    compile_key,
    has_macros,
    is_regex,
)
from bot.texts.text import StoredPattern, marked
from bot.value_class import value_class

_TOKEN_COUNT_BATCH_SIZE = 64
_TRIAL_SECONDS_PER_KEY = 0.05  # of CPU time
KEYS_NOT_FOUND_REASON = marked("none of its keys were found")
_DELAY_REASON = StoredPattern(marked("it waits until there are {messages} messages (delay)"))
_COOLDOWN_REASON = StoredPattern(marked("it is on cooldown until there are {messages} messages"))
_PROBABILITY_REASON = StoredPattern(
    marked("it was skipped by chance (its probability is {percent} %)")
)
_GROUP_REASON = StoredPattern(marked("another entry of its group {group} was chosen: {label}"))
_OVER_BUDGET_REASON = StoredPattern(marked("over the budget of {tokens} tokens"))


class LorebookSearch:
    """Finds the entries that a prompt's messages activate, and why. Call `run` only once.

    The messages (oldest first, including the newest) have the form `Alice: hello`. Their number is
    the clock for sticky entries, cooldowns, and delays. `budget` limits the tokens of all entries,
    unless the book's own limit is lower. `draw_float` returns a number in [0, 1).
    `activation_turns` comes from the `LoreResult` for the previous prompt. `expand` expands macros.
    """

    def __init__(
        self,
        book: Lorebook,
        messages: Sequence[str],
        *,
        budget: int,
        counter: TextTokenCounter,
        draw_float: Callable[[], float],
        activation_turns: Mapping[str, int] | None = None,
        expand: Callable[[str], str] = str,
        time_budget: RegexTimeBudget | None = None,
    ) -> None:
        entries = (_expand_keys(one, expand) if has_macros(one) else one for one in book.entries)
        book = replace(book, entries=tuple(entries))
        self._book = book
        self._messages = messages
        self._budget = budget if book.token_budget is None else min(budget, book.token_budget)
        self._count_tokens = counter
        self._draw_float = draw_float
        self._expand = expand
        self._activation_turns: dict[str, int] = {}
        self._sticky_entry_ids: set[str] = set()
        self._cooldown_ends: dict[str, int] = {}
        for entry in book.entries:
            self._resume_effect(entry, (activation_turns or {}).get(entry.uid))
        # Sticky entries first, then by order, because the first entries get the budget.
        self._entries = sorted(
            book.entries, key=lambda entry: (entry.uid not in self._sticky_entry_ids, -entry.order)
        )
        recursion_levels = {entry.delay_until_recursion for entry in book.entries} - {0}
        self._unreached_levels = sorted(recursion_levels)  # recursion levels not reached yet
        self._recursion_level = self._unreached_levels.pop(0) if self._unreached_levels else 0
        self._time_budget = time_budget or RegexTimeBudget()
        self._key_matcher = KeyMatcher(book, self._time_budget)
        self._activated_entries: dict[str, LoreEntry] = {}
        self._reasons: dict[str, str] = {}
        self._rejected_entry_ids: set[str] = set()
        self._over_budget_entry_ids: set[str] = set()
        self._recursion_texts: list[str] = []
        self._scanned_texts: dict[tuple[int, int], str] = {}  # by depth and recursion text count
        self._is_budget_exceeded = False
        self._tokens = 0

    def run(self) -> LoreResult:
        for step in range(self._book.max_recursion_steps + 1):
            new_entries = self._activate(self._find_triggered_entries(is_recursion=step > 0))
            if not self._should_search_again(new_entries):
                break
        ordered_entries = sorted(self._activated_entries.values(), key=lambda entry: entry.order)
        decisions = tuple(
            EntryDecision(
                entry,
                entry.uid in self._activated_entries,
                self._reasons[entry.uid],
                is_over_budget=entry.uid in self._over_budget_entry_ids,
            )
            for entry in self._book.entries
        )
        return LoreResult(
            tuple(ordered_entries), decisions, self._reasons, self._tokens, self._activation_turns
        )

    def _resume_effect(self, entry: LoreEntry, activation_turn: int | None) -> None:
        """Continue an entry's sticky or cooldown time if the message that started it exists."""
        if activation_turn is None or activation_turn >= len(self._messages):
            return
        sticky_end = activation_turn + entry.sticky
        if len(self._messages) < sticky_end:
            self._sticky_entry_ids.add(entry.uid)
        elif len(self._messages) < sticky_end + entry.cooldown:
            self._cooldown_ends[entry.uid] = sticky_end + entry.cooldown
        else:
            return
        self._activation_turns[entry.uid] = activation_turn

    def _find_triggered_entries(self, *, is_recursion: bool) -> list[LoreEntry]:
        triggered_entries = []
        for entry in self._entries:
            if entry.uid in self._activated_entries or entry.uid in self._rejected_entry_ids:
                continue
            blocking_reason = self._find_blocking_reason(entry, is_recursion=is_recursion)
            reason = None if blocking_reason else self._find_trigger_reason(entry)
            if reason is None:
                self._reasons[entry.uid] = blocking_reason or self._explain_unmatched_keys(entry)
            else:
                self._reasons[entry.uid] = reason
                triggered_entries.append(entry)
        return triggered_entries

    def _find_blocking_reason(self, entry: LoreEntry, *, is_recursion: bool) -> str | None:
        message_count = len(self._messages)
        if not entry.enabled:
            return marked("it is disabled")
        if message_count < entry.delay:
            return _DELAY_REASON.with_values(messages=entry.delay)
        if entry.uid in self._sticky_entry_ids:
            return None
        if entry.uid in self._cooldown_ends:
            return _COOLDOWN_REASON.with_values(messages=self._cooldown_ends[entry.uid])
        required_level = entry.delay_until_recursion
        if required_level and (not is_recursion or required_level > self._recursion_level):
            return marked("it waits for another entry to be activated (recursion)")
        if is_recursion and entry.exclude_recursion:
            return self._reasons[entry.uid]
        return (
            marked("its author switched it off (@@dont_activate)") if entry.never_active else None
        )

    def _find_trigger_reason(self, entry: LoreEntry) -> str | None:
        if entry.constant:
            return marked("it is always active (constant)")
        if entry.uid in self._sticky_entry_ids:
            return marked("it is sticky")
        return self._key_matcher.describe_match(entry, self._get_scanned_text(entry))

    def _get_scanned_text(self, entry: LoreEntry) -> str:
        depth = self._book.scan_depth if entry.scan_depth is None else entry.scan_depth
        text_count = len(self._recursion_texts)
        if (depth, text_count) not in self._scanned_texts:  # most entries share a text
            # Newest first. Separators keep keys from matching across messages.
            texts = [*list(reversed(self._messages))[:depth], *self._recursion_texts]
            self._scanned_texts[depth, text_count] = "".join(f"\x01{text}\n" for text in texts)
        return self._scanned_texts[depth, text_count]

    def _explain_unmatched_keys(self, entry: LoreEntry) -> str:
        slow_keys = self._time_budget.slow_keys
        if slow_keys and not slow_keys.isdisjoint((*entry.keys, *entry.secondary_keys)):
            return marked("its regular expression took too long and was skipped")
        return KEYS_NOT_FOUND_REASON if entry.keys else marked("it has no keys")

    def _activate(self, triggered_entries: Sequence[LoreEntry]) -> list[LoreEntry]:
        """Activate the entries that win their groups, pass their probability, and fit the budget.

        Return the activated entries.
        """
        # Expand macros only now, so that those of other entries set no variables.
        triggered_entries = [
            replace(entry, content=self._expand(entry.content)) if has_macros(entry) else entry
            for entry in triggered_entries
        ]
        loss_reasons = _explain_entries_lost_in_groups(
            triggered_entries,
            list(self._activated_entries.values()),
            sticky_entry_ids=frozenset(self._sticky_entry_ids),
            draw_float=self._draw_float,
        )
        new_entries = []
        for entry, tokens in self._add_token_counts(triggered_entries):
            rejection_reason = (
                loss_reasons.get(entry.uid)
                or self._find_probability_reason(entry)
                or self._find_budget_reason(entry, tokens)
            )
            if rejection_reason:
                self._rejected_entry_ids.add(entry.uid)
                self._reasons[entry.uid] = rejection_reason
                continue
            self._activated_entries[entry.uid] = entry
            self._tokens += tokens
            if entry.sticky or entry.cooldown:
                self._activation_turns.setdefault(entry.uid, len(self._messages))
            new_entries.append(entry)
        return new_entries

    def _add_token_counts(self, entries: Sequence[LoreEntry]) -> Iterator[tuple[LoreEntry, int]]:
        """Yield entries with their token counts, or with 0 once the budget is exceeded."""
        for start in range(0, len(entries), _TOKEN_COUNT_BATCH_SIZE):
            batch = entries[start : start + _TOKEN_COUNT_BATCH_SIZE]
            contents = [one.content for one in batch if self._needs_token_count(one)]
            counts = iter(self._count_tokens(contents) if contents else ())
            token_counts = [next(counts) if self._needs_token_count(one) else 0 for one in batch]
            yield from zip(batch, token_counts, strict=True)

    def _needs_token_count(self, entry: LoreEntry) -> bool:
        return entry.ignores_budget or not self._is_budget_exceeded

    def _find_probability_reason(self, entry: LoreEntry) -> str | None:
        is_always_activated = entry.probability >= 100 or entry.uid in self._sticky_entry_ids
        if is_always_activated or self._draw_float() * 100 < entry.probability:
            return None
        return _PROBABILITY_REASON.with_values(percent=f"{entry.probability:g}")

    def _find_budget_reason(self, entry: LoreEntry, tokens: int) -> str | None:
        if entry.ignores_budget:
            return None
        self._is_budget_exceeded = self._is_budget_exceeded or self._tokens + tokens > self._budget
        if not self._is_budget_exceeded:
            return None
        self._over_budget_entry_ids.add(entry.uid)
        return _OVER_BUDGET_REASON.with_values(tokens=self._budget)

    def _should_search_again(self, new_entries: Sequence[LoreEntry]) -> bool:
        """Return whether to search again: in new entries' texts, or at the next recursion level."""
        new_texts = [entry.content for entry in new_entries if not entry.prevent_recursion]
        self._recursion_texts += new_texts
        if self._is_budget_exceeded or not self._book.recursive:
            return False
        if not new_texts and self._unreached_levels:
            self._recursion_level = self._unreached_levels.pop(0)
            return True
        return bool(new_texts)


def _expand_keys(entry: LoreEntry, expand: Callable[[str], str]) -> LoreEntry:
    keys, secondary_keys = tuple(map(expand, entry.keys)), tuple(map(expand, entry.secondary_keys))
    return replace(entry, keys=keys, secondary_keys=secondary_keys)


def _explain_entries_lost_in_groups(
    triggered_entries: Sequence[LoreEntry],
    activated_entries: Sequence[LoreEntry],
    *,
    sticky_entry_ids: frozenset[str],
    draw_float: Callable[[], float],
) -> Mapping[str, str]:
    """Return why entries were not chosen in their groups, by uid; already active entries win."""
    reasons: dict[str, str] = {}
    entries_by_group: dict[str, list[LoreEntry]] = defaultdict(list)
    for entry in triggered_entries:
        for name in dict.fromkeys(entry.groups):
            entries_by_group[name].append(entry)
    active_entries_by_group = {
        name: entry for entry in reversed(activated_entries) for name in entry.groups
    }
    for group, entries in entries_by_group.items():
        rivals = [entry for entry in entries if entry.uid not in reasons]
        active_entry = active_entries_by_group.get(group)
        if active_entry is not None:
            winners: Sequence[LoreEntry] = [active_entry]
        elif sticky_rivals := [entry for entry in rivals if entry.uid in sticky_entry_ids]:
            winners = sticky_rivals
        else:
            winners = _choose_winner(rivals, draw_float)
        winner_ids = {entry.uid for entry in winners}
        for rival in rivals:
            if rival.uid not in winner_ids:
                label = repr(winners[0].label)
                reasons[rival.uid] = _GROUP_REASON.with_values(group=repr(group), label=label)
    return reasons


def _choose_winner(
    rivals: Sequence[LoreEntry], draw_float: Callable[[], float]
) -> Sequence[LoreEntry]:
    if len(rivals) < 2:
        return rivals
    override_entries = [entry for entry in rivals if entry.group_override]
    if override_entries:
        return [max(override_entries, key=lambda entry: entry.order)]
    weight_left = draw_float() * sum(entry.group_weight for entry in rivals)
    for entry in rivals:
        weight_left -= entry.group_weight
        if weight_left < 0:
            return [entry]
    return rivals[-1:]


@value_class
class LorebookTrial:
    entries: Sequence[tuple[EntryDecision, Sequence[str]]]
    """For each entry, the decision about it and its keys that occur in the text."""
    tokens: int
    key_ranges: Sequence[tuple[int, int]]
    """The start and end of each key in the text, in order, without overlaps."""


def try_lorebook(
    book: Lorebook, text: str, *, budget: int, count: TextTokenCounter
) -> LorebookTrial:
    """Find the entries that a text activates; each line is a message, and all chances succeed."""
    text_lines = [line for line in text.split("\n") if line.strip()]
    search = LorebookSearch(book, text_lines, budget=budget, counter=count, draw_float=lambda: 0.0)
    result, matcher = search.run(), KeyMatcher(book, RegexTimeBudget())
    searched_text = "\n".join(f"\x01{line}" for line in text_lines)
    entries = [
        (decision, matcher.find_matching_keys(decision.entry, searched_text))
        for decision in result.decisions
    ]
    key_ranges = _find_key_ranges({key for _, keys in entries for key in keys}, text)
    return LorebookTrial(entries, result.tokens, list(_skip_overlaps(key_ranges)))


def _find_key_ranges(keys: set[str], text: str) -> Iterator[tuple[int, int]]:
    lowercase_text = text.lower()
    searched_text = lowercase_text if len(lowercase_text) == len(text) else text
    for key in keys:
        pattern = compile_key(key) if is_regex(key) else None
        if pattern is not None and not isinstance(pattern, str):
            try:
                matches = list(pattern.finditer(text, timeout=_TRIAL_SECONDS_PER_KEY))
            except TimeoutError:
                continue
            yield from (match.span() for match in matches)
            continue
        sought_key = key.strip() if searched_text is text else key.strip().lower()
        position = searched_text.find(sought_key) if sought_key else -1
        while position >= 0:
            yield position, position + len(sought_key)
            position = searched_text.find(sought_key, position + len(sought_key))


def _skip_overlaps(ranges: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges by start, longest first, omitting those that overlap an earlier range."""
    previous_end = 0
    for begin, range_end in sorted(ranges, key=lambda one: (one[0], -one[1])):
        if begin >= previous_end and range_end > begin:
            yield begin, range_end
            previous_end = range_end
