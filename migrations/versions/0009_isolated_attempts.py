"""A message is blamed for the deaths of its process only if nothing else was in flight"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("own_crashes", "attempt"):
        column = sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        op.add_column("inbox", column)


def downgrade() -> None:
    for name in ("attempt", "own_crashes"):
        op.drop_column("inbox", name)
