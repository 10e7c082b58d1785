"""Keep why messages were answered or not, and what failed, outside of the processes"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "message_note",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("person", sa.Text()),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_message_note_key_id", "message_note", ["key", "id"])
    op.create_index("ix_message_note_person", "message_note", ["person"])


def downgrade() -> None:
    op.drop_table("message_note")
