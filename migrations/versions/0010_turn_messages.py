"""Turns know their messages, the turn that they follow, and which of their versions is active"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_COLUMNS = (
    sa.Column("parent", sa.BigInteger(), nullable=True),
    sa.Column("active", sa.Boolean(), nullable=False, server_default=sa.true()),
    sa.Column("message_id", sa.Text(), nullable=True),
    sa.Column("sent_as", sa.Text(), nullable=True),
)


def upgrade() -> None:
    for column in _COLUMNS:
        op.add_column("turn", column)
    op.create_table(
        "sent_message",
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("conversation", "external_id", name="pk_sent_message"),
    )
    # What was said before has no versions: each turn follows the one before it.
    op.execute(
        "UPDATE turn SET parent = (SELECT earlier.id FROM turn AS earlier "
        "WHERE earlier.conversation = turn.conversation AND earlier.session = turn.session "
        "AND earlier.id < turn.id ORDER BY earlier.id DESC LIMIT 1)"
    )


def downgrade() -> None:
    op.drop_table("sent_message")
    op.execute(sa.text("DELETE FROM turn WHERE NOT active"))
    for column in reversed(_COLUMNS):
        op.drop_column("turn", column.name)
