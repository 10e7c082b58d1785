"""Code shared by platforms for receiving: read stored cursors, and mark late messages."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import structlog

from bot.chat.incoming import Incoming, IncomingMessage, MessageEdit

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_MAX_CURSOR_NUMBER = (1 << 63) - 1


def parse_cursors(cursors: Mapping[str, str], parse: Callable[[str, str], T]) -> list[T]:
    """Parse stored cursors with `parse`; log and skip those that cannot be parsed."""
    parsed_cursors: list[T] = []
    for name, value in cursors.items():
        try:
            parsed_cursors.append(parse(name, value))
        except (TypeError, ValueError) as error:
            _log.warning("not_decodable", what="cursor", row=name, reason=str(error))
    return parsed_cursors


def parse_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= _MAX_CURSOR_NUMBER):
        raise ValueError("not a number")
    return int(text)


def find_cursor_number(cursors: Mapping[str, str], name: str) -> int | None:
    """Return the number stored under a name, or None if it is missing or malformed."""
    matching_cursors = {name: cursors[name]} if name in cursors else {}
    return next(iter(parse_cursors(matching_cursors, lambda _, value: parse_number(value))), None)


def mark_if_late(incoming: Incoming, cutoff: float) -> Incoming:
    """Mark a message or edit from before `cutoff` (in Unix seconds) as too late to answer."""
    if not isinstance(incoming, IncomingMessage | MessageEdit) or incoming.at.timestamp() >= cutoff:
        return incoming
    if isinstance(incoming, MessageEdit):
        return replace(incoming, said=replace(incoming.said, is_late=True))
    return replace(incoming, is_late=True)
