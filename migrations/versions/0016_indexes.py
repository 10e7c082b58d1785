"""Indexes hold only what somebody looks for; /forget has one for what people said of themselves"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_HAS_EXTERNAL_ID = sa.text("external_id IS NOT NULL")
_IS_DEAD = sa.text("state = 'dead'")


def upgrade() -> None:
    is_sqlite = op.get_context().dialect.name == "sqlite"
    op.add_column(
        "choice", sa.Column("conversation", sa.Text(), nullable=False, server_default="?")
    )
    find = "instr" if is_sqlite else "strpos"
    # A person's id has a colon, and the name of a bot before the "@" of its own id has none.
    op.execute(
        "UPDATE choice SET conversation = CASE WHEN scope LIKE '%:%@%' "  # noqa: S608
        f"THEN substr(scope, {find}(scope, '@') + 1) ELSE '' END"
    )
    op.create_index("ix_choice_conversation", "choice", ["conversation"])
    op.drop_index("ix_outbox_lane_external", "outbox")
    op.create_index(
        "ix_outbox_lane_external",
        "outbox",
        ["lane", "external_id"],
        sqlite_where=_HAS_EXTERNAL_ID,
        postgresql_where=_HAS_EXTERNAL_ID,
    )
    op.create_index(
        "ix_outbox_dead", "outbox", ["lane"], sqlite_where=_IS_DEAD, postgresql_where=_IS_DEAD
    )
    if not is_sqlite:
        # Receipts are compressed already; most fit into a page, beside others.
        op.execute("ALTER TABLE receipt ALTER COLUMN content SET STORAGE EXTERNAL")
        op.execute("ALTER TABLE receipt SET (toast_tuple_target = 8160)")
        # These rows are changed at every message: in a page with room, most indexes stay as is.
        op.execute("ALTER TABLE conversation SET (fillfactor = 70)")
        # Every message leaves dead rows here: a fifth of a large table would be too many.
        for table in ("inbox", "outbox", "conversation", "lane"):
            op.execute(
                f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.02, "
                "autovacuum_analyze_scale_factor = 0.02)"
            )


def downgrade() -> None:
    if op.get_context().dialect.name != "sqlite":
        op.execute("ALTER TABLE conversation RESET (fillfactor)")
        op.execute("ALTER TABLE receipt RESET (toast_tuple_target)")
        op.execute("ALTER TABLE receipt ALTER COLUMN content SET STORAGE EXTENDED")
    op.drop_index("ix_outbox_dead", "outbox")
    op.drop_index("ix_outbox_lane_external", "outbox")
    op.create_index("ix_outbox_lane_external", "outbox", ["lane", "external_id"])
    op.drop_index("ix_choice_conversation", "choice")
    op.drop_column("choice", "conversation")
