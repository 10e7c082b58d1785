"""Received events as JSON, for the inbox: the kind stands in a column of its own."""

from collections.abc import Callable, Mapping

import msgspec

from bot.chat.incoming import Deleted, Edited, ForgetRequested, Incoming, Joined, Pressed, Said
from bot.errors import Undecodable
from bot.storage.decoding import decode

_KINDS: Mapping[type, str] = {
    Said: "said",
    Edited: "edited",
    Deleted: "deleted",
    Pressed: "pressed",
    Joined: "joined",
    ForgetRequested: "forget",
}
_DECODERS: Mapping[str, Callable[[bytes | str], Incoming]] = {
    kind: msgspec.json.Decoder(event).decode for event, kind in _KINDS.items()
}

encode_event: Callable[[Incoming], bytes] = msgspec.json.Encoder().encode


def event_kind(event: Incoming) -> str:
    """Return the value of the column `kind`."""
    return _KINDS[type(event)]


def decode_event(kind: str, payload: bytes | str | Undecodable | None) -> Incoming:
    """Read an event; raises `Undecodable`."""
    if kind not in _DECODERS:
        raise Undecodable(f"unknown kind {kind!r}")
    if payload is None:
        raise Undecodable("no payload")
    if isinstance(payload, Undecodable):  # it cannot be decrypted
        raise payload
    return decode(_DECODERS[kind], payload)
