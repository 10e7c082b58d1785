"""The environment of the migrations; `bot.storage.migrations` passes an open connection."""

from alembic import context

from bot.storage.tables import metadata

connection = context.config.attributes["connection"]


context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter a table in place
)
with context.begin_transaction():
    context.run_migrations()
