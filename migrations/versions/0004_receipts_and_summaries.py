"""Receipts of answers, and summaries of old turns"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "receipt",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_receipt")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_receipt_conversation", "receipt", ["conversation", "id"])
    op.create_index("ix_receipt_at", "receipt", ["at"])
    op.create_table(
        "summary",
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("session", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("covers_to", sa.BigInteger(), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("chars", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("conversation", "session", name=op.f("pk_summary")),
    )


def downgrade() -> None:
    op.drop_table("summary")
    op.drop_table("receipt")
