"""Read what platforms store beside messages; what cannot be read stops no platform."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import structlog

Cursor = TypeVar("Cursor")
_log = structlog.get_logger(__name__)
_MAX_NUMBER = (1 << 63) - 1


def read_cursors(stored: Mapping[str, str], read: Callable[[str, str], Cursor]) -> list[Cursor]:
    """Read names and values; those that cannot be read are left out and logged with the reason."""
    found: list[Cursor] = []
    for name, value in stored.items():
        try:
            found.append(read(name, value))
        except (TypeError, ValueError) as error:
            _log.warning("not_decodable", what="cursor", row=name, reason=str(error))
    return found


def to_number(stored: str) -> int:
    """Return a number of zero or more; raises `ValueError`."""
    if not (stored.isascii() and stored.isdecimal() and int(stored) <= _MAX_NUMBER):
        raise ValueError("not a number")
    return int(stored)


def read_number(stored: Mapping[str, str], name: str) -> int | None:
    """Return the number of this name; None: there is none that can be read."""
    given = {name: stored[name]} if name in stored else {}
    return next(iter(read_cursors(given, lambda _, value: to_number(value))), None)
