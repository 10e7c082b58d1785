"""The environment of the migrations; `bot.storage.sql.upgrading.migrations` passes an open connection."""

from alembic import context
from sqlalchemy.schema import SchemaItem, UniqueConstraint

from bot.storage.sql.tables import PARTITION_PREFIXES, metadata
from bot.storage.vectors.pgvector import TABLE

connection = context.config.attributes["connection"]


def is_migrated(name: str | None, kind: str, _parents: object) -> bool:
    """Exclude what is created outside of the migrations: the pgvector index, partitions."""
    return (
        kind != "table"
        or name is None
        or not (name == TABLE or name.startswith(PARTITION_PREFIXES))
    )


def is_compared(one: SchemaItem, _name: object, _kind: str, _is_read: bool, _other: object) -> bool:
    """Exclude the unique keys of partitioned tables: each partition has its own."""
    return not (
        isinstance(one, UniqueConstraint)
        and connection.dialect.name == "postgresql"
        and one.table.dialect_options["postgresql"]["partition_by"]
    )


context.configure(
    connection=connection,
    target_metadata=metadata,
    include_name=is_migrated,
    include_object=is_compared,
    render_as_batch=True,  # SQLite cannot alter a table in place
)
with context.begin_transaction():
    context.run_migrations()
