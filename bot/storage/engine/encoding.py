"""Encode the values of a unit's queries and decode their rows, where columns can be encrypted."""

from collections.abc import Sequence
from typing import Any

from bot.errors import Undecodable
from bot.storage.encryption.codec import TextCodec
from bot.storage.engine.statements import CompiledSql, Rows, Values


def arguments(sql: CompiledSql, values: Values, codec: TextCodec) -> Sequence[Any]:
    """Return the values in the order in which the driver takes them, encoded."""
    known = {**sql.defaults, **values} if sql.defaults else values
    ordered = [known[name] for name in sql.names]
    for place, type_ in sql.encoded:
        ordered[place] = type_.encode(codec, ordered[place])
    return ordered


def decoded(rows: Rows, sql: CompiledSql, codec: TextCodec) -> Rows:
    """Return the rows as the unit reads them."""
    return [_decode_row(row, sql, codec) for row in rows] if sql.decoded else rows


def _decode_row(row: Sequence[Any], sql: CompiledSql, codec: TextCodec) -> Sequence[Any]:
    columns: list[Any] | None = None
    for index, type_ in sql.decoded:
        value: Any
        try:
            value = type_.decode(codec, row[index])
        except Undecodable as error:  # only its row is lost: see storage/decoding.py
            value = error
        if value is not row[index]:
            columns = columns or list(row)
            columns[index] = value
    return row if columns is None else tuple(columns)
