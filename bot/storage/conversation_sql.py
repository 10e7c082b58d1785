"""The statements of conversations: receive, claim, finish. `Statement` says how to read them."""

from bot.chat.session import MAX_CRASHES, MAX_OWN_CRASHES, Attempt
from bot.storage.statements import Statement, insert_into

INBOX_ROW = (
    *("platform", "bot_id", "external_key", "conversation", "kind", "payload", "received_at"),
)
STORE = Statement(insert_into("inbox", INBOX_ROW) + " ON CONFLICT DO NOTHING")
MAKE_READY = Statement("""
INSERT INTO conversation (key, platform, bot_id, ready_since)
VALUES (:key, :platform, :bot_id, :now)
ON CONFLICT (key) DO UPDATE
SET ready_since = coalesce(conversation.ready_since, excluded.ready_since)
""")
ADVANCE = Statement("""
INSERT INTO cursor (name, value) VALUES (:name, :reached)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
""")
READY = Statement("""
SELECT key FROM conversation
WHERE ready_since IS NOT NULL AND lease_until <= :now
    AND strpos(:served, ',' || platform || '@' || bot_id || ',') > 0
ORDER BY ready_since LIMIT :most FOR UPDATE SKIP LOCKED
""")
# A row that somebody has locked is being claimed, finished or made ready, and is found once more.
# A process that restarts under its old name takes over its own lease.
CLAIM = Statement("""
UPDATE conversation
SET epoch = epoch + 1, owner = :claimed_by, lease_until = :now + :seconds
WHERE key = (
    SELECT key FROM conversation
    WHERE key = :of AND ready_since IS NOT NULL AND (lease_until <= :now OR owner = :claimed_by)
    FOR UPDATE SKIP LOCKED
)
RETURNING epoch
""")
# The server may crash before it has written a claim to its disk (functions.py). Another process
# then gets the same epoch, so the owner is compared as well.
_HELD = "key = :of AND epoch = :at_epoch AND owner = :claimed_by"
# A lease of 0 is one that was given back by a unit that overtook this one. A row that somebody
# has locked is being finished or claimed, so nobody waits for it here: it is renewed next time.
RENEW = Statement("""
UPDATE conversation SET lease_until = :now + :seconds
WHERE key IN (
    SELECT key FROM conversation
    WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys))
        AND owner = :held_by AND lease_until > 0
    FOR UPDATE SKIP LOCKED
)
""")
EPOCHS = Statement("""
SELECT key, epoch FROM conversation
WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys)) AND owner = :held_by
""")
LOCK = Statement(f"SELECT session FROM conversation WHERE {_HELD} FOR UPDATE")
BEGIN_SESSION = Statement(
    f"UPDATE conversation SET session = session + 1 WHERE {_HELD} RETURNING session"
)
RELEASE = Statement(f"UPDATE conversation SET lease_until = 0 WHERE {_HELD} RETURNING session")
RELEASE_ALL = Statement("""
UPDATE conversation SET lease_until = 0
WHERE ready_since IS NOT NULL AND owner = :held_by AND lease_until > 0
""")
SETTLE = Statement(f"UPDATE conversation SET lease_until = 0, ready_since = NULL WHERE {_HELD}")
_HAS_NEXT = "EXISTS (SELECT 1 FROM inbox WHERE state = 'new' AND conversation = :of)"
SETTLE_IF_ANSWERED = Statement(f"""
UPDATE conversation SET
    lease_until = CASE WHEN {_HAS_NEXT} THEN lease_until ELSE 0 END,
    ready_since = CASE WHEN {_HAS_NEXT} THEN ready_since END
WHERE {_HELD}
RETURNING session, ready_since
""")
"""For SQLite, where nobody stores a message meanwhile: checks the epoch, and settles."""

