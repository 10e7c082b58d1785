"""The environment of the migrations; `bot.storage.migrations` passes an open connection."""

from alembic import context

from bot.storage.tables import metadata
from bot.storage.vectors import TABLE

connection = context.config.attributes["connection"]


def is_migrated(name: str | None, kind: str, _parents: object) -> bool:
    """Exclude what is created outside of the migrations: the pgvector index."""
    return kind != "table" or name != TABLE


context.configure(
    connection=connection,
    target_metadata=metadata,
    include_name=is_migrated,
    render_as_batch=True,  # SQLite cannot alter a table in place
)
with context.begin_transaction():
    context.run_migrations()
