"""SQL made once for each dialect, and units of work that are generators of queries.

A unit of work does no I/O: it yields queries and is sent their rows, so that the same function runs
in a thread over sqlite3 and in the event loop over asyncpg::

    def unit() -> Unit[int]:
        rows = yield EPOCH.query({"key": key})
        return rows[0][0]

SQLAlchemy Core writes the SQL, because it knows both dialects; it takes no part in running it,
where it cost more than the database did.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import Executable, ReturnsRows
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from bot.frozen_dataclass import frozen_dataclass
from bot.storage.encryption.column_types import (
    EncodedValue,
    EncryptableBytes,
    EncryptableText,
    EncryptableType,
    encoded_type,
)

T = TypeVar("T")
DialectName = Literal["sqlite", "postgresql"]
Values: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Sequence[Any]]

_DIALECTS: Mapping[DialectName, Dialect] = {
    "sqlite": sqlite.dialect(paramstyle="qmark"),
    "postgresql": postgresql.dialect(paramstyle="numeric_dollar"),  # type: ignore[no-untyped-call]
}


@frozen_dataclass
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


@frozen_dataclass
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
