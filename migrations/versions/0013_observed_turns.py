"""Turns know whether they were only observed"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    observed = sa.Column("observed", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("turn", observed)


def downgrade() -> None:
    op.drop_column("turn", "observed")
