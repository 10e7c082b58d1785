"""Map the items of sequences that grow at their end, and keep the results between the calls.

The history of a conversation is the same from one prompt to the next but for the newest turns, and
perhaps for the oldest, which it loses. Only what is new is computed.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

from bot.frozen_dataclass import frozen_dataclass

_USUALLY_NEW = 4
"""At most so many items at the end of the last sequence usually differ: the newest message is one
object while it is answered, and another one in the history."""

Item = TypeVar("Item")
Value = TypeVar("Value")


@frozen_dataclass
class _Mapped(Generic[Item, Value]):
    form: Hashable
    items: tuple[Item, ...]
    values: tuple[Value, ...]


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
            self._items -= len(before.items)
            if before.form == form:
                begin, end = _overlap(before.items, items)
                known = before.values[begin:end]
        values = (*known, *map(compute, items[len(known) :]))
        self._mapped[key] = _Mapped(form, items, values)
        self._items += len(items)
        while self._items > self._max_items:
            _, oldest = self._mapped.popitem(last=False)
            self._items -= len(oldest.items)
        return values


def _overlap(before: tuple[Item, ...], now: tuple[Item, ...]) -> tuple[int, int]:
    """Return the slice of `before` that `now` begins with."""
    if not before or not now or now[0] not in before:
        return 0, 0
    begin = before.index(now[0])
    most = min(len(before) - begin, len(now))
    for length in range(most, max(-1, most - _USUALLY_NEW), -1):
        if before[begin : begin + length] == now[:length]:
            return begin, begin + length
    pairs = zip(before[begin:], now, strict=False)
    same = takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs)
    return begin, begin + sum(1 for _ in same)
