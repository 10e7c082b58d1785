-- Statements that run for every message; statements.py explains the notation.
-- functions.sql includes them by name.

-- === conversations: receive, claim, finish ===

-- name: store_message
INSERT INTO inbox (platform, bot_id, external_key, conversation, kind, payload, received_at)
VALUES (:platform, :bot_id, :external_key, :conversation, :kind, :payload, :received_at)
ON CONFLICT DO NOTHING

-- name: make_ready
INSERT INTO conversation (key, platform, bot_id, ready_since)
VALUES (:key, :platform, :bot_id, :now)
ON CONFLICT (key) DO UPDATE
SET ready_since = coalesce(conversation.ready_since, excluded.ready_since)

-- name: advance_cursor
INSERT INTO cursor (name, value) VALUES (:name, :reached)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: ready_conversations
SELECT key FROM conversation
WHERE ready_since IS NOT NULL AND lease_until <= :now
    AND strpos(:served, ',' || platform || '@' || bot_id || ',') > 0
ORDER BY ready_since LIMIT :most FOR UPDATE SKIP LOCKED

-- name: claim
-- A locked row is being claimed, finished or made ready; a later query finds it.
-- A process that restarts under its old name takes over its own lease.
UPDATE conversation
SET epoch = epoch + 1, owner = :claimed_by, lease_until = :now + :seconds
WHERE key = (
    SELECT key FROM conversation
    WHERE key = :of AND ready_since IS NOT NULL AND (lease_until <= :now OR owner = :claimed_by)
    FOR UPDATE SKIP LOCKED
)
RETURNING epoch

-- name: renew_claims
-- A lease of 0 was released by a unit that overtook this one. A locked row is being finished or
-- claimed; it is skipped here and renewed the next time.
UPDATE conversation SET lease_until = :now + :seconds
WHERE key IN (
    SELECT key FROM conversation
    WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys))
        AND owner = :held_by AND lease_until > 0
    FOR UPDATE SKIP LOCKED
)

-- name: epochs
SELECT key, epoch FROM conversation
WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys)) AND owner = :held_by

-- name: lock_conversation
-- If the server crashes before it writes a claim to disk (functions.sql), another process gets the
-- same epoch, so the owner is compared as well, here and below.
SELECT session FROM conversation
WHERE key = :of AND epoch = :at_epoch AND owner = :claimed_by FOR UPDATE

-- name: begin_session
UPDATE conversation SET session = session + 1
WHERE key = :of AND epoch = :at_epoch AND owner = :claimed_by RETURNING session

-- name: release_claim
UPDATE conversation SET lease_until = 0
WHERE key = :of AND epoch = :at_epoch AND owner = :claimed_by RETURNING session

-- name: release_claims
UPDATE conversation SET lease_until = 0
WHERE ready_since IS NOT NULL AND owner = :held_by AND lease_until > 0

-- name: settle
UPDATE conversation SET lease_until = 0, ready_since = NULL
WHERE key = :of AND epoch = :at_epoch AND owner = :claimed_by

-- name: settle_if_answered
-- For SQLite, where no other unit stores a message meanwhile: check the epoch, and settle.
UPDATE conversation SET
    lease_until = CASE
        WHEN EXISTS (SELECT 1 FROM inbox WHERE state = 'new' AND conversation = :of)
        THEN lease_until ELSE 0
    END,
    ready_since = CASE
        WHEN EXISTS (SELECT 1 FROM inbox WHERE state = 'new' AND conversation = :of)
        THEN ready_since
    END
WHERE key = :of AND epoch = :at_epoch AND owner = :claimed_by
RETURNING session, ready_since

-- name: begin_next_message
-- The numbers are those of `AttemptState` in bot/chat/session.py: 0 none, 1 beside others, 2 alone,
-- 3 deferred. An attempt that is still recorded did not end, because its process died. A second death
-- in a row while alone explains the first death, too. A suspect is not in flight until the worker
-- starts it. `+ 0` makes SQLite search the conversation's few open rows, not all newer rows.
UPDATE inbox SET
    crashes = crashes + CASE WHEN attempt IN (1, 2) THEN 1 ELSE 0 END,
    own_crashes = CASE
        WHEN attempt = 3 THEN 0
        WHEN attempt = 2 AND crashes = 1 THEN 2
        WHEN attempt = 2 THEN own_crashes + 1
        ELSE own_crashes
    END,
    attempt = CASE
        WHEN crashes = 0 OR crashes = 1 AND NOT attempt IN (1, 2) THEN 1
        ELSE 0
    END
