"""Remember results of pure functions of texts, in a limited number of bytes."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_ENTRY_BYTES = 300  # an entry of the dictionary, and the objects of its key and value
_MAX_SHARE = 64  # one entry takes at most this part of the cache


class BoundedCache(OrderedDict[Key, Value]):
    """A cache that computes what is missing: `cache[key]`; the oldest entries are dropped first.

    Args:
        compute: a pure function, so that nobody can tell a cached value from a new one.
        bytes_of: the size of a key and its value.
        max_bytes: of all entries together. Entries that are too large are not kept.
    """

    def __init__(
        self, compute: Callable[[Key], Value], bytes_of: Callable[[Key], int], max_bytes: int
    ) -> None:
        super().__init__()
        self._compute = compute
        self._bytes_of = bytes_of
        self._max_bytes = max_bytes
        self._bytes = 0

    def __missing__(self, key: Key) -> Value:
        value = self._compute(key)
        size = self._size(key)
        if size * _MAX_SHARE <= self._max_bytes:
            self[key] = value
            self._bytes += size
            while self._bytes > self._max_bytes:
                oldest, _ = self.popitem(last=False)
                self._bytes -= self._size(oldest)
        return value

    def _size(self, key: Key) -> int:
        return _ENTRY_BYTES + self._bytes_of(key)
