"""Share the windows of sessions between processes, so that the next one need not read the history.

A window is shared when its claim is over, under the epoch of that claim: nobody writes under this
epoch any more. The claim with the next epoch may use it, and no other one. So a window that is late
or lost is never wrong, it is only not found.
"""

import msgspec

from bot.chat.session import Claim, Session, Turn
from bot.ports import SharedValues
from bot.storage.cache.session_windows import SessionWindow, window_of

_MAX_BYTES = 200_000


class _StoredWindow(msgspec.Struct, array_like=True):
    epoch: int
    session: int
    is_whole: bool
    turns: tuple[Turn, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredWindow).decode


class SharedWindows:
    """The windows of conversations that were claimed by any process."""

    def __init__(self, values: SharedValues) -> None:
        self._values = values

    def keep(self, claim: Claim, window: SessionWindow) -> None:
        """Share the window of a claim that is over, as it was after the last commit."""
        value = _encode(_StoredWindow(claim.epoch, window.session, window.is_whole, window.turns))
        if len(value) <= _MAX_BYTES:
            self._values.keep(_key(claim), value)

    async def find(self, claim: Claim) -> SessionWindow | None:
        """Return the window that the claim just before this one has shared."""
        value = await self._values.find(_key(claim))
        try:
            stored = _decode(value) if value else None
        except msgspec.DecodeError:  # of another version of Troupe
            return None
        if stored is None or stored.epoch != claim.epoch - 1:
            return None
        turns = len(stored.turns)
        return window_of(Session(stored.session, stored.turns), turns + stored.is_whole)

    async def drop(self, claim: Claim) -> bool:
        """Delete what is shared of a conversation; False: it stays until it expires."""
        return await self._values.drop(_key(claim))


def _key(claim: Claim) -> str:
    return f"window:{claim.conversation}"
