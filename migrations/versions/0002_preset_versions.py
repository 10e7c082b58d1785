"""Versions of presets, and the version that answered"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "preset_version",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_preset_version")),
    )
    op.add_column("turn", sa.Column("preset", sa.Text(), nullable=True))
    op.add_column("turn", sa.Column("preset_version", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("turn", "preset_version")
    op.drop_column("turn", "preset")
    op.drop_table("preset_version")