WHERE id = (
    SELECT id FROM inbox WHERE state = 'new' AND conversation = :of ORDER BY id LIMIT 1
)
RETURNING id, payload, crashes, own_crashes, kind, received_at, EXISTS (
    SELECT 1 FROM inbox AS later
    WHERE later.state = 'new' AND later.conversation = :of
        AND later.id + 0 > inbox.id
)

-- name: following_messages
SELECT id, payload, crashes, own_crashes, kind, received_at, false, attempt FROM inbox
WHERE state = 'new' AND conversation = :of AND id > :newer_than
ORDER BY id LIMIT :most

-- name: end_message
-- A message that crashed too often is kept for an operator as a dead letter; the numbers are
-- MAX_OWN_CRASHES and MAX_CRASHES of bot/chat/session.py.
UPDATE inbox SET
    state = CASE WHEN (own_crashes >= 3 OR crashes >= 24) THEN 'dead' ELSE 'done' END,
    payload = CASE WHEN (own_crashes >= 3 OR crashes >= 24) THEN payload END
WHERE id = :message

-- name: set_message_aside
UPDATE inbox SET state = 'dead' WHERE id = :message AND state = 'new'

-- name: record_attempt
UPDATE inbox SET attempt = :attempted WHERE id = :message

-- name: append_turn
INSERT INTO turn (
    conversation, session, parent, role, speaker_id, speaker_name, text, at, preset, preset_version,
    message_id, sent_as, observed, active, files
)
VALUES (:conversation, :session, (
    SELECT earlier.id FROM turn AS earlier
    WHERE earlier.conversation = :conversation AND earlier.session = :session AND earlier.active
    ORDER BY earlier.id DESC LIMIT 1
), :role, :speaker_id, :speaker_name, :text, :at, :preset, :preset_version,
    :message_id, :sent_as, :observed, :active, :files
)

-- name: remove_failed
-- Deletes the copies kept of failed questions (`load_failed_questions`). With an OR in one statement,
-- SQLite would delete the first rows before it searches for the others.
DELETE FROM turn
WHERE conversation = :of AND NOT active AND sent_as IS NOT NULL AND message_id IN (
    SELECT message_id FROM turn
    WHERE conversation = :of AND session = :of_session AND active
    ORDER BY id DESC LIMIT :count OFFSET :newer
)

-- name: remove_turns
DELETE FROM turn WHERE id IN (
    SELECT id FROM turn WHERE conversation = :of AND session = :of_session AND active
    ORDER BY id DESC LIMIT :count OFFSET :newer
)

-- name: supersede_turns
UPDATE turn SET active = false WHERE id IN (
    SELECT id FROM turn WHERE conversation = :of AND session = :of_session AND active
    ORDER BY id DESC LIMIT :count OFFSET :newer
)

-- name: keep_feedback
INSERT INTO feedback (receipt, person, reaction, at) VALUES (:receipt, :person, :reaction, :at)
ON CONFLICT (receipt, person) DO UPDATE SET reaction = excluded.reaction, at = excluded.at

-- name: drop_feedback
DELETE FROM feedback WHERE receipt = :receipt AND person = :person AND reaction = :reaction

-- name: add_receipt
INSERT INTO receipt (
    conversation, turn, at, content, person, server, preset, provider, model,
    prompt_tokens, cached_tokens, output_tokens, cost, first_word_seconds, seconds
)
VALUES (
    :conversation, :turn, :at, :content, :person, :server, :preset, :provider, :model,
    :prompt_tokens, :cached_tokens, :output_tokens, :cost, :first_word_seconds, :seconds
)

-- name: note_memory_uses
-- Runs right after `add_receipt`.
INSERT INTO memory_use (receipt, memory)
SELECT (SELECT max(id) FROM receipt WHERE conversation = :conversation), value::bigint
FROM jsonb_array_elements_text(:memories::jsonb)

