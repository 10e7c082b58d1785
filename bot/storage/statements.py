"""SQL statements as text for both databases, and units of work: generators of queries.

A unit of work does no I/O: it yields queries and receives their rows, so that the same function
runs in a thread over sqlite3 and in the event loop over asyncpg::

    def unit() -> Unit[int]:
        rows = yield SQL["session"].query(of=key)
        return rows[0][0]

The statements are in the .sql files next to this module. Only migrations and copies of whole tables
use SQLAlchemy, because it takes more time than the database itself.
"""

import functools
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from bot.errors import StoreError, Undecodable
from bot.storage.codec import TextCodec
from bot.storage.column_types import list_encryptable_columns
from bot.storage.tables import metadata
from bot.value_class import value_class

T = TypeVar("T")
DialectName = Literal["sqlite", "postgresql"]
Values: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Sequence[Any]]

SERVER_CLOCK_SQL = "extract(epoch FROM clock_timestamp())::float8"
PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_NAME_LINE = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_INCLUDED_SECTION = re.compile(r"\{(\w+)\}")
_COMMENT_LINE = re.compile(r"^ *--.*\n", re.MULTILINE)
_POSTGRESQL_SYNTAX = re.compile(r"::\w+| FOR UPDATE( SKIP LOCKED)?| FOR SHARE| MATERIALIZED")
_SQLITE_SPELLINGS = {
    "jsonb_array_elements_text": "json_each",
    "strpos": "instr",
    "nextval(pg_get_serial_sequence('outbox', 'id'))": "(SELECT max(id) + 1 FROM outbox)",
    "age(xmin) > age(pg_snapshot_xmin(pg_current_snapshot()))": "1",  # one unit writes at a time
    "IS NOT DISTINCT FROM": "IS",
    "candidate.audience": "+candidate.audience",  # by subject: a server has many memories
    "~>=~": ">=",  # order by code point, like the index for prefixes
    "~<~": "<",
}
_ENCRYPTABLE_COLUMNS = frozenset(
    column.name for table in metadata.sorted_tables for column in list_encryptable_columns(table)
)
_encode_json = msgspec.json.Encoder().encode


class Statement:
    """A statement in PostgreSQL's dialect, with values written as `:name`.

    `:now` is the time used for leases. On PostgreSQL it is the server's time, because the clocks of
    machines may be wrong. On SQLite it is the machine's time, which the unit of work provides as
    `now`. FOR UPDATE and FOR SHARE are removed for SQLite, where only one unit writes at a time.

    Values and columns are encrypted if they have the name of an encryptable column. Values
    named in `array_parameters` are lists of such texts; values named in `table_parameters` are
    lists of complete rows.
    """

    def __init__(
        self,
        text: str,
        *,
        array_parameters: Collection[str] = (),
        table_parameters: Collection[str] = (),
    ) -> None:
        self.text = text.strip()
        self._array_parameters = array_parameters
        self._table_parameters = table_parameters
        self._compiled_by_dialect: dict[DialectName, CompiledSql] = {}

    def compile_for(self, dialect: DialectName) -> "CompiledSql":
        compiled_sql = self._compiled_by_dialect.get(dialect)
        if compiled_sql is None:
            compiled_sql = self._compiled_by_dialect[dialect] = self._compile(dialect)
        return compiled_sql

    def query(self, values: Values | None = None, **named_values: object) -> "Query":
        """Return a query that runs this statement with values by name, and returns its rows."""
        return Query(self, values or named_values, ())

    def query_alone(self, values: Values | None = None, **named_values: object) -> "Query":
        """Return a query that runs without a transaction, because its unit has no other query.

        In a read-only unit, further queries may follow, also without a transaction.
        """
        return Query(self, values or named_values, (), is_only_query_of_unit=True)

    def query_many(self, rows: Sequence[Values]) -> "Query":
        """Return a query that runs this statement once per row of values, and returns no rows."""
        return Query(self, {}, tuple(rows))

    def _compile(self, dialect: DialectName) -> "CompiledSql":
        text = self.text
        if dialect == "postgresql":
            text = re.sub(r":now\b", SERVER_CLOCK_SQL, text)
        else:
            text = _POSTGRESQL_SYNTAX.sub("", text)
            for name, spelling in _SQLITE_SPELLINGS.items():
                text = text.replace(name, spelling)
        names = tuple(dict.fromkeys(PARAMETER.findall(text)))
        sigil = "$" if dialect == "postgresql" else "?"
        text = PARAMETER.sub(lambda match: f"{sigil}{names.index(match[1]) + 1}", text)
        encoders = {
            **dict.fromkeys(_ENCRYPTABLE_COLUMNS, _encode_value),
            **dict.fromkeys(self._array_parameters, _encode_list),
            **dict.fromkeys(self._table_parameters, _encode_table),
        }
        indexed_encoders = [(i, encoders[one]) for i, one in enumerate(names) if one in encoders]
        return CompiledSql(text, names, tuple(indexed_encoders))


