"""Apply a function to the items of a growing sequence, and reuse the results of the last call.

From one prompt to the next, a conversation's history gains new turns and may lose its oldest ones.
Only the results for new turns are computed.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

_MAX_CHANGED_ITEMS = 4
"""The number of items at the end that may have changed since the last call: the newest message
becomes a different object once it is in the history."""

Item = TypeVar("Item")
Value = TypeVar("Value")


def map_new_items(
    cache: dict[Hashable, Any],
    key: Hashable,
    context: Hashable,
    items: Sequence[Item],
    compute: Callable[[Item], Value],
) -> tuple[Value, ...]:
    """Return `compute(item)` for each item, reusing the values of the last call with this `key`.

    The values are kept in `cache`. `compute` must depend only on the item and on `context`; when
    `context` changes, all values are computed again.
    """
    items = tuple(items)
    previous_context, previous_items, previous_values = cache.pop(key, (context, (), ()))
    reused_values: tuple[Value, ...] = ()
    if previous_context == context:
        begin, end = _find_overlap(previous_items, items)
        reused_values = previous_values[begin:end]
    values = (*reused_values, *map(compute, items[len(reused_values) :]))
    cache[key] = context, items, values
    return values


def _find_overlap(old_items: tuple[Item, ...], new_items: tuple[Item, ...]) -> tuple[int, int]:
    """Find the slice of `old_items` that `new_items` starts with; return its start and end."""
    if not old_items or not new_items:
        return 0, 0
    begin = 0
    if old_items[0] is not new_items[0]:
        if new_items[0] not in old_items:
            return 0, 0
        begin = old_items.index(new_items[0])
    max_length = min(len(old_items) - begin, len(new_items))
    for length in range(max_length, max(-1, max_length - _MAX_CHANGED_ITEMS), -1):
        end = begin + length
        # The last items are compared first, because they usually differ.
        if length and not _is_same(old_items[end - 1], new_items[length - 1]):
            continue
        if old_items[begin:end] == new_items[:length]:
            return begin, end
    item_pairs = zip(old_items[begin:], new_items, strict=False)
    equal_pairs = takewhile(lambda pair: _is_same(*pair), item_pairs)
    return begin, begin + sum(1 for _ in equal_pairs)


def _is_same(first: object, second: object) -> bool:
    return first is second or first == second
