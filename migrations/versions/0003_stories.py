"""Stories of characters, and their vectors"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "story",
        sa.Column("character", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("vector", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("character", "sha256", name=op.f("pk_story")),
    )
    op.create_table(
        "story_revision",
        sa.Column("character", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("character", name=op.f("pk_story_revision")),
    )


def downgrade() -> None:
    op.execute("DROP TABLE IF EXISTS story_pgvector")
    op.drop_table("story_revision")
    op.drop_table("story")
