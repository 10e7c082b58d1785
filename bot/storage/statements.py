"""SQL made once for each dialect, and units of work that are generators of queries.

A unit of work does no I/O: it yields queries and is sent their rows, so that the same function runs
in a thread over sqlite3 and in the event loop over asyncpg::

    def unit() -> Unit[int]:
        rows = yield EPOCH.query({"key": key})
        return rows[0][0]

SQLAlchemy Core writes the SQL, because it knows both dialects; it takes no part in running it,
where it cost more than the database did.
"""

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Float,
    ReturnsRows,
    Select,
    and_,
    bindparam,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import Table
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from bot.errors import StoreError, Undecodable
from bot.storage.codec import TextCodec
from bot.storage.column_types import (
    EncodedValue,
    EncryptableBytes,
    EncryptableText,
    EncryptableType,
    encoded_type,
)
from bot.storage.tables import Insert
from bot.value_class import value_class

T = TypeVar("T")
DialectName = Literal["sqlite", "postgresql"]
Values: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Sequence[Any]]

_DIALECTS: Mapping[DialectName, Dialect] = {
    "sqlite": sqlite.dialect(paramstyle="qmark"),
    "postgresql": postgresql.dialect(paramstyle="numeric_dollar"),  # type: ignore[no-untyped-call]
}


@value_class
class CompiledSql:
    """The text of a statement in one dialect, and how its values are handed to the driver.

    Values go by position: sqlite3 takes twice the time to look them up by name.
    """

    text: str
    defaults: Values
    names: tuple[str, ...]
    """The values in the order of $1, $2, ..., or of the question marks."""
    encoded: tuple[tuple[int, EncodedValue], ...] = ()
    """The values that can be encrypted, by their places in `names`."""
    decoded: tuple[tuple[int, EncryptableType], ...] = ()
    """The columns of the rows that can be encrypted, by their places."""


class Statement:
    """One statement, compiled when it is first used with a dialect.

    Args:
        build: gives the statement of a dialect; where both read the same, a plain statement.
    """

    def __init__(self, build: Executable | Callable[[DialectName], Executable]) -> None:
        self._build = build
        self._compiled: dict[DialectName, CompiledSql] = {}

    def compiled(self, dialect: DialectName) -> CompiledSql:
        """Return the SQL of a dialect."""
        found = self._compiled.get(dialect)
        if found is None:
            found = self._compiled[dialect] = self._compile(dialect)
        return found

    def query(self, values: Values | None = None) -> "Query":
        """Return this statement with its values; running it gives its rows."""
        return Query(self, values or {}, ())

    def query_alone(self, values: Values | None = None) -> "Query":
        """Return this statement as a whole unit: it needs no transaction around it.

        Nor do those that follow it in a unit that only reads.
        """
        return Query(self, values or {}, (), is_whole_unit=True)

    def query_many(self, rows: Sequence[Values]) -> "Query":
        """Return this statement once for each of the rows; running it gives no rows."""
        return Query(self, {}, tuple(rows))

    def _compile(self, dialect: DialectName) -> CompiledSql:
        statement = self._build if isinstance(self._build, Executable) else self._build(dialect)
        columns = statement.exported_columns if isinstance(statement, ReturnsRows) else ()
        assert isinstance(statement, ClauseElement)  # noqa: S101 -- every Executable we write is one
        compiled = statement.compile(dialect=_DIALECTS[dialect])
        assert isinstance(compiled, SQLCompiler)  # noqa: S101
        order = compiled.positiontup or ()
        defaults = {
            name: bound.value
            for name, bound in compiled.binds.items()
            if name in order and not bound.required
        }
        types = (
            (place, encoded_type(compiled.binds[name].type)) for place, name in enumerate(order)
        )
        encoded = tuple(
            (place, type_) for place, type_ in types if type_ and order[place] not in defaults
        )
        decoded = tuple(
            (index, column.type)
            for index, column in enumerate(columns)
            if isinstance(column.type, EncryptableText | EncryptableBytes)
        )
        return CompiledSql(compiled.string, defaults, tuple(order), encoded, decoded)


@value_class
class Query:
    """A statement with values, as a unit of work yields it."""

    statement: Statement
    values: Values
    many: tuple[Values, ...]
    """Not empty: the statement runs once for each of these, and gives no rows."""
    is_whole_unit: bool = False
    """Whether it is the only one of its unit, which then takes one round trip on PostgreSQL."""


