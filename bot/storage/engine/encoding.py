"""Encode the values of a unit's queries and decode their rows, where columns can be encrypted."""

from dataclasses import replace
from typing import TypeVar

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
    values = _encode_values(query.values, sql, codec) if query.values else query.values
    return replace(
        query, values=values, many=tuple(_encode_values(row, sql, codec) for row in query.many)
    )


def _encode_values(values: Values, sql: CompiledSql, codec: TextCodec) -> Values:
    changed = {
        name: type_.encode(codec, values[name]) for name, type_ in sql.encoded if name in values
    }
    return {**values, **changed}


def _decode(rows: Rows, sql: CompiledSql, codec: TextCodec) -> Rows:
    decoded = []
    for row in rows:
        columns = list(row)
        for index, type_ in sql.decoded:
            columns[index] = type_.decode(codec, columns[index])
        decoded.append(tuple(columns))
    return decoded
