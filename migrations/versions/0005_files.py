"""Files in the outbox"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("outbox", sa.Column("file_name", sa.Text(), nullable=True))
    op.add_column("outbox", sa.Column("file_text", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("outbox", "file_text")
    op.drop_column("outbox", "file_name")
