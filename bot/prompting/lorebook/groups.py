"""Select one entry of each inclusion group: a sticky one, the best match, the first, or by weight.

See docs/sources.md#sillytavern.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from bot.prompting.lorebook.entries import LoreEntry
from bot.texts.stored import StoredPattern
from bot.texts.text import marked

_TAKEN = StoredPattern(marked("its group {group} already has {label}"))

Rejections = Mapping[str, str]
"""By uid: why an entry may not be activated."""


def reject_group_rivals(
    triggered: Sequence[LoreEntry],
    activated: Sequence[LoreEntry],
    *,
    sticky: frozenset[str],
    score: Callable[[LoreEntry], int],
    random_float: Callable[[], float],
) -> Rejections:
    """Return which of the triggered entries lose in their groups.

    Args:
        triggered: the entries of this pass.
        activated: the entries of earlier passes; a group that has one takes no other.
        sticky: the uids of sticky entries.
        score: returns the number of keys found for an entry.
        random_float: returns a number from 0 up to 1.
    """
    rejected: dict[str, str] = {}
    members: dict[str, list[LoreEntry]] = defaultdict(list)
    for entry in triggered:
        for name in dict.fromkeys(entry.groups):
            members[name].append(entry)
    holders = {name: entry for entry in reversed(activated) for name in entry.groups}
    for group, entries in members.items():
        rivals = [entry for entry in entries if entry.uid not in rejected]
        holder = holders.get(group)
        if holder is not None:
            winners: Sequence[LoreEntry] = [holder]
        elif sticky_rivals := [entry for entry in rivals if entry.uid in sticky]:
            winners = sticky_rivals
        else:
            winners = _winner(_best_scores(rivals, score), random_float)
        kept = {entry.uid for entry in winners}
        for rival in rivals:
            if rival.uid not in kept:
                rejected[rival.uid] = _TAKEN.with_values(
                    group=repr(group), label=repr(winners[0].label)
                )
    return rejected


def _best_scores(
    rivals: Sequence[LoreEntry], score: Callable[[LoreEntry], int]
) -> Sequence[LoreEntry]:
    """Drop the entries with group scoring that have fewer keys found than the best one."""
    if not any(entry.group_scoring for entry in rivals):
        return rivals
    scores = {entry.uid: score(entry) for entry in rivals}
    best = max(scores.values())
    return [one for one in rivals if not one.group_scoring or scores[one.uid] == best]


def _winner(rivals: Sequence[LoreEntry], random_float: Callable[[], float]) -> Sequence[LoreEntry]:
    if len(rivals) < 2:
        return rivals
    overriding = [entry for entry in rivals if entry.group_override]
    if overriding:
        return [max(overriding, key=lambda entry: entry.order)]
    at = random_float() * sum(entry.group_weight for entry in rivals)
    for entry in rivals:
        at -= entry.group_weight
        if at < 0:
            return [entry]
    return rivals[-1:]
