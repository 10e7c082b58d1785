"""What the two dialects spell differently: upserts, the clock of leases, locks, prefixes."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    Select,
    and_,
    bindparam,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import Table

from bot.storage.engine.statements import DialectName
from bot.storage.sql.tables import Insert


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
