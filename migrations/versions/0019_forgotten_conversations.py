"""Every process hears in which conversations something was forgotten"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "forgotten",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_forgotten"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_forgotten_at", "forgotten", ["at"])


def downgrade() -> None:
    op.drop_table("forgotten")
