"""Restores, and what was forgotten before them"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "restore",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("answered_until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_restore"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "forgotten_message",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_forgotten_message"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("forgotten_message")
    op.drop_table("restore")
