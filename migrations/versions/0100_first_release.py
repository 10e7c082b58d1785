"""Create all tables of the first release; settings for PostgreSQL are at the end."""

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

# SQLite assigns row ids only in a column whose type is spelled INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def where(condition: str) -> dict[str, sa.TextClause]:
    return {f"{name}_where": sa.text(condition) for name in ("sqlite", "postgresql")}


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "budget",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_budget"),
    )
    op.create_table(
        "choice",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("chosen_by", sa.Text(), nullable=False),
        sa.Column("chosen_at", sa.Float(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name="pk_choice"),
    )
    op.create_index("ix_choice_conversation", "choice", ["conversation"])
    op.create_index("ix_choice_preset", "choice", ["chosen_by"], **where("key = 'preset'"))
    op.create_index(
        "ix_choice_prefix", "choice", ["scope"], postgresql_ops={"scope": "text_pattern_ops"}
    )
    op.create_table(
        "console_token",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("scopes", sa.Text(), server_default="", nullable=False),
        sa.Column("channels", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("sha256", name="pk_console_token"),
        sa.UniqueConstraint("name", name="uq_console_token_name"),
    )
    op.create_table(
        "conversation",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), server_default="", nullable=False),
        sa.Column("bot_id", sa.Text(), server_default="", nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.Float(), server_default="0", nullable=False),
        sa.Column("session", sa.Integer(), server_default="1", nullable=False),
        sa.Column("ready_since", sa.Float(), nullable=True),
        sa.Column("memory_read_to", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("memory_asked_to", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_conversation"),
    )
    op.create_index(
        "ix_conversation_prefix",
        "conversation",
        ["key"],
        postgresql_ops={"key": "text_pattern_ops"},
    )
    op.create_index(
        "ix_conversation_ready", "conversation", ["ready_since"], **where("ready_since IS NOT NULL")
    )
    op.create_table(
        "cursor",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_cursor"),
    )
    op.create_table(
        "first_bot",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("platform", name="pk_first_bot"),
    )
    op.create_table(
        "forgotten",
        sa.Column("id", ID, nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_forgotten"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_forgotten_at", "forgotten", ["at"])
    op.create_table(
        "forgotten_message",
        sa.Column("id", ID, nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_forgotten_message"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "inbox",
        sa.Column("id", ID, nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), server_default="", nullable=False),
        sa.Column("external_key", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), server_default="said", nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=True),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), server_default="new", nullable=False),
        sa.Column("crashes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("own_crashes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_inbox"),
        sa.UniqueConstraint(
            "platform", "bot_id", "external_key", name="uq_inbox_platform_bot_id_external_key"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_inbox_dead", "inbox", ["conversation"], **where("state = 'dead'"))
    op.create_index("ix_inbox_open", "inbox", ["conversation", "id"], **where("state = 'new'"))
    op.create_table(
        "lane",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), server_default="", nullable=False),
        sa.Column("due_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_lane"),
    )
    op.create_index("ix_lane_due", "lane", ["due_at"], **where("due_at IS NOT NULL"))
    op.create_table(
        "memory",
        sa.Column("id", ID, nullable=False),
        sa.Column("subject_kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("subject_name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("said_by", sa.Text(), nullable=False),
        sa.Column("told_by", sa.Text(), nullable=True),
        sa.Column("told_by_name", sa.Text(), nullable=True),
        sa.Column("present", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("turns", sa.Text(), nullable=False),
        sa.Column("is_derived", sa.Boolean(), nullable=False),
        sa.Column("audience", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("is_widened", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("until", sa.Float(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("embedding", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_memory"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_memory_audience", "memory", ["audience", "state", "id"])
    op.create_index("ix_memory_subject", "memory", ["subject", "audience"])
    op.create_index("ix_memory_said_by", "memory", ["said_by"])
    op.create_index("ix_memory_origin", "memory", ["origin"])
    op.create_index("ix_memory_conversation", "memory", ["conversation"])
    op.create_index("ix_memory_gone", "memory", ["state"], **where("state = 'gone'"))
    op.create_table(
        "memory_use",
        sa.Column("receipt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("memory", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("receipt", "memory", name="pk_memory_use"),
    )
    op.create_index("ix_memory_use_memory", "memory_use", ["memory"])
    op.create_table(
        "message_note",
        sa.Column("id", ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_message_note"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_message_note_key_id", "message_note", ["key", "id"])
    op.create_index("ix_message_note_person", "message_note", ["person"])
    op.create_table(
        "node",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("report", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("owner", name="pk_node"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", ID, nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), server_default="", nullable=False),
        sa.Column("chat", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("reply_to", sa.Text(), nullable=True),
        sa.Column("interaction", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", sa.Float(), server_default="0", nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("target_turn", sa.Text(), nullable=True),
        sa.Column("target_part", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("file_name", sa.Text(), nullable=True),
        sa.Column("file_text", sa.Text(), nullable=True),
        sa.Column("face", sa.Text(), nullable=True),
        sa.Column("buttons", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("turn", "part", "op", name="uq_outbox_turn_part_op"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_dead", "outbox", ["lane"], **where("state = 'dead'"))
    op.create_index(
        "ix_outbox_lane_external",
        "outbox",
        ["lane", "external_id"],
        **where("external_id IS NOT NULL"),
    )
    op.create_index(
        "ix_outbox_unsent", "outbox", ["lane", "id"], **where("(state NOT IN ('sent', 'dead'))")
    )
    op.create_table(
        "pause",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("scope", name="pk_pause"),
    )
    op.create_table(
        "preset_draft",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("base_version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.Column("source_name", sa.Text(), nullable=True),
        sa.Column("source", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_preset_draft"),
    )
    op.create_table(
        "preset_version",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.Float(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", "version", name="pk_preset_version"),
    )
    op.create_index(
        "ix_preset_version_owner", "preset_version", ["owner"], **where("owner IS NOT NULL")
    )
    op.create_table(
        "provider_key",
        sa.Column("id", ID, nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("added_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_provider_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "receipt",
        sa.Column("id", ID, nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("person", sa.Text(), nullable=True),
        sa.Column("server", sa.Text(), nullable=True),
        sa.Column("preset", sa.Text(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cost", sa.BigInteger(), nullable=True),
        sa.Column("first_word_seconds", sa.Float(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_receipt"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_receipt_content", "receipt", ["at"], **where("length(content) > 0"))
    op.create_index("ix_receipt_conversation", "receipt", ["conversation", "id"])
    op.create_index(
        "ix_receipt_usage",
        "receipt",
        [
            *("at", "turn", "conversation", "person", "preset", "provider", "model"),
            *("prompt_tokens", "cached_tokens", "output_tokens", "cost", "first_word_seconds"),
        ],
    )
    op.create_index("ix_receipt_person", "receipt", ["person", "at"])
    op.create_table(
        "restore",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("answered_until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_restore"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "role_lease",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("held_since", sa.Float(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("role", name="pk_role_lease"),
    )
    op.create_table(
        "feedback",
        sa.Column("receipt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("reaction", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("receipt", "person", name="pk_feedback"),
    )
    op.create_index("ix_feedback_person", "feedback", ["person"])
    op.create_index("ix_feedback_at", "feedback", ["at"])
    op.create_table(
        "sent_message",
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("conversation", "external_id", name="pk_sent_message"),
    )
    op.create_index("ix_sent_message_turn", "sent_message", ["turn"])
    op.create_table(
        "story",
        sa.Column("character", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("vector", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("character", "sha256", name="pk_story"),
    )
    op.create_table(
        "story_revision",
        sa.Column("character", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("character", name="pk_story_revision"),
    )
    op.create_table(
        "summary",
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("session", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("covers_to", sa.BigInteger(), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("conversation", "session", name="pk_summary"),
    )
    op.create_table(
        "supported_revision",
        sa.Column("oldest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("oldest", name="pk_supported_revision"),
    )
    op.create_table(
        "turn",
        sa.Column("id", ID, nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("session", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("speaker_id", sa.Text(), nullable=True),
        sa.Column("speaker_name", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("preset", sa.Text(), nullable=True),
        sa.Column("preset_version", sa.Integer(), nullable=True),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("active", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("sent_as", sa.Text(), nullable=True),
        sa.Column("observed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("files", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_turn"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_turn_history", "turn", ["conversation", "session", "id"])
    op.create_index("ix_turn_message", "turn", ["message_id"], **where("message_id IS NOT NULL"))
    op.create_index(
        "ix_turn_speaker", "turn", ["speaker_id", "conversation"], **where("speaker_id IS NOT NULL")
    )
    op.create_table(
        "web_channel",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
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
        sa.Column("is_deleted", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("channel", "id", name="pk_web_message"),
    )
    op.create_index("ix_web_message_changes", "web_message", ["channel", "revision"])
    op.create_index("ix_web_message_order", "web_message", ["channel", "position"])

    if op.get_context().dialect.name == "postgresql":
        # Receipts are already compressed, and most fit into a page with other rows.
        op.execute("ALTER TABLE receipt ALTER COLUMN content SET STORAGE EXTERNAL")
        op.execute("ALTER TABLE receipt SET (toast_tuple_target = 8160)")
        # Every message changes these rows. If the page has free space, most indexes stay as is.
        op.execute("ALTER TABLE conversation SET (fillfactor = 70)")
        # Every message leaves dead rows here: a fifth of a large table would be too many.
        for table in ("inbox", "outbox", "conversation", "lane"):
            op.execute(
                f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.02, "
                "autovacuum_analyze_scale_factor = 0.02)"
            )
