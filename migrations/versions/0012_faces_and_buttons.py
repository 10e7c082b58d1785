"""Faces and buttons of messages in the outbox"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("outbox", sa.Column("face", sa.Text(), nullable=True))
    op.add_column("outbox", sa.Column("buttons", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("outbox", "buttons")
    op.drop_column("outbox", "face")
