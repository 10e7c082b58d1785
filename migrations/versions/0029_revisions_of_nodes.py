"""Which tables a process knows, so that they change once no older one runs

The service then partitions `inbox` and `outbox` in PostgreSQL (bot/storage/partitions/).
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

# Each table's unique key and indexes.
_KEYS = {
    "inbox": (
        "CONSTRAINT uq_inbox_platform_bot_id_external_key UNIQUE (platform, bot_id, external_key)",
        "CREATE INDEX ix_inbox_open ON inbox (conversation, id) WHERE state = 'new'",
        "CREATE INDEX ix_inbox_dead ON inbox (conversation) WHERE state = 'dead'",
    ),
    "outbox": (
        "CONSTRAINT uq_outbox_turn_part_op UNIQUE (turn, part, op)",
        "CREATE INDEX ix_outbox_unsent ON outbox (lane, id) WHERE state NOT IN ('sent', 'dead')",
        "CREATE INDEX ix_outbox_lane_external ON outbox (lane, external_id) "
        "WHERE external_id IS NOT NULL",
        "CREATE INDEX ix_outbox_dead ON outbox (lane) WHERE state = 'dead'",
    ),
}


def upgrade() -> None:
    op.add_column("node", sa.Column("revision", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("node", "revision")
    if op.get_context().dialect.name == "sqlite":
        return
    kinds = sa.text("SELECT relname FROM pg_class WHERE relname = ANY(:names) AND relkind = 'p'")
    for table in op.get_bind().execute(kinds, {"names": list(_KEYS)}).scalars().all():
        unique, *indexes = _KEYS[table]
        op.execute(f"ALTER TABLE {table} RENAME TO {table}_by_id")
        op.execute(
            f"CREATE TABLE {table} (LIKE {table}_by_id INCLUDING DEFAULTS INCLUDING STORAGE)"
        )
        op.execute(f"INSERT INTO {table} SELECT * FROM {table}_by_id")  # noqa: S608
        op.execute(f"ALTER SEQUENCE {table}_id_seq OWNED BY {table}.id")
        op.execute(f"DROP TABLE {table}_by_id")
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT pk_{table} PRIMARY KEY (id), ADD {unique}")
        for index in indexes:
            op.execute(index)
