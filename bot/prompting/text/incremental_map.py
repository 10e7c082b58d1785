"""Apply a function to the items of a growing sequence, and reuse the results of the last call.

From one prompt to the next, a conversation's history gains new turns and may lose its oldest ones.
Only the results for new turns are computed.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

_MAX_CHANGED_ITEMS = 4
"""The maximum number of last items that usually differ from the sequence before: the newest message
is a different object once it is in the history."""

Item = TypeVar("Item")
Value = TypeVar("Value")


def map_incrementally(
    memo: dict[Hashable, Any],
    key: Hashable,
    form: Hashable,
    items: Sequence[Item],
    compute: Callable[[Item], Value],
) -> tuple[Value, ...]:
    """Return `compute(item)` for each item, reusing the values of the last call with this `key`.

    The values are kept in `memo`. `compute` must depend only on the item and on `form`; when `form`
    changes, all values are computed again.
    """
    items = tuple(items)
    form_before, items_before, values_before = memo.pop(key, (form, (), ()))
    known: tuple[Value, ...] = ()
    if form_before == form:
        begin, end = _overlap(items_before, items)
        known = values_before[begin:end]
    values = (*known, *map(compute, items[len(known) :]))
    memo[key] = form, items, values
    return values


def _overlap(before: tuple[Item, ...], after: tuple[Item, ...]) -> tuple[int, int]:
    """Find the slice of `before` that `after` starts with; return its start and end."""
    if not before or not after:
        return 0, 0
    begin = 0
    if before[0] is not after[0]:
        if after[0] not in before:
            return 0, 0
        begin = before.index(after[0])
    most = min(len(before) - begin, len(after))
    for length in range(most, max(-1, most - _MAX_CHANGED_ITEMS), -1):
        end = begin + length
        # The last items are compared first, because they usually differ.
        if length and not _is_same(before[end - 1], after[length - 1]):
            continue
        if before[begin:end] == after[:length]:
            return begin, end
    pairs = zip(before[begin:], after, strict=False)
    same = takewhile(lambda pair: _is_same(*pair), pairs)
    return begin, begin + sum(1 for _ in same)


def _is_same(first: object, second: object) -> bool:
    return first is second or first == second
