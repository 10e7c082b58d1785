-- Statements for operators, reports in the console, retention, /forget and restores.

-- === operation ===

-- name: enter_node
INSERT INTO node (owner, roles, version, started_at, seen_at)
VALUES (:owner, :roles, :version, :now, :now)
ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at

-- name: leave_node
DELETE FROM node WHERE owner = :owner

-- name: share_report
UPDATE node SET report = :report WHERE owner = :owner

-- name: node_reports
SELECT owner, report FROM node WHERE report IS NOT NULL

-- name: nodes
SELECT owner, roles, version, :now - started_at, :now - seen_at FROM node ORDER BY started_at

-- name: leases_of_nodes
SELECT owner, role FROM role_lease WHERE lease_until > :now ORDER BY role

-- name: answering_nodes
SELECT owner, count(*) FROM conversation
WHERE ready_since IS NOT NULL AND lease_until > :now GROUP BY owner

-- name: waiting_conversations
SELECT count(*), :now - min(ready_since) FROM conversation
WHERE ready_since IS NOT NULL AND lease_until <= :now

-- name: answering_conversations
SELECT count(*), :now - min(ready_since) FROM conversation
WHERE ready_since IS NOT NULL AND lease_until > :now

-- name: waiting_lanes
SELECT count(*), :now - min(due_at) FROM lane WHERE due_at <= :now

-- name: unknown_sends
SELECT count(*), :now - min(started_at) FROM outbox
WHERE state NOT IN ('sent', 'dead') AND state = 'unknown'

-- name: stories_without_vector
SELECT count(*), NULL FROM story WHERE vector IS NULL

-- name: jobs
-- Roles that some process should always hold; other roles coordinate shards and logins.
SELECT role, owner, :now - held_since, lease_until - :now FROM role_lease
WHERE role NOT LIKE 'shards of %' AND role NOT LIKE 'identify %'
ORDER BY role

-- name: pauses
SELECT scope, by, at FROM pause ORDER BY at

-- name: begin_pause
INSERT INTO pause (scope, by, at) VALUES (:scope, :by, :at) ON CONFLICT DO NOTHING RETURNING scope

-- name: end_pause
DELETE FROM pause WHERE scope = :scope RETURNING scope

-- name: add_note
INSERT INTO message_note (key, at, content, person) VALUES (:key, :at, :content, :person)

-- name: newest_notes
SELECT content FROM message_note WHERE key = :key ORDER BY id DESC LIMIT :most

-- name: newest_notes_of_kind
SELECT content FROM message_note
WHERE strpos(key, :kind) = 1 AND at >= :since AND at < :until
ORDER BY id DESC LIMIT :most

-- name: forget_notes
DELETE FROM message_note WHERE key = :key

-- name: forget_notes_of_person
DELETE FROM message_note WHERE key = :key AND person = :person

-- name: record_change
INSERT INTO audit (at, who, action, subject, before, after)
VALUES (:at, :who, :action, :subject, :before, :after)

-- name: newest_changes
SELECT at, who, action, subject, before, after FROM audit ORDER BY id DESC LIMIT :most

-- === events for other programs ===

-- name: event_positions
SELECT coalesce((SELECT max(id) FROM receipt), 0), coalesce((SELECT max(id) FROM message_note), 0),
    coalesce((SELECT max(at) FROM feedback), 0), coalesce((SELECT max(id) FROM inbox), 0)

-- name: begin_cursor
INSERT INTO cursor (name, value) VALUES (:name, :reached) ON CONFLICT DO NOTHING

-- name: has_no_older_transaction
-- Whether all transactions that started to write before the row's transaction have ended.
age(xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)

-- name: rows_of_answered
SELECT id, at, {has_no_older_transaction}, turn, conversation, preset, provider, model,
    prompt_tokens, output_tokens, cost
FROM receipt WHERE id > :beyond ORDER BY id LIMIT :most

