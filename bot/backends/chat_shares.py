"""Limit how many of a provider's slots one chat may hold, given other chats' recent use."""

import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from bot.ports import Clock

_RECENT_SECONDS = 60.0
_MAX_DROPPED_PER_CALL = 2  # idle chats to drop whenever a slot is taken, oldest first
_BUSY_FACTOR = 1.5  # a chat that took more than this times the average is busy
_SLOTS_LEFT_TO_OTHERS = 2
MIN_SHARED_SLOTS = 4
"""The number of slots from which chats must share them; of fewer, one chat may hold all."""


@dataclass(slots=True)
class ChatShares:
    """Decides how many slots a chat may hold, from the slots that other chats recently held."""

    clock: Clock
    limit: int
    _slots_by_chat: OrderedDict[str, deque[tuple[float, int]]] = field(default_factory=OrderedDict)
    """By chat, newest last: the times when it got slots, and how many slots other chats then held.
    Only decreasing numbers are kept, as for a sliding maximum."""
    _taken_slots: deque[tuple[float, str]] = field(default_factory=deque)
    _taken_counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        """Return the number of chats that used slots recently."""
        return len(self._slots_by_chat)

    def slot_quota(self, chat: str) -> int:
        """Return how many slots a chat may hold, between a quarter and three quarters of all."""
        seen = self._slots_by_chat.get(chat, deque())
        _forget_before(self.clock.monotonic() - _RECENT_SECONDS, seen)
        kept = seen[0][1] + 1 if seen else 0  # another chat may need one more at any time
        fair = math.ceil(self.limit / max(1, len(self._slots_by_chat)))
        least = max(self.limit // 4, min(fair, self.limit // 2))
        return max(least, self.limit - max(kept, self.limit // 4))

    def may_take_slot(self, chat: str, free_slots: int) -> bool:
        """Return whether a chat may take a slot; a busy chat must leave the last two to others."""
        return free_slots > _SLOTS_LEFT_TO_OTHERS or not self._took_many_slots(chat)

    def _took_many_slots(self, chat: str) -> bool:
        self._forget_old_slots()
        own = self._taken_counts[chat]
        return own > 1 and own * len(self._taken_counts) > _BUSY_FACTOR * len(self._taken_slots)

    def _forget_old_slots(self) -> None:
        moment = self.clock.monotonic() - _RECENT_SECONDS
        while self._taken_slots and self._taken_slots[0][0] < moment:
            _, chat = self._taken_slots.popleft()
            self._taken_counts[chat] -= 1
            if not self._taken_counts[chat]:
                del self._taken_counts[chat]

    def record_slot(self, chat: str, held_by_others: int) -> None:
        now = self.clock.monotonic()
        self._forget_old_slots()
        self._taken_slots.append((now, chat))
        self._taken_counts[chat] += 1
        seen = self._slots_by_chat.setdefault(chat, deque())
        self._slots_by_chat.move_to_end(chat)
        while seen and seen[-1][1] <= held_by_others:
            seen.pop()
        seen.append((now, held_by_others))
        for quiet in [
            one for one, _ in zip(self._slots_by_chat, range(_MAX_DROPPED_PER_CALL), strict=False)
        ]:
            _forget_before(now - _RECENT_SECONDS, self._slots_by_chat[quiet])
            if not self._slots_by_chat[quiet]:
                del self._slots_by_chat[quiet]


def _forget_before(moment: float, entries: deque[tuple[float, int]]) -> None:
    while entries and entries[0][0] < moment:
        entries.popleft()
