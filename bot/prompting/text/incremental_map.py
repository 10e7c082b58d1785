"""Map the items of sequences that grow at their end, and keep the results between the calls.

The history of a conversation is the same from one prompt to the next but for the newest turns, and
perhaps for the oldest, which it loses. Only what is new is computed.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import Generic, TypeAlias, TypeVar

_USUALLY_NEW = 4
"""At most so many items at the end of the last sequence usually differ: the newest message is one
object while it is answered, and another one in the history."""

Item = TypeVar("Item")
Value = TypeVar("Value")


_Mapped: TypeAlias = tuple[Hashable, tuple[Item, ...], tuple[Value, ...]]
"""The form, the items and their values."""


class IncrementalMap(Generic[Item, Value]):
    """The results for the sequences that were mapped last.

    Args:
        max_items: of all sequences together; the one that was used longest ago is dropped first.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._mapped: OrderedDict[Hashable, _Mapped[Item, Value]] = OrderedDict()
        self._items = 0

    def map(
        self, key: Hashable, form: Hashable, items: Sequence[Item], compute: Callable[[Item], Value]
    ) -> tuple[Value, ...]:
        """Return the value of each item.

        Args:
            key: names the sequence.
            form: what the values depend on besides the items; once it changes, all are computed.
            items: the sequence now.
            compute: a pure function of an item and the form.
        """
        items = tuple(items)
        before = self._mapped.pop(key, None)
        known: tuple[Value, ...] = ()
        if before is not None:
            form_before, items_before, values_before = before
            self._items -= len(items_before)
            if form_before == form:
                begin, end = _overlap(items_before, items)
                known = values_before[begin:end]
        values = (*known, *map(compute, items[len(known) :]))
        self._mapped[key] = form, items, values
        self._items += len(items)
        while self._items > self._max_items:
            _, (_, oldest, _) = self._mapped.popitem(last=False)
            self._items -= len(oldest)
        return values


def _overlap(before: tuple[Item, ...], now: tuple[Item, ...]) -> tuple[int, int]:
    """Return the slice of `before` that `now` begins with."""
    if not before or not now:
        return 0, 0
    begin = 0
    if before[0] is not now[0]:
        if now[0] not in before:
            return 0, 0
        begin = before.index(now[0])
    most = min(len(before) - begin, len(now))
    for length in range(most, max(-1, most - _USUALLY_NEW), -1):
        end = begin + length
        # The last one of each is compared first: it is what usually differs.
        if length and not _is_same(before[end - 1], now[length - 1]):
            continue
        if before[begin:end] == now[:length]:
            return begin, end
    pairs = zip(before[begin:], now, strict=False)
    same = takewhile(lambda pair: _is_same(*pair), pairs)
    return begin, begin + sum(1 for _ in same)


def _is_same(one: object, other: object) -> bool:
    return one is other or one == other
