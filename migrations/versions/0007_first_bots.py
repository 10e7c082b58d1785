"""The first bot of each platform, whose keys carry no bot id"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "first_bot",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("platform", name="pk_first_bot"),
    )


def downgrade() -> None:
    op.drop_table("first_bot")
