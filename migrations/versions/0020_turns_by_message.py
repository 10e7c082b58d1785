"""Turns are found by the platform's message in all histories of a channel"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    has_message = sa.text("message_id IS NOT NULL")
    op.create_index(
        "ix_turn_message",
        "turn",
        ["message_id"],
        sqlite_where=has_message,
        postgresql_where=has_message,
    )


def downgrade() -> None:
    op.drop_index("ix_turn_message", "turn")
