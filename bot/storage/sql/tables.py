"""The tables. SQL is the only truth: what stands here survives every crash, all else may be wiped.

Times are Unix seconds in plain floats: no database then has an opinion on time zones.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
)

NEWEST = "0005"  # the revision in migrations/ that makes exactly these tables

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column that is spelled INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")

# Everything heard. A row stays `new` until one transaction answers it.
inbox = Table(
    "inbox",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("platform", Text, nullable=False),
    Column("external_key", Text, nullable=False),
    Column("conversation", Text, nullable=False),
    Column("payload", LargeBinary),  # the Incoming as JSON; emptied when it was answered
    Column("received_at", Float, nullable=False),
    Column("state", Text, nullable=False, server_default="new"),  # new | done
    Column("crashes", Integer, nullable=False, server_default="0"),
    UniqueConstraint("platform", "external_key"),
    sqlite_autoincrement=True,
)
# An index of some rows is of use to a query that has its condition word for word, in constants:
# for a value that is bound later, SQLite plans anew each time or reads everything.
is_unanswered = inbox.c.state == literal_column("'new'")
Index(
    "ix_inbox_open",
    inbox.c.conversation,
    inbox.c.id,
    sqlite_where=is_unanswered,
    postgresql_where=is_unanswered,
)

# How far each source was read: the Telegram offset, the last message of each Discord channel.
cursor = Table(
    "cursor",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

# Who walks a conversation. The epoch grows with every claim and fences all earlier ones.
conversation = Table(
    "conversation",
    metadata,
    Column("key", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("owner", Text),
    Column("lease_until", Float, nullable=False, server_default="0"),
    Column("session", Integer, nullable=False, server_default="1"),
)

# The histories. /new begins the next session; earlier ones are kept.
turn = Table(
    "turn",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("session", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("speaker_id", Text),
    Column("speaker_name", Text),
    Column("text", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("preset", Text),  # who answered, and in which version; only of what a model said
    Column("preset_version", Integer),
    Index("ix_turn_history", "conversation", "session", "id"),
    sqlite_autoincrement=True,
)

# What is to be said. Within a lane, rows go out strictly in the order of their ids.
outbox = Table(
    "outbox",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("turn", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Column("op", Text, nullable=False),  # send | edit | delete
    Column("platform", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("thread", Text),
    Column("lane", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("reply_to", Text),
    Column("interaction", Text),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("not_before", Float, nullable=False, server_default="0"),
    Column("started_at", Float),
    Column("external_id", Text),
    Column("error", Text),
    Column("file_name", Text),  # a file that a send brings along; emptied like the text
    Column("file_text", Text),
    UniqueConstraint("turn", "part", "op"),
    sqlite_autoincrement=True,
)
is_unsent = outbox.c.state.not_in([literal_column("'sent'"), literal_column("'dead'")])
Index(
    "ix_outbox_unsent",
    outbox.c.lane,
    outbox.c.id,
    sqlite_where=is_unsent,
    postgresql_where=is_unsent,
)
Index("ix_outbox_lane_external", outbox.c.lane, outbox.c.external_id)

# Settings made in chats: which preset a channel uses, and who chose it.
choice = Table(
    "choice",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("chosen_by", Text, nullable=False),
    Column("chosen_at", Float, nullable=False),
)

# Every form that a preset had when the service started with it; numbers of a name only grow.
preset_version = Table(
    "preset_version",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False),
    Column("content", Text, nullable=False),  # as `troupe preset export` writes it
    Column("first_seen_at", Float, nullable=False),
)

# What was sent for each answer; kept for a while only (retention.py).
receipt = Table(
    "receipt",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("turn", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("content", LargeBinary, nullable=False),  # packed; receipts.py
    Index("ix_receipt_conversation", "conversation", "id"),
    Index("ix_receipt_at", "at"),
    sqlite_autoincrement=True,
)

# The stories of characters. A vector is of use beside others of the same model only.
story = Table(
    "story",
    metadata,
    Column("character", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("place", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("model", Text),
    Column("vector", LargeBinary),  # float32, little-endian; NULL until it was made
)

# Grows with every change of a character's stories, so that whoever has them in memory notices.
story_revision = Table(
    "story_revision",
    metadata,
    Column("character", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

# What became too old for a history, in short; it holds while the turns under it are as they were.
summary = Table(
    "summary",
    metadata,
    Column("conversation", Text, primary_key=True),
    Column("session", Integer, primary_key=True, autoincrement=False),
    Column("covers_to", BigInteger, nullable=False),
    Column("turns", Integer, nullable=False),  # so many are covered, of so many letters
    Column("chars", BigInteger, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("text", Text, nullable=False),
)