-- name: empty_receipt_of_deleted
-- Finds a memory that was deleted while the answer was generated. The others are locked until the
-- commit, so that a later deletion finds the receipt.
UPDATE receipt SET content = ''
WHERE id = (SELECT max(id) FROM receipt WHERE conversation = :conversation) AND (
    SELECT count(*) FROM (
        SELECT id FROM memory
        WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:memories::jsonb))
        ORDER BY id FOR SHARE
    ) AS existing
) < (SELECT count(*) FROM jsonb_array_elements_text(:memories::jsonb))

-- name: note_deleted_memory
INSERT INTO forgotten (conversation, at) SELECT conversation, at FROM receipt
WHERE id = (SELECT max(id) FROM receipt WHERE conversation = :conversation) AND length(content) = 0

-- name: opened_parts
SELECT part FROM outbox WHERE turn = :of_turn AND op = 'send'

-- === the outbox and its lanes; 20 seconds is ROW_LEASE_SECONDS of outbox.py ===

-- name: queue_row
INSERT INTO outbox (
    turn, part, op, platform, bot_id, chat, thread, lane, text, reply_to,
    interaction, file_name, file_text, face, buttons
)
VALUES (
    :turn, :part, :op, :platform, :bot_id, :chat, :thread, :lane, :text, :reply_to,
    :interaction, :file_name, :file_text, :face, :buttons
)

-- name: queue_in_place
INSERT INTO outbox (
    turn, part, op, platform, bot_id, chat, thread, lane, text, reply_to,
    interaction, file_name, file_text, face, buttons, external_id, target_turn, target_part
)
VALUES (
    :turn, :part, :op, :platform, :bot_id, :chat, :thread, :lane, :text, :reply_to,
    :interaction, :file_name, :file_text, :face, :buttons, :external_id, :target_turn, :target_part
)

-- name: queue_once
-- Returns the row's id, even if the row existed.
INSERT INTO outbox (
    turn, part, op, platform, bot_id, chat, thread, lane, text, reply_to,
    interaction, file_name, file_text, face, buttons
)
VALUES (
    :turn, :part, :op, :platform, :bot_id, :chat, :thread, :lane, :text, :reply_to,
    :interaction, :file_name, :file_text, :face, :buttons
)
ON CONFLICT (turn, part, op) DO UPDATE SET turn = outbox.turn RETURNING id

-- name: make_due
INSERT INTO lane (key, platform, bot_id, due_at) VALUES (:key, :platform, :bot_id, :now)
ON CONFLICT (key) DO UPDATE SET due_at = coalesce(lane.due_at, excluded.due_at)

-- name: make_due_and_take
-- Returns nothing if the lane is held or postponed, because it will be due anyway.
INSERT INTO lane (key, platform, bot_id, due_at) VALUES (:key, :platform, :bot_id, :now + 20)
ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at
WHERE lane.due_at IS NULL OR lane.due_at <= :now
RETURNING due_at

-- name: lock_lane
-- A unit that changes unsent rows locks their lane first, to avoid deadlocks.
SELECT key FROM lane WHERE key = :of FOR UPDATE

-- name: take_lane
UPDATE lane SET due_at = :now + 20 WHERE key = :of AND due_at <= :now RETURNING due_at

-- name: hold_lane
UPDATE lane SET due_at = :now + 20 WHERE key = :of RETURNING due_at

-- name: hold_or_empty_lane
-- For SQLite, where no other unit queues a row meanwhile: hold_lane if there are unsent rows,
-- otherwise empty_lane.
UPDATE lane SET due_at = CASE
    WHEN EXISTS (SELECT 1 FROM outbox WHERE state NOT IN ('sent', 'dead') AND lane = :of)
    THEN :now + 20
END
WHERE key = :of
RETURNING due_at

-- name: empty_lane
UPDATE lane SET due_at = NULL WHERE key = :of

-- name: hold_settled_lane
-- While a row is being sent or its outcome is unknown, its message may exist with an unknown id.
UPDATE lane SET due_at = :now + 20
WHERE key = :of AND (due_at IS NULL OR due_at <= :now) AND NOT EXISTS (
    SELECT 1 FROM outbox
    WHERE state NOT IN ('sent', 'dead') AND lane = :of AND state IN ('sending', 'unknown')
)
RETURNING due_at

