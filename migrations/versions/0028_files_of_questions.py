"""Turns know where the platform has the files of a question, so that it can be asked again"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turn", sa.Column("files", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("turn", "files")
