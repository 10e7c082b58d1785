"""The edition of a preset that somebody works on"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "preset_draft",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("base_version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.Column("source_name", sa.Text(), nullable=True),
        sa.Column("source", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_preset_draft")),
    )


def downgrade() -> None:
    op.drop_table("preset_draft")