-- name: empty_held_lane
UPDATE lane SET due_at = NULL WHERE key = :of AND due_at = :held RETURNING key

-- name: make_due_now
UPDATE lane SET due_at = :now WHERE key = :of

-- name: postpone_lane
UPDATE lane SET due_at = :moment WHERE key = :of

-- name: due_lanes
SELECT key FROM lane
WHERE due_at <= :now AND strpos(:served, ',' || platform || '@' || bot_id || ',') > 0
ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED

-- name: release_lanes
UPDATE lane SET due_at = :now
WHERE due_at > :now AND key IN (
    SELECT lane FROM outbox
    WHERE state NOT IN ('sent', 'dead') AND state = 'sending' AND owner = :sender
)

-- name: head
SELECT outbox.id, outbox.turn, outbox.part, outbox.op, outbox.platform, outbox.bot_id, outbox.chat,
    outbox.thread, outbox.text, outbox.reply_to, outbox.interaction, outbox.state, outbox.attempts,
    outbox.not_before, outbox.file_name, outbox.file_text, outbox.face, outbox.buttons,
    outbox.started_at, coalesce(outbox.external_id, opened.external_id) AS external_id
FROM outbox LEFT JOIN outbox AS opened ON opened.turn = coalesce(outbox.target_turn, outbox.turn)
    AND opened.part = coalesce(outbox.target_part, outbox.part) AND opened.op = 'send'
WHERE outbox.state NOT IN ('sent', 'dead') AND outbox.lane = :of
ORDER BY outbox.id LIMIT 1

-- name: unsent_row
SELECT id FROM outbox WHERE state NOT IN ('sent', 'dead') AND lane = :of LIMIT 1

-- name: later_row
SELECT id FROM outbox WHERE state NOT IN ('sent', 'dead') AND lane = :of AND id > :row LIMIT 1

-- name: begin_row
UPDATE outbox
SET state = :begun, owner = :sender, attempts = attempts + 1, started_at = :started
WHERE id = :row

-- name: lose_row
UPDATE outbox SET state = 'unknown', owner = NULL, not_before = :moment WHERE id = :row

-- name: end_sent_row
-- Only the sender that took the row, and only in the same attempt, may record the outcome, here and
-- below. The history contains the text, so only the message's id is kept here.
UPDATE outbox SET state = 'sent', external_id = coalesce(:arrived_as, external_id), text = '',
    owner = NULL, file_name = NULL, file_text = NULL, face = NULL, buttons = NULL
WHERE id = :row AND owner = :sender AND attempts = :attempt AND state NOT IN ('sent', 'dead')
RETURNING lane

-- name: end_dead_row
UPDATE outbox SET state = 'dead', error = :error,
    owner = NULL, file_name = NULL, file_text = NULL, face = NULL, buttons = NULL
WHERE id = :row AND owner = :sender AND attempts = :attempt AND state NOT IN ('sent', 'dead')
RETURNING lane

-- name: edit_opened_row
-- The message was sent empty; the content is an edit of it, but a file replaces it.
UPDATE outbox SET op = CASE WHEN file_name IS NULL THEN 'edit' ELSE op END, state = 'pending', external_id = :arrived_as, owner = NULL,
    attempts = 0, not_before = 0
WHERE id = :row AND owner = :sender AND attempts = :attempt AND state NOT IN ('sent', 'dead')
RETURNING lane

-- name: move_row
-- The row gets a new id, because older rows of the private chat may be in flight.
UPDATE outbox SET id = nextval(pg_get_serial_sequence('outbox', 'id')), op = 'send', state = 'pending', platform = :platform, bot_id = :bot_id,
    chat = :chat, thread = :thread, lane = :lane, buttons = :buttons, reply_to = NULL,
    interaction = NULL, external_id = NULL, owner = NULL, attempts = 0, not_before = 0
WHERE id = :row AND owner = :sender AND attempts = :attempt AND state NOT IN ('sent', 'dead')
RETURNING lane

-- name: empty_row
UPDATE outbox SET text = '' WHERE id = :row

-- name: put_off_row
UPDATE outbox SET state = :becomes, owner = NULL, not_before = :now + :seconds
WHERE id = :row AND owner = :sender AND attempts = :attempt AND state NOT IN ('sent', 'dead')
RETURNING lane, not_before

