"""Processes report themselves, and answering can be paused"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "role_lease", sa.Column("held_since", sa.Float(), nullable=False, server_default="0")
    )
    op.create_index(
        "ix_inbox_dead",
        "inbox",
        ["conversation"],
        sqlite_where=sa.text("state = 'dead'"),
        postgresql_where=sa.text("state = 'dead'"),
    )
    op.create_table(
        "node",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_node"),
    )
    op.create_table(
        "pause",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("scope", name="pk_pause"),
    )


def downgrade() -> None:
    op.drop_table("pause")
    op.drop_table("node")
    op.drop_index("ix_inbox_dead", "inbox")
    op.drop_column("role_lease", "held_since")
