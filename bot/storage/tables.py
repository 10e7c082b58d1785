"""The tables: all durable state; anything outside them may be lost at any time.

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
_Id = BigInteger().with_variant(Integer, "sqlite")


def _table(name: str, *items: SchemaItem) -> Table:
    return Table(name, metadata, *items)


def _numbered_table(name: str, *items: SchemaItem) -> Table:
    """Return a table whose rows have ids that are never reused."""
    number = Column("id", _Id, primary_key=True)
    return Table(name, metadata, number, *items, sqlite_autoincrement=True)


def _partial_index(name: str, condition: str, *columns: str) -> Index:
    """Create an index of some rows, used only by queries with the same condition and constants."""
    where = text(condition)
    return Index(name, *columns, sqlite_where=where, postgresql_where=where)


# Received messages. A row is `new` until the transaction that stores its answer; it is `dead` if
# that only says that the message was set aside: then it is kept, so that it can be tried again.
inbox = _numbered_table(
    "inbox",
    Column("platform", Text, nullable=False),
    Column("bot_id", Text, nullable=False, server_default=""),  # which bot of that platform
    Column("external_key", Text, nullable=False),
    Column("conversation", Text, nullable=False),
    # said | edited | deleted | pressed | reacted | joined | forget | say
    Column("kind", Text, nullable=False, server_default="said"),
    # the event as JSON; NULL once it is answered
    Column("payload", EncryptableBytes()),
    Column("received_at", Float, nullable=False),
    Column("state", Text, nullable=False, server_default="new"),  # new | done | dead
    # how often a process died during an attempt, how often only this message can have been the
    # cause, and what the latest attempt is: an Attempt of bot/chat/session.py
    Column("crashes", Integer, nullable=False, server_default="0"),
    Column("own_crashes", Integer, nullable=False, server_default="0"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    UniqueConstraint("platform", "bot_id", "external_key"),
    _partial_index("ix_inbox_open", "state = 'new'", "conversation", "id"),
    _partial_index("ix_inbox_dead", "state = 'dead'", "conversation"),
)


# How far each source has been read: the Telegram offset, the last message of a Discord channel.
cursor = _table(
    "cursor", Column("name", Text, primary_key=True), Column("value", Text, nullable=False)
)

# The bot of each platform whose rows and keys carry no bot id: the first one that ran here.
first_bot = _table(
    "first_bot", Column("platform", Text, primary_key=True), Column("account", Text, nullable=False)
)

# The claim on a conversation, and since when it has something unanswered. Each claim raises the
# epoch, which fences all earlier claims.
conversation = _table(
    "conversation",
    Column("key", Text, primary_key=True),
    Column("platform", Text, nullable=False, server_default=""),
    Column("bot_id", Text, nullable=False, server_default=""),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("owner", Text),
    Column("lease_until", Float, nullable=False, server_default="0"),
    Column("session", Integer, nullable=False, server_default="1"),
    Column("ready_since", Float),  # NULL: everything is answered
    # the newest turn that was read for memories, and the newest when a model was asked for them
    Column("memory_read_to", BigInteger, nullable=False, server_default="0"),
    Column("memory_asked_to", BigInteger, nullable=False, server_default="0"),
    _partial_index("ix_conversation_ready", "ready_since IS NOT NULL", "ready_since"),
    # PostgreSQL finds the beginning of a key only by such operators, whatever its collation.
    Index("ix_conversation_prefix", "key", postgresql_ops={"key": "text_pattern_ops"}),
)

# Which of several processes does what only one may do at a time, such as polling a bot's updates.
role_lease = _table(
    "role_lease",
    Column("role", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("lease_until", Float, nullable=False),
    Column("held_since", Float, nullable=False, server_default="0"),
)

# The processes of this installation. One that ends deletes its row; one that died leaves it.
node = _table(
    "node",
    Column("owner", Text, primary_key=True),  # the name that it holds leases under
    Column("roles", Text, nullable=False),  # separated by commas
    Column("version", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("report", EncryptableBytes()),  # a `ProcessReport` as msgpack; NULL: nothing to tell
)

# Where nothing is answered, until somebody ends that.
pause = _table(
    "pause",
    Column("scope", Text, primary_key=True),  # all, a platform, a bot of it, a chat or a topic
    Column("by", Text, nullable=False),
    Column("at", Float, nullable=False),
)

# In which conversations something was forgotten: every process deletes what it keeps of them.
forgotten = _numbered_table(
    "forgotten",
    Column("conversation", Text, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_forgotten_at", "at"),
)

# When this database was restored from a backup, and until when people were answered on the one that
# was lost; what they wrote before that is not answered again.
restore = _numbered_table(
    "restore", Column("at", Float, nullable=False), Column("answered_until", Float, nullable=False)
)

# What was forgotten before the newest restore, so that platforms do not bring it back.
forgotten_message = _numbered_table(
    "forgotten_message",
    Column("conversation", Text, nullable=False),
    Column("message_id", Text, nullable=False),  # "": everything until then
    Column("at", Float, nullable=False),
)

# The histories. /new starts the next session; earlier ones are kept. Turns that follow the same
# one are versions of each other, of which one is active: the others are branches that are kept.
turn = _numbered_table(
    "turn",
    Column("conversation", Text, nullable=False),
    Column("session", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("speaker_id", Text),
    Column("speaker_name", EncryptableText()),
    Column("text", EncryptableText(), nullable=False),
    Column("at", Float, nullable=False),
    Column("preset", Text),  # which preset and version answered; only for a model's turns
    Column("preset_version", Integer),
    Column("parent", BigInteger),  # the turn that it follows; NULL: it begins the session
    Column("active", Boolean, nullable=False, server_default=true()),
    Column("message_id", Text),  # the platform's id of a person's message
    Column("sent_as", Text),  # the parts that an answer was sent as, see `encode_names`
    Column("observed", Boolean, nullable=False, server_default=false()),  # nobody was asked
    # where the platform has the files of a question, see `encode_files`; NULL: it has none
    Column("files", EncryptableText()),
    Index("ix_turn_history", "conversation", "session", "id"),
    _partial_index("ix_turn_message", "message_id IS NOT NULL", "message_id"),
    _partial_index("ix_turn_speaker", "speaker_id IS NOT NULL", "speaker_id", "conversation"),
)

# Sends, edits and deletions. Within a lane they are carried out in the order of their ids.
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
    Column("owner", Text),  # the sender that holds it, in this attempt; NULL: nobody
    Column("external_id", Text),  # of a change: the message to change, if it was known before
    Column("target_turn", Text),  # of a change of another turn's message: the part to change
    Column("target_part", Integer),
    Column("error", EncryptableText()),
    # the attachment of a send; NULL once it is sent
    Column("file_name", EncryptableText()),
    Column("file_text", EncryptableText()),
    # as JSON, see rows.py; NULL: the bot's own face
    Column("face", EncryptableText()),
    Column("buttons", EncryptableText()),  # as JSON; NULL: none
    UniqueConstraint("turn", "part", "op"),
    _partial_index("ix_outbox_unsent", "state NOT IN ('sent', 'dead')", "lane", "id"),
    _partial_index("ix_outbox_lane_external", "external_id IS NOT NULL", "lane", "external_id"),
    _partial_index("ix_outbox_dead", "state = 'dead'", "lane"),
)

# The platform's ids of messages whose outbox rows were deleted (retention.py).
sent_message = _table(
    "sent_message",
    Column("conversation", Text, primary_key=True),
    Column("external_id", Text, primary_key=True),
    Column("turn", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Index("ix_sent_message_turn", "turn"),
)

# When the first unsent row of a lane is due, or its sender's lease ends; NULL: all is sent.
lane = _table(
    "lane",
    Column("key", Text, primary_key=True),
    Column("platform", Text, nullable=False),
    Column("bot_id", Text, nullable=False, server_default=""),
    Column("due_at", Float),
    _partial_index("ix_lane_due", "due_at IS NOT NULL", "due_at"),
)

# Settings made in chats: which preset a channel uses, and who set it.
choice = _table(
    "choice",
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", EncryptableText(), nullable=False),
    Column("chosen_by", Text, nullable=False),
    Column("chosen_at", Float, nullable=False),
    # of what a person said of themselves in a conversation: which one; "": of all else
    Column("conversation", Text, nullable=False),
    Index("ix_choice_conversation", "conversation"),
    _partial_index("ix_choice_preset", "key = 'preset'", "chosen_by"),
    Index("ix_choice_prefix", "scope", postgresql_ops={"scope": "text_pattern_ops"}),
)

# Every version of a preset that the service started with; the numbers of a name only grow.
preset_version = _table(
    "preset_version",
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False),
    # as `troupe preset export` writes it
    Column("content", EncryptableText(), nullable=False),
    Column("first_seen_at", Float, nullable=False),
    Column("owner", Text),  # the person or server whose character it is; NULL: the operator's
    _partial_index("ix_preset_version_owner", "owner IS NOT NULL", "owner"),
)

# The receipt of each answer, and what it cost. The content is emptied after some days, and when its
# text is forgotten; the usage is deleted much later (retention.py).
receipt = _numbered_table(
    "receipt",
    Column("conversation", Text, nullable=False),
    Column("turn", Text, nullable=False),
    Column("at", Float, nullable=False),
    # compressed msgpack, see receipts.py
    Column("content", EncryptableBytes(), nullable=False),
    Column("person", Text),  # who asked, and in which server
    Column("server", Text),
    Column("preset", Text),
    Column("provider", Text),
    Column("model", Text),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cost", BigInteger),  # in millionths of a US dollar; NULL: the price is not known
    Column("first_word_seconds", Float),  # from the model request
    Column("seconds", Float),  # from the receipt of the message to the end of the answer
    Index("ix_receipt_conversation", "conversation", "id"),
    Index("ix_receipt_person", "person", "at"),
    _partial_index("ix_receipt_content", "length(content) > 0", "at"),
    # All that the charts of a month are made of, so that no receipt is read for them.
    Index(
        "ix_receipt_usage",
        *("at", "turn", "conversation", "person", "preset", "provider", "model"),
        *("prompt_tokens", "cached_tokens", "output_tokens", "cost", "first_word_seconds"),
    ),
)

# What people think of answers, by the number of the receipt.
feedback = _table(
    "feedback",
    Column("receipt", BigInteger, primary_key=True, autoincrement=False),
    Column("person", Text, primary_key=True),
    Column("reaction", Text, nullable=False),  # 👍 or 👎
    Column("at", Float, nullable=False),
    Index("ix_feedback_person", "person"),
    Index("ix_feedback_at", "at"),
)

# The channels of the web platform. Each change of a message raises the revision of its channel.
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

# What was spent or reserved in a day or a month, by a person, a channel, a server or a preset; the
# key is a `BudgetCap.key`, which begins with the day or the month.
budget = _table(
    "budget", Column("key", Text, primary_key=True), Column("spent", BigInteger, nullable=False)
)

# One-time tokens to log in to the console with, its sessions, and the tokens for its API.
console_token = _table(
    "console_token",
    Column("sha256", Text, primary_key=True),
    Column("kind", Text, nullable=False),  # login | session | api
    Column("name", Text, unique=True),  # of a token for the API
    Column("scopes", Text, nullable=False, server_default=""),  # separated by spaces
    Column("channels", Text, nullable=False, server_default=""),  # separated by spaces; "": all
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),  # NULL: when it is revoked
)

# Why the newest messages of a channel were answered or not, and what was logged of those that
# failed.
# The key begins with what it is about.
message_note = _numbered_table(
    "message_note",
    Column("key", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("content", EncryptableText(), nullable=False),  # as JSON
    Column("person", Text),  # whose words it quotes
    Index("ix_message_note_key_id", "key", "id"),
    Index("ix_message_note_person", "person"),
)

# Who changed what over the console, with the command line, or as an admin in a chat.
audit = _numbered_table(
    "audit",
    Column("at", Float, nullable=False),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", EncryptableText(), nullable=False),
    Column("after", EncryptableText(), nullable=False),
)

# The edition of each preset that somebody works on.
preset_draft = _table(
    "preset_draft",
    Column("name", Text, primary_key=True),
    Column("base_version", Integer, nullable=False),  # 0: the preset is new
    Column("revision", Integer, nullable=False),  # counts what was saved
    # as it was written, valid or not
    Column("content", EncryptableText(), nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("source_name", Text),  # of the file that it was imported from, and that file
    Column("source", EncryptableBytes()),
)

# Keys of providers, encrypted with a key that is not in the database.
provider_key = _numbered_table(
    "provider_key",
    Column("provider", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("added_at", Float, nullable=False),
)

# The stories of characters. Vectors of different models cannot be compared.
story = _table(
    "story",
    Column("character", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("place", Integer, nullable=False),
    Column("text", EncryptableText(), nullable=False),
    Column("model", Text),
    Column("vector", LargeBinary),  # float32, little-endian; NULL until it is computed
)

# Raised by every change of a character's stories; invalidates vectors cached in memory.
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
    Column("turns", Integer, nullable=False),  # how many turns are covered
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
    Column("present", Text, nullable=False),  # presets, each between line breaks; "": all
    Column("conversation", Text, nullable=False),
    Column("turns", Text, nullable=False),  # ids as a JSON list
    Column("is_derived", Boolean, nullable=False),
    # who may hear it, and who may without a consent that widens it: "channel discord:123"
    Column("audience", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("is_widened", Boolean, nullable=False),
    Column("state", Text, nullable=False),  # proposed | kept | retired | gone, in a transaction
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

# Which memories the prompt of a receipt contains.
memory_use = _table(
    "memory_use",
    Column("receipt", BigInteger, primary_key=True, autoincrement=False),
    Column("memory", BigInteger, primary_key=True, autoincrement=False),
    Index("ix_memory_use_memory", "memory"),
)

# One row: the oldest revision whose version of Troupe may use these tables (`revisions`).
supported_revision = _table("supported_revision", Column("oldest", Text, primary_key=True))
