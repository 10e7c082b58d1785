"""The oldest version of Troupe that may use the tables"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "supported_revision",
        sa.Column("oldest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("oldest", name="pk_supported_revision"),
    )


def downgrade() -> None:
    op.drop_table("supported_revision")
