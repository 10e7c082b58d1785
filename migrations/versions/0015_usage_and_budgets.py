"""Usage is kept with receipts, and budgets count what is spent"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TEXTS = ("person", "server", "preset", "provider", "model")
_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "cost")


def upgrade() -> None:
    for name in _TEXTS:
        op.add_column("receipt", sa.Column(name, sa.Text(), nullable=True))
    for name in _COUNTS:
        op.add_column("receipt", sa.Column(name, sa.BigInteger(), nullable=True))
    op.drop_index("ix_receipt_at", "receipt")
    op.create_index("ix_receipt_person", "receipt", ["person", "at"])
    has_content = sa.text("length(content) > 0")
    op.create_index(
        "ix_receipt_content",
        "receipt",
        ["at"],
        sqlite_where=has_content,
        postgresql_where=has_content,
    )
    op.create_table(
        "budget",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_budget"),
    )


def downgrade() -> None:
    op.drop_table("budget")
    for index in ("ix_receipt_content", "ix_receipt_person"):
        op.drop_index(index, "receipt")
    op.create_index("ix_receipt_at", "receipt", ["at"])
    for name in (*_COUNTS, *_TEXTS):
        op.drop_column("receipt", name)
