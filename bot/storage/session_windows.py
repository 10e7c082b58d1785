"""Cache conversations' newest turns, called windows, while no other process can change them.

Only the holder of a claim writes to a history. So a window cached under one epoch is still valid
under the next epoch if the same process made both claims. A gap between the epochs means that
another process held the conversation in between.

With Redis, a window is shared with other processes when its claim ends, together with the epoch.
Only the claim with the next epoch may use it. So a late or lost window never causes errors.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from typing_extensions import override

from bot.chat.session import Claim, Session, Turn, TurnRange
from bot.ports import ConversationMemory
from bot.value_class import value_class

_MAX_CACHED_CONVERSATIONS = 10_000
_MAX_CACHED_TURNS = 400
_MAX_CACHED_CHARS = 20_000_000  # of all conversations
_EXTRA_CHARS_PER_TURN = 400  # approximate memory of a turn besides its text


@value_class
class SessionWindow:
    """A session's newest turns, oldest first, as cached for the next answer."""

    session: int
    turns: tuple[Turn, ...]
    is_complete: bool
    """Whether the session has no older turns."""
    size: int
    """The approximate memory, in characters."""
    memo: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """The `Session.cache` of the session."""

    def newest_session(self, max_turns: int) -> Session | None:
        """Return a session of the newest turns, or None if too few turns are cached."""
        if len(self.turns) < max_turns and not self.is_complete:
            return None
        turns = self.turns[-max_turns:] if max_turns > 0 else ()
        return Session(self.session, turns, self.memo)

    def with_turns(self, turns: Sequence[Turn]) -> "SessionWindow":
        """Return a copy of the window with new turns of the session appended."""
        if not turns:
            return self
        all_turns = (*self.turns, *turns)
        return _build_window(self.session, all_turns, self.size, turns, self.is_complete, self.memo)

    def without_turns(self, removed_range: TurnRange) -> "SessionWindow":
        """Return a window without turns that were deleted from the session."""
        kept_turns = removed_range.remove_from(self.turns)
        return SessionWindow(
            self.session, kept_turns, self.is_complete, sum(map(_turn_size, kept_turns)), self.memo
        )


def create_window(session: Session, max_turns: int) -> SessionWindow:
    """Create the window of a session that was loaded with at most `max_turns` turns."""
    has_all_turns = len(session.turns) < max_turns
    return _build_window(
        session.number, session.turns, 0, session.turns, has_all_turns, session.cache
    )


def _build_window(
    session: int,
    turns: tuple[Turn, ...],
    char_count: int,
    new_turns: Sequence[Turn],
    has_all_turns: bool,
    memo: dict[Hashable, Any],
) -> SessionWindow:
    surplus_turns, kept_turns = turns[:-_MAX_CACHED_TURNS], turns[-_MAX_CACHED_TURNS:]
    char_count += sum(map(_turn_size, new_turns)) - sum(map(_turn_size, surplus_turns))
    return SessionWindow(session, kept_turns, has_all_turns and not surplus_turns, char_count, memo)


def _turn_size(turn: Turn) -> int:
    return len(turn.text) + _EXTRA_CHARS_PER_TURN


class SharedSessionWindows(Protocol):
    """Shares sessions' newest turns (windows) between processes. Any window may be lost."""

    def share(self, claim: Claim, window: SessionWindow) -> None:
        """Queue a session's newest turns for sharing when its claim ends; never wait or fail."""

    async def find(self, claim: Claim) -> SessionWindow | None:
        """Return turns that the previous claim shared, or None if they are not found quickly."""

    async def drop(self, claim: Claim) -> None:
        """Delete the shared or queued turns of a conversation. If this fails, they expire."""


@dataclass(slots=True)
class _CacheEntry:
    epoch: int
    window: SessionWindow | None


class SessionWindows(ConversationMemory):
    """Caches conversations' newest turns; `take` them before a change, `put` after its commit."""

    def __init__(self, max_chars: int = _MAX_CACHED_CHARS) -> None:
        self._max_chars = max_chars
        self._entries: OrderedDict[str, _CacheEntry] = OrderedDict()
        self._char_count = 0

    @override
    async def end_session(self, conversation: str) -> None:
        """Do nothing, because ending the session already dropped the window."""

    @override
    async def forget(self, conversation: str) -> None:
        entry = self._entries.pop(conversation, None)
        if entry is not None and entry.window is not None:
            self._char_count -= entry.window.size

    def move_window_to(self, claim: Claim) -> None:
        """Reuse the previous claim's window for this claim; drop any older window."""
        entry = self._entries.get(claim.conversation)
        if entry is not None and entry.epoch >= claim.epoch:
            return  # there is already a later claim
        window = entry.window if entry and entry.epoch == claim.epoch - 1 else None
        self._set_window(claim, window)
        self._entries.move_to_end(claim.conversation)
        self._drop_surplus_windows()

    def get(self, claim: Claim) -> SessionWindow | None:
        entry = self._entries.get(claim.conversation)
        return entry.window if entry is not None and entry.epoch == claim.epoch else None

    def take(self, claim: Claim) -> SessionWindow | None:
        """Remove and return the window cached under a claim, or None if there is none."""
        window = self.get(claim)
        if window is not None:
            self._set_window(claim, None)
        return window

    def put(self, claim: Claim, window: SessionWindow) -> None:
        """Cache a window under a claim, unless a later claim exists or the window was evicted."""
        entry = self._entries.get(claim.conversation)
        if entry is not None and entry.epoch == claim.epoch:
            self._set_window(claim, window)
            self._drop_surplus_windows()

    def _set_window(self, claim: Claim, window: SessionWindow | None) -> None:
        entry = self._entries.setdefault(claim.conversation, _CacheEntry(claim.epoch, None))
        self._char_count += (window.size if window else 0) - (
            entry.window.size if entry.window else 0
        )
        entry.epoch, entry.window = claim.epoch, window

    def _drop_surplus_windows(self) -> None:
        while self._char_count > self._max_chars or len(self._entries) > _MAX_CACHED_CONVERSATIONS:
            _, entry = self._entries.popitem(last=False)
            self._char_count -= entry.window.size if entry.window else 0
