"""Of each inclusion group one entry stays: a sticky one, the best found, the first, or by dice."""

from collections.abc import Callable, Mapping, Sequence

from bot.prompting.lorebook.entries import Entry

Losers = Mapping[str, str]
"""By uid: why an entry may not be taken."""


def losers(
    woken: Sequence[Entry],
    taken: Sequence[Entry],
    *,
    sticky: frozenset[str],
    score: Callable[[Entry], int],
    dice: Callable[[], float],
) -> Losers:
    """Judge entries that woke together; `taken` are those of earlier rounds."""
    lost: dict[str, str] = {}
    for group in dict.fromkeys(name for entry in woken for name in entry.groups):
        rivals = [entry for entry in woken if group in entry.groups and entry.uid not in lost]
        holder = next((entry for entry in taken if group in entry.groups), None)
        if holder is not None:
            winners: Sequence[Entry] = [holder]
        elif staying := [entry for entry in rivals if entry.uid in sticky]:
            winners = staying
        else:
            winners = _winner(_best(rivals, score), dice)
        names = {entry.uid for entry in winners}
        for rival in rivals:
            if rival.uid not in names:
                lost[rival.uid] = f"its group {group!r} went to {winners[0].label!r}"
    return lost


def _best(rivals: Sequence[Entry], score: Callable[[Entry], int]) -> Sequence[Entry]:
    """Leave out scoring entries with fewer keys found than the best of the group."""
    if not any(entry.group_scoring for entry in rivals):
        return rivals
    scores = {entry.uid: score(entry) for entry in rivals}
    most = max(scores.values())
    return [one for one in rivals if not one.group_scoring or scores[one.uid] == most]


def _winner(rivals: Sequence[Entry], dice: Callable[[], float]) -> Sequence[Entry]:
    if len(rivals) < 2:
        return rivals
    first = [entry for entry in rivals if entry.group_override]
    if first:
        return [max(first, key=lambda entry: entry.order)]
    at = dice() * sum(entry.group_weight for entry in rivals)
    for entry in rivals:
        at -= entry.group_weight
        if at < 0:
            return [entry]
    return rivals[-1:]