-- name: rows_of_failed
SELECT id, at, {has_no_older_transaction}, key FROM message_note
WHERE id > :beyond ORDER BY id LIMIT :most

-- name: rows_of_feedback
SELECT at, at, {has_no_older_transaction}, receipt, reaction, person FROM feedback
WHERE at > :beyond ORDER BY at LIMIT :most

-- name: rows_of_joined
SELECT id, received_at, {has_no_older_transaction}, conversation, kind FROM inbox
WHERE id > :beyond ORDER BY id LIMIT :most

-- === reports ===

-- name: feedback
SELECT person, reaction FROM feedback WHERE receipt = :number ORDER BY at, person

-- name: answer
SELECT id, conversation, at, content FROM receipt WHERE length(content) > 0 AND id = :number

-- name: answer_before
SELECT id FROM receipt
WHERE conversation = :of AND id < :number AND preset = :preset AND length(content) > 0
    AND turn <> ''
ORDER BY id DESC LIMIT 1

-- name: answers_beside
SELECT max(id) FILTER (WHERE id < :number), min(id) FILTER (WHERE id > :number) FROM receipt
WHERE conversation = :of AND length(content) > 0 AND turn <> ''

-- name: counted_answers
SELECT {column}, count(*) FROM receipt
WHERE at >= :since AND turn <> '' AND {column} IS NOT NULL
GROUP BY 1 ORDER BY 2 DESC LIMIT :most

-- name: delivery_of_answer
-- `started_at` is the start of the last attempt, the one that succeeded.
SELECT max(started_at), count(*) FILTER (WHERE state NOT IN ('sent', 'dead')) FROM outbox
WHERE turn = (SELECT turn FROM receipt WHERE id = :number)

-- name: answers_around
SELECT role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files, session, parent FROM turn
WHERE conversation = :of AND preset = :preset AND role = 'assistant'
    AND at BETWEEN :since AND :until
ORDER BY at DESC, id DESC

-- name: earlier_turns
-- No prompt contains more than a thousand turns.
SELECT role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files, active, id, parent FROM turn
WHERE conversation = :of AND session = :in_session AND id <= :newest
ORDER BY id DESC LIMIT 1000

-- name: sessions
SELECT session, count(*), min(at), max(at) FROM turn WHERE conversation = :of AND active
GROUP BY session ORDER BY session DESC LIMIT :most

-- name: people
SELECT speaker_id, speaker_name FROM turn
WHERE id IN (
    SELECT max(id) FROM turn WHERE conversation = :of AND speaker_id IS NOT NULL
    GROUP BY speaker_id
)
ORDER BY id DESC LIMIT :most

-- name: turns_of_conversation
SELECT role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files, session
FROM turn WHERE conversation = :of AND active ORDER BY id

-- name: queues
SELECT count(*), min(ready_since), coalesce(sum(CASE WHEN lease_until > :now THEN 1 ELSE 0 END), 0)
FROM conversation WHERE ready_since IS NOT NULL

-- name: unsent_counts
SELECT (SELECT count(*) FROM lane WHERE due_at IS NOT NULL),
    (SELECT count(*) FROM outbox WHERE state NOT IN ('sent', 'dead'))

-- name: queue_ages
SELECT :now - (SELECT min(ready_since) FROM conversation WHERE ready_since IS NOT NULL),
    :now - (SELECT min(due_at) FROM lane WHERE due_at IS NOT NULL)

-- name: traced_message
SELECT conversation, received_at, state = 'done', crashes FROM inbox
WHERE platform = :platform AND bot_id = :bot_id AND external_key = :external_key

-- name: traced_parts
SELECT part, op, state, attempts, error FROM outbox WHERE turn = :of ORDER BY part, id

-- name: channels
SELECT newest.conversation, newest.answers, newest.id, receipt.at, receipt.preset
FROM (
    SELECT conversation, count(*) AS answers, max(id) AS id FROM receipt GROUP BY conversation
) AS newest JOIN receipt ON receipt.id = newest.id
ORDER BY newest.id DESC LIMIT :most

