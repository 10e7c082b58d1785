"""The receipt of every answer"""

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


def downgrade() -> None:
    op.drop_table("receipt")
