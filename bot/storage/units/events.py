"""Received events as JSON, for the inbox: the kind stands in a column of its own."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bot.chat.incoming import Deleted, Edited, ForgetRequested, Incoming, Joined, Pressed, Said

_KINDS: Mapping[type, str] = {
    Said: "said",
    Edited: "edited",
    Deleted: "deleted",
    Pressed: "pressed",
    Joined: "joined",
    ForgetRequested: "forget",
}
_DECODERS: Mapping[str, Callable[[bytes], Incoming]] = {
    kind: msgspec.json.Decoder(event).decode for event, kind in _KINDS.items()
}

encode_event: Callable[[Incoming], bytes] = msgspec.json.Encoder().encode


def event_kind(event: Incoming) -> str:
    """Return the value of the column `kind`."""
    return _KINDS[type(event)]


def decode_event(kind: str, payload: bytes) -> Incoming:
    """Read an event, also one that an earlier version stored."""
    try:
        return _DECODERS[kind](payload)
    except msgspec.ValidationError:
        return msgspec.convert(_with_quote(msgspec.json.decode(payload)), Said)


def _with_quote(said: dict[str, Any]) -> dict[str, Any]:
    """Make a `Quote` of a quote that is a text only: its author was not stored formerly."""
    quote = said.get("quote")
    if not isinstance(quote, str):
        return said
    return {**said, "quote": {"author": None, "message_id": None, "text": quote}}
