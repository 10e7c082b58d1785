"""Encode the values of a unit's queries and decode their rows, where columns can be encrypted."""

from collections.abc import Sequence
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar

from bot.storage.encryption.codec import TextCodec
from bot.storage.engine.statements import CompiledSql, DialectName, Query, Rows, Unit, Values

T = TypeVar("T")


def encoded(unit: Unit[T], codec: TextCodec, dialect: DialectName) -> Unit[T]:
    """Run a unit so that the database sees encoded values only, and the unit none of them."""
    try:
        query = next(unit)
        while True:
            sql = query.statement.compiled(dialect)
            rows = yield _encode(query, sql, codec) if sql.encoded else query
            query = unit.send(_decode(rows, sql, codec) if sql.decoded else rows)
    except StopIteration as ended:
        value: T = ended.value
        return value
    finally:
        unit.close()


def _encode(query: Query, sql: CompiledSql, codec: TextCodec) -> Query:
    """Return the query to run; the same one where nothing of it is stored in another form."""
    values = _encode_values(query.values, sql, codec) if query.values else query.values
    many = tuple(_encode_values(row, sql, codec) for row in query.many)
    is_same = values is query.values and all(map(is_, many, query.many))
    return query if is_same else replace(query, values=values, many=many)


def _encode_values(values: Values, sql: CompiledSql, codec: TextCodec) -> Values:
    changed = {}
    for name, type_ in sql.encoded:
        if name in values:
            stored = type_.encode(codec, values[name])
            if stored is not values[name]:
                changed[name] = stored
    return {**values, **changed} if changed else values


def _decode(rows: Rows, sql: CompiledSql, codec: TextCodec) -> Rows:
    return [_decode_row(row, sql, codec) for row in rows]


def _decode_row(row: Sequence[Any], sql: CompiledSql, codec: TextCodec) -> Sequence[Any]:
    columns: list[Any] | None = None
    for index, type_ in sql.decoded:
        value = type_.decode(codec, row[index])
        if value is not row[index]:
            columns = columns or list(row)
            columns[index] = value
    return row if columns is None else tuple(columns)