-- name: changed_part
SELECT coalesce(target_turn, turn), coalesce(target_part, part) FROM outbox WHERE id = :row

-- name: kept_message
-- Finds a message of a reaction's turn that was not deleted.
SELECT 1 FROM outbox AS sent WHERE turn = :of_turn AND op = 'send' AND NOT EXISTS (
    SELECT 1 FROM outbox WHERE turn = sent.turn AND part = sent.part AND op = 'delete'
) LIMIT 1

-- name: deletion_of
SELECT id FROM outbox WHERE lane = :of AND external_id = :message AND op = 'delete' LIMIT 1

-- name: send_again
UPDATE outbox SET state = 'pending', text = :text, face = :face, buttons = :buttons,
    external_id = :replaced, interaction = NULL, attempts = 0, not_before = 0
WHERE turn = :of_turn AND part = :of_part AND op = 'send' AND state = 'sent'

-- name: sent_ids
SELECT id, state, external_id FROM outbox
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:ids))
    AND (external_id IS NOT NULL OR state = 'dead')

-- name: known_ids
SELECT external_id FROM outbox WHERE lane = :of AND external_id IS NOT NULL
ORDER BY id DESC LIMIT :most

-- === reading, and forgetting ===

-- name: newest_turns
SELECT role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files, session
FROM turn
WHERE conversation = :of AND session = (SELECT session FROM conversation WHERE key = :of) AND active
ORDER BY id DESC LIMIT :most

-- name: session
SELECT session FROM conversation WHERE key = :of

-- name: cursors
SELECT name, value AS reached FROM cursor WHERE strpos(name, :prefix) = 1

-- name: message_in_progress
-- A gathered message's attempt is recorded with the message whose answer covers it; 1 is
-- WITH_OTHERS.
SELECT inbox.kind, inbox.payload
FROM inbox AS named JOIN inbox ON inbox.conversation = named.conversation
WHERE named.platform = :platform AND named.bot_id = :bot_id AND named.external_key = :external_key
    AND named.state = 'new' AND inbox.state = 'new'
    AND (inbox.id = named.id OR inbox.id > named.id AND inbox.attempt = 1)
ORDER BY inbox.id

-- name: waiting_messages
-- The newest unanswered rows of several conversations, a few of each. The conversations are one value,
-- so that the statement is always the same. Only the newest rows of a long queue are read.
WITH read AS MATERIALIZED (
    SELECT value AS conversation, coalesce((
        SELECT waiting.id FROM inbox AS waiting
        WHERE waiting.state = 'new' AND waiting.conversation = value
        ORDER BY waiting.id DESC LIMIT 1 OFFSET :of_each
    ), 0) AS left_out
    FROM jsonb_array_elements_text(:conversations)
)
SELECT inbox.kind, inbox.payload FROM read JOIN inbox ON inbox.conversation = read.conversation
WHERE inbox.state = 'new' AND inbox.id > read.left_out
ORDER BY inbox.id DESC LIMIT :most

-- name: forget_sent_messages
DELETE FROM sent_message WHERE conversation = :of

-- name: forget_feedback
DELETE FROM feedback WHERE receipt IN (SELECT id FROM receipt WHERE conversation = :of)

-- name: unnamed_preset
-- Hides the names of people's and servers' characters.
CASE WHEN strpos(preset, '/') > 0 THEN 'character' ELSE preset END

-- name: forget_receipts
UPDATE receipt SET content = :content, preset = {unnamed_preset}
WHERE conversation = :of AND (length(content) > 0 OR strpos(preset, '/') > 0)

-- name: forget_summaries
DELETE FROM summary WHERE conversation = :of

-- name: forget_unsent_rows
-- Sent rows have no text any more, but dead rows would keep theirs for days.
UPDATE outbox SET text = '', file_text = NULL, error = NULL
WHERE lane = :of_lane AND state = 'dead' AND coalesce(thread, '') = :of_thread

-- name: forget_dead_messages
UPDATE inbox SET state = 'done', payload = NULL WHERE conversation = :of AND state = 'dead'

-- name: forget_choices
DELETE FROM choice WHERE conversation = :of OR scope = :of AND key = 'title'

-- name: forget_turns
DELETE FROM turn WHERE conversation = :of RETURNING id