-- name: newest_speakers
SELECT conversation, speaker_id, speaker_name FROM turn WHERE speaker_id IS NOT NULL
ORDER BY id DESC LIMIT :most

-- name: made_settings
-- Without people's self-descriptions.
SELECT scope, key, value, chosen_by, chosen_at FROM choice WHERE key NOT LIKE 'persona%'
ORDER BY scope, key

-- === dead letters ===

-- name: dead_messages
SELECT id, conversation, kind, received_at, crashes, payload
FROM inbox WHERE state = 'dead' ORDER BY id

-- name: dead_message
SELECT id, conversation, kind, received_at, crashes, payload
FROM inbox WHERE state = 'dead' AND id = :row

-- name: drop_dead_message
UPDATE inbox SET state = 'done', payload = NULL WHERE id = :row AND state = 'dead' RETURNING id

-- name: dead_rows
-- A dropped row has no error; it is kept only to mark its part of the turn.
SELECT id, lane, op, started_at, error FROM outbox
WHERE state = 'dead' AND error IS NOT NULL ORDER BY id

-- name: refusals
SELECT error FROM outbox WHERE state = 'dead' AND error IS NOT NULL AND lane = :of
ORDER BY id DESC LIMIT 8

-- name: dead_text
SELECT text FROM outbox WHERE id = :row AND state = 'dead' AND error IS NOT NULL

-- name: lane_of_dead_row
SELECT lane FROM outbox WHERE id = :row AND state = 'dead' AND error IS NOT NULL

-- name: send_dead_row_again
-- The message may have arrived, so it is searched for before it is sent again.
UPDATE outbox SET state = 'unknown', attempts = 0, not_before = 0, error = NULL, owner = NULL
WHERE id = :row AND state = 'dead' AND error IS NOT NULL RETURNING id

-- name: drop_dead_row
UPDATE outbox SET error = NULL, text = '', file_name = NULL, file_text = NULL, face = NULL,
    buttons = NULL
WHERE id = :row AND state = 'dead' AND error IS NOT NULL RETURNING id

-- === forgetting ===

-- name: conversations_of_person
SELECT DISTINCT conversation FROM turn WHERE speaker_id = :person ORDER BY conversation

-- name: page_of_waiting
SELECT conversation, id, kind, payload FROM inbox
WHERE state = 'new' AND (conversation, id) > (:last_key, :last) ORDER BY conversation, id LIMIT 500

-- name: consent_of_person
SELECT value FROM choice WHERE key = 'consent' AND scope = :person

-- name: lines_of_person
SELECT role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files, id, conversation FROM turn
WHERE speaker_id = :person AND active ORDER BY id

-- name: messages_set_aside
SELECT id, kind, payload FROM inbox WHERE state = 'dead'

-- name: drop_notes_of_person
DELETE FROM message_note WHERE person = :person

-- name: drop_messages_set_aside
UPDATE inbox SET state = 'done', payload = NULL
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows))

-- name: descriptions
SELECT scope, value FROM choice
WHERE key = 'persona' AND (scope = :person OR scope ~>=~ :anywhere AND scope ~<~ :end_of_anywhere)

-- name: settings_of_person
SELECT scope, key FROM choice
WHERE key LIKE 'persona%' AND (scope = :person OR scope ~>=~ :anywhere AND scope ~<~ :end_of_anywhere)
    OR key LIKE 'character %' AND scope = :person

-- name: presets_chosen_by
SELECT scope, key, value FROM choice WHERE key = 'preset' AND chosen_by = :person

-- name: chosen_presets
SELECT scope, key, value FROM choice WHERE key = 'preset'

-- name: forget_characters
DELETE FROM preset_version WHERE owner = :person AND owner IS NOT NULL AND first_seen_at <= :until

