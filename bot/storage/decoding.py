"""The one way from what is stored or signalled to values: what cannot be read stops nothing else.

Another version of Troupe, an operator's SQL or a damaged disk may have written anything.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
import structlog

from bot.errors import Undecodable

Stored = TypeVar("Stored")
Value = TypeVar("Value")
_log = structlog.get_logger(__name__)

_DESCRIBED = (msgspec.MsgspecError, json.JSONDecodeError, zlib.error)
"""Their texts say what is wrong where, and quote nothing that people wrote."""
_FAILURES = (
    *_DESCRIBED,
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, OSError),
)


def decode(read: Callable[[Stored], Value], stored: Stored) -> Value:
    """Read one row or signal; raises `Undecodable` whatever is wrong with it."""
    if isinstance(stored, Sequence) and not isinstance(stored, str | bytes):
        for column in stored:  # those that could not be decrypted
            if isinstance(column, Undecodable):
                raise column
    try:
        return read(stored)
    except _FAILURES as error:
        described = isinstance(error, _DESCRIBED)
        raise Undecodable(str(error) if described else type(error).__name__) from None


def decode_all(what: str, rows: Iterable[Stored], read: Callable[[Stored], Value]) -> list[Value]:
    """Read rows or signals; those that cannot be read are left out and logged with the reason."""
    values: list[Value] = []
    for row in rows:
        try:
            values.append(decode(read, row))
        except Undecodable as error:
            number = getattr(row, "id", None)
            _log.warning("not_decodable", what=what, row=number, reason=str(error))
    return values
