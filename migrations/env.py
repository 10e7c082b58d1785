"""How Alembic finds our tables; `bot.storage.sql.database` hands it an open connection."""

from alembic import context

from bot.storage.sql.tables import metadata
from bot.storage.vectors.pgvector import TABLE


def is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Leave a table alone that is made where it can be, and lost without harm."""
    return (kind, name) != ("table", TABLE)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    include_name=is_ours,
    render_as_batch=True,  # SQLite cannot alter a table in place
)
with context.begin_transaction():
    context.run_migrations()