-- name: forget_list_of_characters
DELETE FROM choice WHERE key LIKE 'character %' AND scope = :person AND chosen_at <= :until

-- name: forget_changes_of_characters
DELETE FROM audit WHERE subject = :person AND action LIKE '% character %' AND at <= :until

-- name: forget_feedback_of_person
DELETE FROM feedback WHERE person = :person AND at <= :until

-- name: feedback_of_person
SELECT conversation, feedback.at, reaction FROM feedback JOIN receipt ON receipt.id = feedback.receipt
WHERE feedback.person = :person ORDER BY feedback.at

-- name: confirmed_age
SELECT value FROM choice WHERE scope = :person AND key = 'persona_adult'

-- name: forgotten_since
SELECT id, conversation FROM forgotten WHERE at >= :since

-- name: keys_of_channel
SELECT key FROM conversation
WHERE key = :channel OR strpos(key, :topics) = 1 OR strpos(key, :branches) = 1
ORDER BY key

-- name: keys_of_server
SELECT DISTINCT conversation FROM receipt WHERE server = :server ORDER BY conversation

-- === restoring ===

-- name: drop_unfinished_answers
-- A search on Telegram edits messages, so it would shorten an answer that was finished since.
DELETE FROM outbox WHERE op = 'send' AND state NOT IN ('sent', 'dead') AND turn IN (
    SELECT platform || CASE bot_id WHEN '' THEN '' ELSE '@' || bot_id END || ':' || external_key
    FROM inbox WHERE state = 'new'
)

-- name: mark_all_unknown
UPDATE outbox SET state = 'unknown', owner = NULL, attempts = 0, not_before = 0,
    started_at = coalesce(started_at, :now)
WHERE state NOT IN ('sent', 'dead') RETURNING id

-- name: make_lanes_due
UPDATE lane SET due_at = :now WHERE key IN (
    SELECT lane FROM outbox WHERE state NOT IN ('sent', 'dead')
)

-- name: release_everything
UPDATE conversation SET owner = NULL, lease_until = 0

-- name: clear_attempts
-- Without attempts, no part counts as opened, so that none is deleted.
UPDATE inbox SET attempt = 0, crashes = 0, own_crashes = 0 WHERE state = 'new'

-- name: drop_presses
UPDATE inbox SET state = 'done', payload = NULL
WHERE state = 'new' AND kind IN ('pressed', 'reacted', 'joined', 'edited')

-- name: drop_sessions_of_gateways
DELETE FROM cursor WHERE name LIKE '% session'

-- name: drop_forgotten_messages
DELETE FROM forgotten_message

-- name: drop_notes
-- The notes quote messages that were forgotten since.
DELETE FROM message_note

-- name: note_restore
INSERT INTO restore (at, answered_until) VALUES (:at, :answered_until)

-- name: count_unanswered
SELECT count(*) FROM inbox WHERE state = 'new'

-- name: turns_until_moment
SELECT id FROM turn WHERE conversation = :of AND at <= :until

-- name: note_forgotten_message
INSERT INTO forgotten_message (conversation, message_id, at) VALUES (:of, :message, :until)

-- name: forget_descriptions
DELETE FROM choice
WHERE key LIKE 'persona%' AND chosen_at <= :until
    AND (scope = :person OR strpos(scope, :person_anywhere) = 1)

-- name: forget_messages_until
UPDATE inbox SET state = 'done', payload = NULL
WHERE conversation = :of AND (state = 'new' OR state = 'dead') AND received_at <= :until

-- name: forget_rows_of_channel
UPDATE outbox SET state = 'dead', error = NULL, text = '', file_name = NULL, file_text = NULL,
    face = NULL, buttons = NULL, owner = NULL
WHERE lane = :of_lane AND (state NOT IN ('sent', 'dead') OR state = 'dead')
    AND coalesce(thread, '') = :of_thread

-- name: forget_descriptions_of_channel
DELETE FROM choice WHERE key LIKE 'persona%' AND chosen_at <= :until AND conversation = :of

