"""The tables, which hold all durable state; anything else may be lost at any time.

Columns with people's or characters' texts have an encryptable type; all others, such as ids and
numbers, are stored as they are.

Times are Unix seconds as floats, so that no database converts time zones.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.schema import SchemaItem

from bot.storage.column_types import EncryptableBytes, EncryptableText

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite assigns row ids only in a column whose type is spelled INTEGER.
_ID_TYPE = BigInteger().with_variant(Integer, "sqlite")


def _table(name: str, *items: SchemaItem) -> Table:
    return Table(name, metadata, *items)


def _numbered_table(name: str, *items: SchemaItem) -> Table:
    """Return a table whose rows have ids that are never reused."""
    number = Column("id", _ID_TYPE, primary_key=True)
    return Table(name, metadata, number, *items, sqlite_autoincrement=True)


def _partial_index(name: str, condition: str, *columns: str) -> Index:
    """Create a partial index; only queries with the same condition and constants use it."""
    where_clause = text(condition)
    return Index(name, *columns, sqlite_where=where_clause, postgresql_where=where_clause)


# Received events. A row is `new` until the transaction that stores its answer. It is `dead` if the
# message was set aside instead; then its content is kept, so that an operator can retry it.
inbox = _numbered_table(
    "inbox",
    Column("platform", Text, nullable=False),
    Column("bot_id", Text, nullable=False, server_default=""),  # an additional bot of the platform
    Column("external_key", Text, nullable=False),
    Column("conversation", Text, nullable=False),
    # said | edited | deleted | pressed | reacted | joined | forget | say
    Column("kind", Text, nullable=False, server_default="said"),
    # the event as JSON; NULL once it is answered
    Column("payload", EncryptableBytes()),
    Column("received_at", Float, nullable=False),
    Column("state", Text, nullable=False, server_default="new"),  # new | done | dead
    # how many processes died during an attempt, how many of these deaths only this message can have
    # caused, and the state of the latest attempt: an `AttemptState` (bot/chat/session.py)
    Column("crashes", Integer, nullable=False, server_default="0"),
    Column("own_crashes", Integer, nullable=False, server_default="0"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    UniqueConstraint("platform", "bot_id", "external_key"),
    _partial_index("ix_inbox_open", "state = 'new'", "conversation", "id"),
    _partial_index("ix_inbox_dead", "state = 'dead'", "conversation"),
)


# How far sources were read, such as the Telegram offset or a Discord channel's last message.
cursor = _table(
    "cursor", Column("name", Text, primary_key=True), Column("value", Text, nullable=False)
)

# Each platform's first bot, whose rows and keys contain no bot id.
first_bot = _table(
    "first_bot", Column("platform", Text, primary_key=True), Column("account", Text, nullable=False)
)

# Each conversation's claim, and the time since when it has unanswered messages. A new claim raises
# the epoch, which invalidates all earlier claims.
conversation = _table(
    "conversation",
    Column("key", Text, primary_key=True),
    Column("platform", Text, nullable=False, server_default=""),
    Column("bot_id", Text, nullable=False, server_default=""),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("owner", Text),
    Column("lease_until", Float, nullable=False, server_default="0"),
    Column("session", Integer, nullable=False, server_default="1"),
    Column("ready_since", Float),  # NULL: no unanswered messages
    # the newest turn searched for memories, and the newest turn when a model was last asked
    Column("memory_read_to", BigInteger, nullable=False, server_default="0"),
    Column("memory_asked_to", BigInteger, nullable=False, server_default="0"),
    _partial_index("ix_conversation_ready", "ready_since IS NOT NULL", "ready_since"),
    # PostgreSQL searches by prefix only with these operators, whatever the collation.
    Index("ix_conversation_prefix", "key", postgresql_ops={"key": "text_pattern_ops"}),
)

# The process that holds each exclusive role, such as polling a bot's updates.
role_lease = _table(
    "role_lease",
    Column("role", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("lease_until", Float, nullable=False),
    Column("held_since", Float, nullable=False, server_default="0"),
)

# The processes of this installation; a process that crashes leaves its row behind.
node = _table(
    "node",
    Column("owner", Text, primary_key=True),  # the name under which it holds leases
    Column("roles", Text, nullable=False),  # separated by commas
    Column("version", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("report", EncryptableBytes()),  # a `ProcessReport` as msgpack; NULL: none yet
)

# Pauses: until its end, the bot answers nobody in the scope.
pause = _table(
    "pause",
    Column("scope", Text, primary_key=True),  # everywhere, a platform, bot, chat or topic
    Column("by", Text, nullable=False),
    Column("at", Float, nullable=False),
)

# Conversations in which something was deleted; every process then clears its caches of them.
conversation_deletion = _numbered_table(
    "forgotten",
    Column("conversation", Text, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_forgotten_at", "at"),
)

# Restores of this database from a backup. `answered_until` is when the lost database was last
# used; messages from before that time are not answered again.
restore = _numbered_table(
    "restore", Column("at", Float, nullable=False), Column("answered_until", Float, nullable=False)
)

# Messages that were forgotten before the newest restore, and that platforms may deliver again.
forgotten_message = _numbered_table(
    "forgotten_message",
    Column("conversation", Text, nullable=False),
    Column("message_id", Text, nullable=False),  # "": all messages until `at`
    Column("at", Float, nullable=False),
)

# Histories. /new starts the next session; earlier sessions are kept. Turns with the same parent are
# versions of each other: one is active, and the others are kept as branches.
turn = _numbered_table(
    "turn",
    Column("conversation", Text, nullable=False),
    Column("session", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("speaker_id", Text),
    Column("speaker_name", EncryptableText()),
    Column("text", EncryptableText(), nullable=False),
    Column("at", Float, nullable=False),
    Column("preset", Text),  # the preset that answered; NULL: a person's turn
    Column("preset_version", Integer),
    Column("parent", BigInteger),  # the previous turn; NULL: the first of the session
    Column("active", Boolean, nullable=False, server_default=true()),
    Column("message_id", Text),  # the platform's id of a person's message
    Column("sent_as", Text),  # the names of an answer's parts, see `encode_names`
    Column("observed", Boolean, nullable=False, server_default=false()),  # did not address the bot
    # the addresses of a question's files, see `encode_files`; NULL: no files
    Column("files", EncryptableText()),
    Index("ix_turn_history", "conversation", "session", "id"),
    _partial_index("ix_turn_message", "message_id IS NOT NULL", "message_id"),
    _partial_index("ix_turn_speaker", "speaker_id IS NOT NULL", "speaker_id", "conversation"),
)

# Messages to send, edit or delete; in each lane in the order of their ids.
outbox = _numbered_table(
    "outbox",
    Column("turn", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Column("op", Text, nullable=False),  # send | edit | delete
    Column("platform", Text, nullable=False),
    Column("bot_id", Text, nullable=False, server_default=""),
    Column("chat", Text, nullable=False),
    Column("thread", Text),
    Column("lane", Text, nullable=False),
    Column("text", EncryptableText(), nullable=False),
    Column("reply_to", Text),
    Column("interaction", Text),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("not_before", Float, nullable=False, server_default="0"),
    Column("started_at", Float),
    Column("owner", Text),  # the sender that holds the row; NULL: none
    Column("external_id", Text),  # for an edit or deletion: the message, if known
    Column("target_turn", Text),  # the part to change, if it is of another turn
    Column("target_part", Integer),
    Column("error", EncryptableText()),
    # the file to attach; NULL once it is sent
    Column("file_name", EncryptableText()),
    Column("file_text", EncryptableText()),
    # as JSON, see rows.py; NULL: the bot's own name and picture
    Column("face", EncryptableText()),
    Column("buttons", EncryptableText()),  # as JSON; NULL: none
    UniqueConstraint("turn", "part", "op"),
    _partial_index("ix_outbox_unsent", "state NOT IN ('sent', 'dead')", "lane", "id"),
    _partial_index("ix_outbox_lane_external", "external_id IS NOT NULL", "lane", "external_id"),
    _partial_index("ix_outbox_dead", "state = 'dead'", "lane"),
)

# The platform's ids of messages whose outbox rows were deleted (retention.py).
kept_message_id = _table(
    "sent_message",
    Column("conversation", Text, primary_key=True),
    Column("external_id", Text, primary_key=True),
    Column("turn", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Index("ix_sent_message_turn", "turn"),
)

# `due_at` is when a lane's first unsent row is due or its sender's lease ends; NULL: all is sent.
lane = _table(
    "lane",
    Column("key", Text, primary_key=True),
    Column("platform", Text, nullable=False),
    Column("bot_id", Text, nullable=False, server_default=""),
    Column("due_at", Float),
    _partial_index("ix_lane_due", "due_at IS NOT NULL", "due_at"),
)

# Settings that were chosen in chats, such as the preset of a channel.
setting = _table(
    "choice",
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", EncryptableText(), nullable=False),
    Column("chosen_by", Text, nullable=False),
    Column("chosen_at", Float, nullable=False),
    # for a person's self-description: the conversation where it was given; otherwise ""
    Column("conversation", Text, nullable=False),
    Index("ix_choice_conversation", "conversation"),
    _partial_index("ix_choice_preset", "key = 'preset'", "chosen_by"),
    Index("ix_choice_prefix", "scope", postgresql_ops={"scope": "text_pattern_ops"}),
)

# All versions of presets that a service has used; a preset's version numbers only grow.
preset_version = _table(
    "preset_version",
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False),
    # in the form of `troupe preset export`
    Column("content", EncryptableText(), nullable=False),
    Column("first_seen_at", Float, nullable=False),
    Column("owner", Text),  # the character's person or server; NULL: the operator
    _partial_index("ix_preset_version_owner", "owner IS NOT NULL", "owner"),
)

# Answers' receipts and costs. The content is deleted after some days or when its text is
# forgotten; usage and cost are kept much longer (retention.py).
receipt = _numbered_table(
    "receipt",
    Column("conversation", Text, nullable=False),
    Column("turn", Text, nullable=False),
    Column("at", Float, nullable=False),
    # compressed msgpack, see receipts.py
    Column("content", EncryptableBytes(), nullable=False),
    Column("person", Text),  # who asked
    Column("server", Text),
    Column("preset", Text),
    Column("provider", Text),
    Column("model", Text),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cost", BigInteger),  # in millionths of a US dollar; NULL: unknown price
    Column("first_word_seconds", Float),  # from the model request
    Column("seconds", Float),  # from the message's arrival to the answer's end
    Index("ix_receipt_conversation", "conversation", "id"),
    Index("ix_receipt_person", "person", "at"),
    _partial_index("ix_receipt_content", "length(content) > 0", "at"),
    # All columns of the usage charts, so that the charts are read from the index alone.
    Index(
        "ix_receipt_usage",
        *("at", "turn", "conversation", "person", "preset", "provider", "model"),
        *("prompt_tokens", "cached_tokens", "output_tokens", "cost", "first_word_seconds"),
    ),
)

# People's reactions to answers, by the number of the receipt.
feedback = _table(
    "feedback",
    Column("receipt", BigInteger, primary_key=True, autoincrement=False),
    Column("person", Text, primary_key=True),
    Column("reaction", Text, nullable=False),  # 👍 or 👎
    Column("at", Float, nullable=False),
    Index("ix_feedback_person", "person"),
    Index("ix_feedback_at", "at"),
)

# Channels of the web platform. Each change of a message increments the channel's revision.
web_channel = _table(
    "web_channel",
    Column("id", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("content", EncryptableBytes(), nullable=False),  # as JSON
    Column("created_at", Float, nullable=False),
)
web_message = _table(
    "web_message",
    Column("channel", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),  # the revision that added it
    Column("revision", BigInteger, nullable=False),  # the revision that changed it last
    Column("is_deleted", Boolean, nullable=False, server_default=false()),
    Column("content", EncryptableBytes(), nullable=False),  # as JSON
    Index("ix_web_message_changes", "channel", "revision"),
    Index("ix_web_message_order", "channel", "position"),
)

# Amounts spent or reserved per day or month by a person, channel, server or preset. The key is a
# `BudgetCap.key`, which begins with the day or month.
budget = _table(
    "budget", Column("key", Text, primary_key=True), Column("spent", BigInteger, nullable=False)
)

# The console's one-time login tokens, sessions, and API tokens.
console_token = _table(
    "console_token",
    Column("sha256", Text, primary_key=True),
    Column("kind", Text, nullable=False),  # login | session | api
    Column("name", Text, unique=True),  # of an API token
    Column("scopes", Text, nullable=False, server_default=""),  # separated by spaces
    Column("channels", Text, nullable=False, server_default=""),  # separated by spaces; "": all
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),  # NULL: valid until revoked
)

# Notes on messages: why each was answered or not, and the log of those that failed. The key begins
# with the kind of note.
message_note = _numbered_table(
    "message_note",
    Column("key", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("content", EncryptableText(), nullable=False),  # as JSON
    Column("person", Text),  # the person whom it quotes
    Index("ix_message_note_key_id", "key", "id"),
    Index("ix_message_note_person", "person"),
)

# The audit log: changes made in the console, on the command line, or by admins in chats.
audit = _numbered_table(
    "audit",
    Column("at", Float, nullable=False),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", EncryptableText(), nullable=False),
    Column("after", EncryptableText(), nullable=False),
)

# Unpublished drafts of presets.
preset_draft = _table(
    "preset_draft",
    Column("name", Text, primary_key=True),
    Column("base_version", Integer, nullable=False),  # 0: the preset is new
    Column("revision", Integer, nullable=False),  # the number of times it was saved
    # as entered, valid or not
    Column("content", EncryptableText(), nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("source_name", Text),  # the file that it was imported from
    Column("source", EncryptableBytes()),
)

# Providers' API keys, encrypted with a key that is not in the database.
provider_key = _numbered_table(
    "provider_key",
    Column("provider", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("added_at", Float, nullable=False),
)

# Characters' stories. Vectors of different models cannot be compared.
story = _table(
    "story",
    Column("character", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("place", Integer, nullable=False),
    Column("text", EncryptableText(), nullable=False),
    Column("model", Text),
    Column("vector", LargeBinary),  # float32, little-endian; NULL until it is computed
)

# Incremented by every change of a character's stories, to invalidate cached vectors.
story_revision = _table(
    "story_revision",
    Column("character", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

# The summary of a session's oldest turns; valid while the covered turns are unchanged.
summary = _table(
    "summary",
    Column("conversation", Text, primary_key=True),
    Column("session", Integer, primary_key=True, autoincrement=False),
    Column("covers_to", BigInteger, nullable=False),
    Column("turns", Integer, nullable=False),  # the number of covered turns
    Column("fingerprint", Text, nullable=False),
    Column("text", EncryptableText(), nullable=False),
)

# Memories of people, characters, places and scenes (bot/chat/memory.py).
memory = _numbered_table(
    "memory",
    Column("subject_kind", Text, nullable=False),  # person | character | place | scene
    Column("subject", Text, nullable=False),
    Column("subject_name", EncryptableText(), nullable=False),
    Column("text", EncryptableText(), nullable=False),
    Column("kind", Text, nullable=False),
    Column("said_by", Text, nullable=False),
    Column("told_by", Text),
    Column("told_by_name", EncryptableText()),
    Column("present", Text, nullable=False),  # witnessing presets between line breaks; "": all
    Column("conversation", Text, nullable=False),
    Column("turns", Text, nullable=False),  # ids as a JSON list
    Column("is_derived", Boolean, nullable=False),
    # who may recall it, such as "channel discord:123", and who may if no consent widens it (origin)
    Column("audience", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("is_widened", Boolean, nullable=False),
    Column("state", Text, nullable=False),  # proposed | kept | retired | gone (while deleting)
    Column("is_pinned", Boolean, nullable=False),
    Column("since", Float, nullable=False),
    Column("until", Float),
    Column("model", Text, nullable=False),
    Column("embedding", EncryptableBytes()),  # float32, little-endian
    Index("ix_memory_audience", "audience", "state", "id"),
    Index("ix_memory_subject", "subject", "audience"),
    Index("ix_memory_said_by", "said_by"),
    Index("ix_memory_origin", "origin"),
    Index("ix_memory_conversation", "conversation"),
    _partial_index("ix_memory_gone", "state = 'gone'", "state"),
)

# The memories that each receipt's prompt contains.
memory_use = _table(
    "memory_use",
    Column("receipt", BigInteger, primary_key=True, autoincrement=False),
    Column("memory", BigInteger, primary_key=True, autoincrement=False),
    Index("ix_memory_use_memory", "memory"),
)

# One row: the oldest revision of the code that may use these tables (database.py).
min_code_revision = _table("supported_revision", Column("oldest", Text, primary_key=True))
