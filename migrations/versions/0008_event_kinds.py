"""Edits, deletions, presses and joins pass the inbox, too"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("inbox", sa.Column("kind", sa.Text(), nullable=False, server_default="said"))


def downgrade() -> None:
    op.drop_column("inbox", "kind")