-- name: newest_restore
SELECT answered_until FROM restore
WHERE at >= :since AND id = (SELECT max(id) FROM restore)

-- name: forgotten_messages
SELECT conversation, message_id, at FROM forgotten_message

-- === retention ===

-- name: is_listed
-- The range keeps PostgreSQL from reading the whole table to find the ids of one page.
id BETWEEN :first AND :last
    AND id IN (SELECT value::bigint FROM jsonb_array_elements_text(:ids))

-- name: keep_message_ids
-- Kept, because turns are found by the messages that they were sent as (histories.py).
INSERT INTO sent_message (conversation, external_id, turn, part)
SELECT lane || coalesce(':' || thread, ''), external_id, turn, part FROM outbox
WHERE {is_listed} AND op = 'send' AND external_id IS NOT NULL
ON CONFLICT DO NOTHING

-- name: turns_of_rows
SELECT id, turn, platform, bot_id FROM outbox WHERE {is_listed}

-- name: unsent_turns
SELECT turn FROM outbox
WHERE turn IN (SELECT value FROM jsonb_array_elements_text(:turns))
    AND NOT state IN ('sent', 'dead')

-- name: unanswered_keys
SELECT external_key FROM inbox
WHERE platform = :platform AND bot_id = :bot_id AND state = 'new'
    AND external_key IN (SELECT value FROM jsonb_array_elements_text(:keys))

-- name: end_of_receipt_page
SELECT max(at) FROM (
    SELECT at FROM receipt WHERE at BETWEEN :since AND :until AND length(content) > 0
    ORDER BY at LIMIT 500
) AS oldest

-- name: empty_receipt_page
UPDATE receipt SET content = :content, preset = {unnamed_preset}
WHERE id IN (
    SELECT id FROM receipt WHERE at BETWEEN :since AND :until AND length(content) > 0
)
RETURNING id

-- name: delete_old_feedback
DELETE FROM feedback
WHERE receipt IN (
    SELECT id FROM receipt WHERE at BETWEEN :since AND :until AND length(content) > 0
)

-- name: delete_old_memory_uses
DELETE FROM memory_use
WHERE receipt IN (
    SELECT id FROM receipt WHERE at BETWEEN :since AND :until AND length(content) > 0
)

-- name: delete_old_budgets
DELETE FROM budget WHERE key < :oldest RETURNING key

-- name: delete_dead_nodes
DELETE FROM node WHERE seen_at < :dead_since RETURNING owner

-- name: delete_dead_leases
-- Rows of roles stay, so that operators can see that no process holds a role.
DELETE FROM role_lease
WHERE (role LIKE 'shards of %' OR role LIKE 'identify %') AND lease_until < :dead_since
RETURNING role

-- name: page_of_turns
SELECT id, conversation, session, at, sent_as FROM turn
WHERE id > :last ORDER BY id LIMIT 500

-- name: conversation_exists
SELECT key FROM conversation WHERE key = :of

-- name: skip_epoch
-- Cached histories are valid only under the next epoch; skipping one makes processes read again.
UPDATE conversation SET epoch = epoch + 1 WHERE key = :of AND ready_since IS NULL RETURNING key

-- name: delete_turns
DELETE FROM turn WHERE {is_listed}

-- name: delete_summaries_of_sessions
DELETE FROM summary WHERE conversation = :of
    AND session IN (SELECT value::bigint FROM jsonb_array_elements_text(:sessions))

-- name: delete_sent_messages
DELETE FROM sent_message WHERE conversation = :channel
    AND turn IN (SELECT value FROM jsonb_array_elements_text(:names))

-- === copying ===

-- name: held_conversation
SELECT key FROM conversation WHERE owner IS NOT NULL AND lease_until > :now LIMIT 1

-- name: seen_node
-- 30 seconds are three heartbeats.
SELECT owner FROM node WHERE seen_at > :now - 30 LIMIT 1