Unit: TypeAlias = Generator[Query, Rows, T]
"""A unit of work: yields queries, is sent their rows, returns a value."""

StartUnit: TypeAlias = Callable[[], Unit[T]]
"""Starts a unit anew: a unit may run twice, when another of its batch failed."""


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
        except Undecodable as error:  # only its row is lost: see storage/rows.py
            value = error
        if value is not row[index]:
            columns = columns or list(row)
            columns[index] = value
    return row if columns is None else tuple(columns)


_DATA_EXCEPTION = "22"
_ARGUMENT = re.compile(r"(query argument \$\d+): .*")


def describe_failure(error: BaseException) -> str:
    """Return one line: what the server or the driver says, or else the error's class."""
    state = getattr(error, "sqlstate", None) or ""
    if state.startswith(_DATA_EXCEPTION):
        return f"{type(error).__name__} ({state})"
    line = str(error).strip().partition("\n")[0]
    return _ARGUMENT.sub(r"\1", line) or type(error).__name__


def to_store_error(error: BaseException) -> StoreError:
    """Make ours of a driver's error; to be raised `from None`, as its traceback has the values."""
    failure = StoreError(f"the database failed: {describe_failure(error)}")
    failure.sql_state = getattr(error, "sqlstate", None)
    return failure


def insert_into(table: Table, dialect: DialectName, *columns: str) -> Insert:
    """Return an INSERT of these columns, each bound by its own name."""
    values: dict[str, Any] = {name: bindparam(name) for name in columns}
    if dialect == "sqlite":
        return sqlite.insert(table).values(values)
    return postgresql.insert(table).values(values).inline()


def clock(dialect: DialectName) -> ColumnElement[float]:
    """Return the time by which leases are judged, in Unix seconds.

    Many machines share the database's own clock: one of theirs may be wrong. SQLite has no other
    clock than its machine's, so there the process binds `now`.
    """
    if dialect == "sqlite":
        return bindparam("now", type_=Float)
    return cast(func.extract("epoch", func.clock_timestamp()), Float(53))


def clock_at(dialect: str, now: float) -> ColumnElement[float]:
    """Return the same time for a statement that is built for one run; `now` is the process's."""
    return literal(now, Float) if dialect == "sqlite" else clock("postgresql")


def skip_locked(query: Select[*tuple[str]], dialect: DialectName) -> Select[*tuple[str]]:
    """Lock the rows found, without those that somebody else has locked."""
    return query.with_for_update(skip_locked=True) if dialect == "postgresql" else query


def unlocked_row(
    key: Column[str], condition: ColumnElement[bool], dialect: DialectName
) -> ColumnElement[bool]:
    """Accept the one row that fulfils a condition, unless somebody else has locked it."""
    if dialect == "sqlite":
        return condition
    return key == skip_locked(select(key).where(condition), dialect).scalar_subquery()


def bound_texts(name: str, dialect: DialectName) -> Select[tuple[str]]:
    """Return the texts of a bound JSON list, as rows."""
    if dialect == "sqlite":
        return select(func.json_each(bindparam(name)).table_valued("value").c.value)
    listed = cast(bindparam(name), postgresql.JSONB)
    # The alias is no column of any table: that one would be read instead.
    return select(func.jsonb_array_elements_text(listed).column_valued("bound_text"))


def has_prefix(column: Column[str], prefix: str, dialect: str) -> ColumnElement[bool]:
    """Match texts that begin with a prefix by an index of the column.

    SQLite uses none for LIKE, but orders texts by code point; on PostgreSQL the index needs
    `text_pattern_ops`.
    """
    if dialect == "sqlite":
        return and_(column >= prefix, column < f"{prefix}\U0010ffff")
    return column.startswith(prefix, autoescape=True)


def is_served(table: Table, dialect: DialectName) -> ColumnElement[bool]:
    """Return whether the bot of a row is in the bound text `served`: ",discord@,telegram@77,"."""
    find = func.instr if dialect == "sqlite" else func.strpos
    wrapped = "," + table.c.platform + "@" + table.c.bot_id + ","
    return find(bindparam("served"), wrapped) > 0


def served_text(sources: Collection[str]) -> str:
    """Return the value of `served` for bots as `Address.source` names them."""
    return "," + ",".join(one if "@" in one else f"{one}@" for one in sorted(sources)) + ","
