"""Index what presses, edits, retries and /forget look up

Sent messages by their turn, turns by their speaker, conversations and settings by a prefix.
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_sent_message_turn", "sent_message", ["turn"])
    has_speaker = sa.text("speaker_id IS NOT NULL")
    op.create_index(
        "ix_turn_speaker",
        "turn",
        ["speaker_id", "conversation"],
        sqlite_where=has_speaker,
        postgresql_where=has_speaker,
    )
    for name, table, column in (
        ("ix_conversation_prefix", "conversation", "key"),
        ("ix_choice_prefix", "choice", "scope"),
    ):
        op.create_index(name, table, [column], postgresql_ops={column: "text_pattern_ops"})


def downgrade() -> None:
    op.drop_index("ix_choice_prefix", "choice")
    op.drop_index("ix_conversation_prefix", "conversation")
    op.drop_index("ix_turn_speaker", "turn")
    op.drop_index("ix_sent_message_turn", "sent_message")
