"""The channels of the web platform are kept with their messages"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "web_channel",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_web_channel"),
    )
    op.create_table(
        "web_message",
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("is_deleted", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("channel", "id", name="pk_web_message"),
    )
    op.create_index("ix_web_message_changes", "web_message", ["channel", "revision"])
    op.create_index("ix_web_message_order", "web_message", ["channel", "position"])


def downgrade() -> None:
    op.drop_table("web_message")
    op.drop_table("web_channel")
