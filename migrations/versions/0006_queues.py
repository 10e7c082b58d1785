"""The queues are the database's: ready conversations, due lanes; several bots on one platform"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite cannot change a constraint in place: the table is made anew.
    with op.batch_alter_table("inbox", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.add_column(sa.Column("bot_id", sa.Text(), nullable=False, server_default=""))
        table.drop_constraint("uq_inbox_platform_external_key", type_="unique")
        table.create_unique_constraint(
            "uq_inbox_platform_bot_id_external_key", ["platform", "bot_id", "external_key"]
        )
    for table, column in (
        ("outbox", sa.Column("bot_id", sa.Text(), nullable=False, server_default="")),
        ("outbox", sa.Column("owner", sa.Text(), nullable=True)),
        ("conversation", sa.Column("platform", sa.Text(), nullable=False, server_default="")),
        ("conversation", sa.Column("bot_id", sa.Text(), nullable=False, server_default="")),
        ("conversation", sa.Column("ready_since", sa.Float(), nullable=True)),
    ):
        op.add_column(table, column)
    op.create_table(
        "lane",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), nullable=False, server_default=""),
        sa.Column("due_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_lane"),
    )
    _fill()
    for name, table, column in (
        ("ix_conversation_ready", "conversation", "ready_since"),
        ("ix_lane_due", "lane", "due_at"),
    ):
        condition = sa.text(f"{column} IS NOT NULL")
        op.create_index(name, table, [column], sqlite_where=condition, postgresql_where=condition)


def _fill() -> None:
    """Queue what was unanswered and unsent before."""
    op.execute(
        "INSERT INTO conversation (key, epoch, lease_until, session) "
        "SELECT DISTINCT conversation, 0, 0.0, 1 FROM inbox "
        "WHERE conversation NOT IN (SELECT key FROM conversation)"
    )
    # A key begins with the name of its platform: discord:1234, telegram:-100:7
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE conversation SET platform = substr(key, 1, instr(key, ':') - 1)")
    else:
        op.execute("UPDATE conversation SET platform = split_part(key, ':', 1)")
    op.execute(
        "UPDATE conversation SET ready_since = (SELECT min(received_at) FROM inbox "
        "WHERE inbox.conversation = conversation.key AND inbox.state = 'new')"
    )
    op.execute(
        "INSERT INTO lane (key, platform, due_at) "
        "SELECT lane, min(platform), 0.0 FROM outbox "
        "WHERE state NOT IN ('sent', 'dead') GROUP BY lane"
    )


def downgrade() -> None:
    op.drop_index("ix_lane_due", "lane")
    op.drop_table("lane")
    op.drop_index("ix_conversation_ready", "conversation")
    for table, column in (
        *(("conversation", name) for name in ("ready_since", "bot_id", "platform")),
        *(("outbox", name) for name in ("owner", "bot_id")),
    ):
        op.drop_column(table, column)
    with op.batch_alter_table("inbox", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.drop_constraint("uq_inbox_platform_bot_id_external_key", type_="unique")
        table.create_unique_constraint(
            "uq_inbox_platform_external_key", ["platform", "external_key"]
        )
        table.drop_column("bot_id")
