"""Share the windows of sessions between processes, so that the next one need not read the history.

A window is shared when its claim is over, under the epoch of that claim: nobody writes under this
epoch any more. The claim with the next epoch may use it, and no other one. So a window that is late
or lost is never wrong, it is only not found.
"""

import msgspec

from bot.chat.session import Claim, Session, Turn
from bot.errors import StoreError
from bot.ports import SharedValues
from bot.storage.cache.session_windows import SessionWindow, window_of
from bot.storage.encryption.codec import TextCodec

_MAX_BYTES = 200_000
"""What its values are encrypted for; the database has no such column."""


class _StoredWindow(msgspec.Struct, array_like=True):
    epoch: int
    session: int
    is_whole: bool
    turns: tuple[Turn, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredWindow).decode


class SharedWindows:
    """The windows of conversations that were claimed by any process."""

    def __init__(self, values: SharedValues, codec: TextCodec) -> None:
        """Take where they are kept, and what encodes the texts of the database."""
        self._values = values
        self._codec = codec

    def keep(self, claim: Claim, window: SessionWindow) -> None:
        """Share the window of a claim that is over, as it was after the last commit."""
        packed = _encode(_StoredWindow(claim.epoch, window.session, window.is_whole, window.turns))
        value = self._codec.encode_bytes(packed)
        if value is not None and len(value) <= _MAX_BYTES:
            self._values.keep(_key(claim), value)

    async def find(self, claim: Claim) -> SessionWindow | None:
        """Return the window that the claim just before this one has shared."""
        value = await self._values.find(_key(claim))
        try:
            packed = self._codec.decode_bytes(value)
            stored = _decode(packed) if packed else None
        except (msgspec.DecodeError, StoreError):  # of another version of Troupe, or another key
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
