"""Limit how many provider slots a chat may hold, based on the recent use by other chats."""

import itertools
import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from bot.ports import Clock

_RECENT_SECONDS = 60.0
_MAX_DROPPED_CHATS = 2  # idle chats to drop when a slot is taken, oldest first
_BUSY_FACTOR = 1.5  # a chat that took more than this times the average is busy
_SLOTS_LEFT_BY_BUSY_CHAT = 2
MIN_SHARED_SLOTS = 4
"""If there are fewer slots than this, one chat may hold all of them."""


@dataclass(slots=True)
class ChatShares:
    """Decides how many slots a chat may hold, given how many slots other chats recently held."""

    clock: Clock
    total_slots: int
    _uses_by_chat: OrderedDict[str, deque[tuple[float, int]]] = field(default_factory=OrderedDict)
    """By chat, oldest first: when it took a slot, and how many slots other chats held at that time.
    A use is dropped when a later one has the same or a larger number (a sliding maximum)."""
    _recent_uses: deque[tuple[float, str]] = field(default_factory=deque)
    _slot_counts_by_chat: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        """Return the number of chats that used slots recently."""
        return len(self._uses_by_chat)

    def slot_quota(self, chat: str) -> int:
        """Return how many slots a chat may hold, between a quarter and three quarters of all."""
        uses = self._uses_by_chat.get(chat, deque())
        _drop_uses_before(self.clock.monotonic() - _RECENT_SECONDS, uses)
        reserved_slots = uses[0][1] + 1 if uses else 0  # another chat may need one more at any time
        fair_share = math.ceil(self.total_slots / max(1, len(self._uses_by_chat)))
        min_quota = max(self.total_slots // 4, min(fair_share, self.total_slots // 2))
        return max(min_quota, self.total_slots - max(reserved_slots, self.total_slots // 4))

    def may_take_slot(self, chat: str, free_slots: int) -> bool:
        """Return whether a chat may take a slot; a busy chat must leave the last two to others."""
        return free_slots > _SLOTS_LEFT_BY_BUSY_CHAT or not self._is_busy(chat)

    def _is_busy(self, chat: str) -> bool:
        self._forget_old_uses()
        slot_count, chat_count = self._slot_counts_by_chat[chat], len(self._slot_counts_by_chat)
        return slot_count > 1 and slot_count * chat_count > _BUSY_FACTOR * len(self._recent_uses)

    def _forget_old_uses(self) -> None:
        cutoff = self.clock.monotonic() - _RECENT_SECONDS
        while self._recent_uses and self._recent_uses[0][0] < cutoff:
            _, chat = self._recent_uses.popleft()
            self._slot_counts_by_chat[chat] -= 1
            if not self._slot_counts_by_chat[chat]:
                del self._slot_counts_by_chat[chat]

    def record_slot_use(self, chat: str, slots_held_by_others: int) -> None:
        now = self.clock.monotonic()
        self._forget_old_uses()
        self._recent_uses.append((now, chat))
        self._slot_counts_by_chat[chat] += 1
        slot_uses = self._uses_by_chat.setdefault(chat, deque())
        self._uses_by_chat.move_to_end(chat)
        while slot_uses and slot_uses[-1][1] <= slots_held_by_others:
            slot_uses.pop()
        slot_uses.append((now, slots_held_by_others))
        for oldest_chat in list(itertools.islice(self._uses_by_chat, _MAX_DROPPED_CHATS)):
            _drop_uses_before(now - _RECENT_SECONDS, self._uses_by_chat[oldest_chat])
            if not self._uses_by_chat[oldest_chat]:
                del self._uses_by_chat[oldest_chat]


def _drop_uses_before(cutoff: float, slot_uses: deque[tuple[float, int]]) -> None:
    while slot_uses and slot_uses[0][0] < cutoff:
        slot_uses.popleft()
