"""INSERT ... ON CONFLICT: both databases spell it alike, SQLAlchemy has it once for each."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from sqlalchemy import Executable
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.schema import Table

Insert: TypeAlias = SqliteInsert | PostgresInsert


def upsert(table: Table, build: Callable[[Insert], Executable]) -> Mapping[str, Executable]:
    """The statement by the name of a dialect, made once: making one costs more than running it."""
    return {
        "sqlite": build(sqlite.insert(table)),
        "postgresql": build(postgresql.insert(table)),
    }