_DIED = f"attempt IN ({Attempt.BESIDE_OTHERS:d}, {Attempt.ALONE:d})"
# An attempt that is still recorded did not end: its process died. A second death in a row alone
# explains the first one as well. A suspect is not in flight before the worker starts with it.
# `+ 0` makes SQLite search the few open rows of the conversation instead of all newer rows.
NEXT = Statement(f"""
UPDATE inbox SET
    crashes = crashes + CASE WHEN {_DIED} THEN 1 ELSE 0 END,
    own_crashes = CASE
        WHEN attempt = {Attempt.DEFERRED:d} THEN 0
        WHEN attempt = {Attempt.ALONE:d} AND crashes = 1 THEN 2
        WHEN attempt = {Attempt.ALONE:d} THEN own_crashes + 1
        ELSE own_crashes
    END,
    attempt = CASE
        WHEN crashes = 0 OR crashes = 1 AND NOT {_DIED} THEN {Attempt.BESIDE_OTHERS:d}
        ELSE {Attempt.NONE:d}
    END
WHERE id = (
    SELECT id FROM inbox WHERE state = 'new' AND conversation = :of ORDER BY id LIMIT 1
)
RETURNING id, payload, crashes, own_crashes, kind, received_at, EXISTS (
    SELECT 1 FROM inbox AS later
    WHERE later.state = 'new' AND later.conversation = :of
        AND later.id + 0 > inbox.id
)
""")
FOLLOWING = Statement("""
SELECT id, payload, crashes, own_crashes, kind, received_at, false, attempt FROM inbox
WHERE state = 'new' AND conversation = :of AND id > :newer_than
ORDER BY id LIMIT :most
""")
# A message that was only told to be set aside (`is_set_aside`) is kept for an operator.
_IS_SET_ASIDE = f"(own_crashes >= {MAX_OWN_CRASHES} OR crashes >= {MAX_CRASHES})"
DONE = Statement(f"""
UPDATE inbox SET
    state = CASE WHEN {_IS_SET_ASIDE} THEN 'dead' ELSE 'done' END,
    payload = CASE WHEN {_IS_SET_ASIDE} THEN payload END
WHERE id = :message
""")
SET_ASIDE = Statement("UPDATE inbox SET state = 'dead' WHERE id = :message AND state = 'new'")
RECORD_ATTEMPT = Statement("UPDATE inbox SET attempt = :attempted WHERE id = :message")

TURN_ROW = (
    *("role", "speaker_id", "speaker_name", "text", "at", "preset", "preset_version"),
    *("message_id", "sent_as", "observed", "active", "files"),
)
APPEND = Statement(f"""
INSERT INTO turn (conversation, session, parent, {", ".join(TURN_ROW)})
VALUES (:conversation, :session, (
    SELECT earlier.id FROM turn AS earlier
    WHERE earlier.conversation = :conversation AND earlier.session = :session AND earlier.active
    ORDER BY earlier.id DESC LIMIT 1
), {", ".join(f":{name}" for name in TURN_ROW)})
""")
_RANGE = "conversation = :of AND session = :of_session AND active ORDER BY id DESC"
_IN_RANGE = f"id IN (SELECT id FROM turn WHERE {_RANGE} LIMIT :count OFFSET :newer)"
# A question that failed before it was answered is kept besides, see `load_failed`. With an OR in
# one statement, SQLite deletes the first rows before it looks for the others.
REMOVE_FAILED = Statement(f"""
DELETE FROM turn
WHERE conversation = :of AND NOT active AND sent_as IS NOT NULL AND message_id IN (
    SELECT message_id FROM turn WHERE {_RANGE} LIMIT :count OFFSET :newer
)
""")
REMOVE = Statement(f"DELETE FROM turn WHERE {_IN_RANGE}")
SUPERSEDE = Statement(f"UPDATE turn SET active = false WHERE {_IN_RANGE}")
USAGE_ROW = (
    *("person", "server", "preset", "provider", "model"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "cost"),
)
NOTE = Statement(insert_into("receipt", ("conversation", "turn", "at", "content", *USAGE_ROW)))
OPENED = Statement("SELECT part FROM outbox WHERE turn = :of_turn AND op = 'send'")
