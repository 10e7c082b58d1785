"""The statements of lanes and of the outbox. `Statement` says how to read them."""

from bot.storage.statements import Statement, insert_into

SENDING_SECONDS = 20.0
"""The lease of a row; a request ends within half of it, or its sender drops it."""

OUTBOX_ROW = (
    *("turn", "part", "op", "platform", "bot_id", "chat", "thread", "lane", "text", "reply_to"),
    *("interaction", "file_name", "file_text", "face", "buttons"),
)
QUEUE = Statement(insert_into("outbox", OUTBOX_ROW))
QUEUE_IN_PLACE = Statement(
    insert_into("outbox", (*OUTBOX_ROW, "external_id", "target_turn", "target_part"))
)
QUEUE_ONCE = Statement(
    insert_into("outbox", OUTBOX_ROW)
    + " ON CONFLICT (turn, part, op) DO UPDATE SET turn = outbox.turn RETURNING id"
)
"""Returns the id of the row, even if it existed."""

_UNSENT = "state NOT IN ('sent', 'dead')"
_TO_LANE = "INSERT INTO lane (key, platform, bot_id, due_at) VALUES (:key, :platform, :bot_id"
MAKE_DUE = Statement(f"""
{_TO_LANE}, :now)
ON CONFLICT (key) DO UPDATE SET due_at = coalesce(lane.due_at, excluded.due_at)
""")
MAKE_DUE_AND_TAKE = Statement(f"""
{_TO_LANE}, :now + {SENDING_SECONDS})
ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at
WHERE lane.due_at IS NULL OR lane.due_at <= :now
RETURNING due_at
""")
"""Returns nothing if the lane is held or waits, since it is due at some time anyway."""
LOCK = Statement("SELECT key FROM lane WHERE key = :of FOR UPDATE")
"""A unit that changes unsent rows locks their lane first: different orders would deadlock."""
TAKE = Statement(f"""
UPDATE lane SET due_at = :now + {SENDING_SECONDS} WHERE key = :of AND due_at <= :now
RETURNING due_at
""")
HOLD = Statement(
    f"UPDATE lane SET due_at = :now + {SENDING_SECONDS} WHERE key = :of RETURNING due_at"
)
HOLD_OR_EMPTY = Statement(f"""
UPDATE lane SET due_at = CASE
    WHEN EXISTS (SELECT 1 FROM outbox WHERE {_UNSENT} AND lane = :of)
    THEN :now + {SENDING_SECONDS}
END
WHERE key = :of
RETURNING due_at
""")
"""For SQLite, where nobody queues a row meanwhile: HOLD if there are unsent rows, else EMPTY."""
EMPTY = Statement("UPDATE lane SET due_at = NULL WHERE key = :of")
# While a row is being sent or its outcome is unknown, its message may be there without its id.
HOLD_SETTLED = Statement(f"""
UPDATE lane SET due_at = :now + {SENDING_SECONDS}
WHERE key = :of AND (due_at IS NULL OR due_at <= :now) AND NOT EXISTS (
    SELECT 1 FROM outbox WHERE {_UNSENT} AND lane = :of AND state IN ('sending', 'unknown')
)
RETURNING due_at
""")
EMPTY_HELD = Statement(
    "UPDATE lane SET due_at = NULL WHERE key = :of AND due_at = :held RETURNING key"
)
DUE_NOW = Statement("UPDATE lane SET due_at = :now WHERE key = :of")
POSTPONE = Statement("UPDATE lane SET due_at = :moment WHERE key = :of")
DUE = Statement("""
SELECT key FROM lane
WHERE due_at <= :now AND strpos(:served, ',' || platform || '@' || bot_id || ',') > 0
ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED
""")
SENT_IDS = Statement("""
SELECT id, state, external_id FROM outbox
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:ids))
    AND (external_id IS NOT NULL OR state = 'dead')
""")
HEAD_COLUMNS = (
    *("id", "turn", "part", "op", "platform", "bot_id", "chat", "thread", "text", "reply_to"),
    *(
        "interaction",
        "state",
        "attempts",
        "not_before",
        "file_name",
        "file_text",
        "face",
        "buttons",
    ),
    *("started_at", "external_id"),
)
HEAD = Statement(f"""
SELECT {", ".join(f"outbox.{name}" for name in HEAD_COLUMNS[:-1])},
    coalesce(outbox.external_id, opened.external_id) AS external_id
FROM outbox LEFT JOIN outbox AS opened ON opened.turn = coalesce(outbox.target_turn, outbox.turn)
    AND opened.part = coalesce(outbox.target_part, outbox.part) AND opened.op = 'send'
WHERE outbox.{_UNSENT} AND outbox.lane = :of
ORDER BY outbox.id LIMIT 1
""")
UNSENT = Statement(f"SELECT id FROM outbox WHERE {_UNSENT} AND lane = :of LIMIT 1")
BEGIN = Statement("""
UPDATE outbox
SET state = :begun, owner = :sender, attempts = attempts + 1, started_at = :started
WHERE id = :row
""")
LOST = Statement("""
UPDATE outbox SET state = 'unknown', owner = NULL, not_before = :moment WHERE id = :row
""")
# Only the sender that took the row, in the attempt that it took it for, may say what came of it.
_HELD = f"WHERE id = :row AND owner = :sender AND attempts = :attempt AND {_UNSENT}"
_NO_EXTRAS = "owner = NULL, file_name = NULL, file_text = NULL, face = NULL, buttons = NULL"
# What was said stands in the history; here only its id is still needed.
SENT = Statement(f"""
UPDATE outbox SET state = 'sent', external_id = coalesce(:arrived_as, external_id), text = '',
    {_NO_EXTRAS}
{_HELD} RETURNING lane
""")
LATER = Statement(f"""
UPDATE outbox SET state = :becomes, owner = NULL, not_before = :now + :seconds
{_HELD} RETURNING lane, not_before
""")
CHANGED_PART = Statement("""
SELECT coalesce(target_turn, turn), coalesce(target_part, part) FROM outbox WHERE id = :row
""")
DELETION = Statement("""
SELECT id FROM outbox WHERE lane = :of AND external_id = :message AND op = 'delete' LIMIT 1
""")
SEND_AGAIN = Statement("""
UPDATE outbox SET state = 'pending', text = :text, face = :face, buttons = :buttons,
    external_id = :replaced, interaction = NULL, attempts = 0, not_before = 0
WHERE turn = :of_turn AND part = :of_part AND op = 'send' AND state = 'sent'
""")
DEAD = Statement(
    f"UPDATE outbox SET state = 'dead', error = :error, {_NO_EXTRAS} {_HELD} RETURNING lane"
)
LATER_ROWS = Statement(
    f"SELECT id FROM outbox WHERE {_UNSENT} AND lane = :of AND id > :row LIMIT 1"
)
KNOWN_IDS = Statement("""
SELECT external_id FROM outbox WHERE lane = :of AND external_id IS NOT NULL
ORDER BY id DESC LIMIT :most
""")
RELEASE_ALL = Statement(f"""
UPDATE lane SET due_at = :now
WHERE due_at > :now AND key IN (
    SELECT lane FROM outbox WHERE {_UNSENT} AND state = 'sending' AND owner = :sender
)
""")