def read_sections(*files: str) -> dict[str, str]:
    """Read the SQL files' sections by `-- name: NAME`; `{NAME}` inserts an earlier section."""
    texts = [(Path(__file__).parent / file).read_text("utf-8") for file in files]
    _, *parts = _NAME_LINE.split("\n".join(texts))
    sections: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        section_text = _COMMENT_LINE.sub("", text).strip()
        sections[name] = _INCLUDED_SECTION.sub(
            lambda match: sections.get(match[1], match[0]), section_text
        )
    return sections


SQL = {
    name: Statement(text)
    for name, text in read_sections(
        *("statements.sql", "histories.sql", "content.sql", "settings.sql", "operation.sql"),
        "memories.sql",
    ).items()
}
"""All statements, by name."""

Encoder: TypeAlias = Callable[[TextCodec, Any], Any]


@value_class
class CompiledSql:
    """A statement's text in one dialect, and the order and encoding of its values.

    Values are positional, because sqlite3 takes twice as long for named values.
    """

    text: str
    names: tuple[str, ...]
    """The names of the values $1, $2, ... or ?1, ?2, ..., in order."""
    indexed_encoders: tuple[tuple[int, Encoder], ...]
    """Indexes in `names` of the values to encode, with their encoders."""

    def arguments(self, values: Values, codec: TextCodec) -> Sequence[Any]:
        """Return the encoded values in the driver's order."""
        ordered_values = list(map(values.__getitem__, self.names))
        for index, encode in self.indexed_encoders:
            ordered_values[index] = encode(codec, ordered_values[index])
        return ordered_values


def _encode_value(codec: TextCodec, value: Any) -> Any:
    return codec.encode(value)


def _encode_list(codec: TextCodec, values: Sequence[Any]) -> list[Any]:
    return [codec.encode(one) for one in values]


def _encode_table(codec: TextCodec, rows: Sequence[Values]) -> str:
    encoded_rows = [
        {
            name: codec.encode(one) if name in _ENCRYPTABLE_COLUMNS else one
            for name, one in row.items()
        }
        for row in rows
    ]
    return _encode_json(encoded_rows).decode()


def decode_rows(rows: Rows, columns: tuple[str, ...], codec: TextCodec) -> Rows:
    indexes = _find_encryptable_indexes(columns)
    return [_decode_row(row, indexes, codec) for row in rows] if indexes else rows


@functools.cache
def _find_encryptable_indexes(columns: tuple[str, ...]) -> list[int]:
    """Return the indexes of encryptable columns, whose names may start with "_" or "_head_"."""
    return [
        index
        for index, name in enumerate(columns)
        if name.removeprefix("_").removeprefix("head_") in _ENCRYPTABLE_COLUMNS
    ]


def _decode_row(row: Sequence[Any], indexes: Sequence[int], codec: TextCodec) -> Sequence[Any]:
    decoded_columns: list[Any] | None = None
    for index in indexes:
        stored_value = row[index]
        try:
            value = codec.decode(stored_value)
        except Undecodable as error:  # fails only this row, see rows.py
            value = error
        if value is not stored_value:
            decoded_columns = decoded_columns or list(row)
            decoded_columns[index] = value
    return row if decoded_columns is None else tuple(decoded_columns)


@value_class
class Query:
    """A statement with its values, as yielded by a unit of work."""

    statement: Statement
    values: Values
    value_rows: tuple[Values, ...]
    """If not empty, the statement runs once for each of these, and returns no rows."""
    is_only_query_of_unit: bool = False
    """Whether it is the only query of its unit, which saves round trips on PostgreSQL."""


Unit: TypeAlias = Generator[Query, Rows, T]
"""A unit of work: a generator that yields queries, receives their rows, and returns a value."""

StartUnit: TypeAlias = Callable[[], Unit[T]]
"""A function that creates a unit; it is called again to repeat the unit."""


_DATA_EXCEPTION = "22"
_QUERY_ARGUMENT = re.compile(r"(query argument \$\d+): .*")


def describe_failure(error: BaseException) -> str:
    """Return the server's or driver's message on one line, or the error's class."""
    sql_state = getattr(error, "sqlstate", None) or ""
    if sql_state.startswith(_DATA_EXCEPTION):
        return f"{type(error).__name__} ({sql_state})"
    first_line = str(error).strip().partition("\n")[0]
    return _QUERY_ARGUMENT.sub(r"\1", first_line) or type(error).__name__


def to_store_error(error: BaseException) -> StoreError:
    """Convert a driver's error; raise the result `from None` to hide SQL values in tracebacks."""
    failure = StoreError(f"the database failed: {describe_failure(error)}")
    failure.sql_state = getattr(error, "sqlstate", None)
    return failure


def to_dict(rows: Rows) -> dict[Any, Any]:
    """Return rows of two columns as a dictionary."""
    return {key: value for key, value in rows}  # noqa: C416 -- rows are not tuples


def encode_sources(sources: Collection[str]) -> str:
    """Encode bots, each named as in `Address.source`, as the SQL value `served`."""
    return "," + ",".join(one if "@" in one else f"{one}@" for one in sorted(sources)) + ","
