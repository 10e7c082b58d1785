"""An outbox row may change the message of another turn"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("outbox", sa.Column("target_turn", sa.Text(), nullable=True))
    op.add_column("outbox", sa.Column("target_part", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("outbox", "target_part")
    op.drop_column("outbox", "target_turn")
