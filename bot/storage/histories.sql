-- Statements on histories: find turns by the platform's messages, change them, delete them.

-- name: turn_columns
turn.id, turn.role, turn.speaker_id, turn.speaker_name, turn.text, turn.at, turn.preset,
    turn.preset_version, turn.message_id, turn.sent_as, turn.observed, turn.files

-- name: turns_of_messages
SELECT {turn_columns} FROM turn
WHERE turn.conversation = :of
    AND turn.message_id IN (SELECT value FROM jsonb_array_elements_text(:ids))

-- name: parts_of_messages
SELECT turn, part FROM outbox
WHERE lane = :of_lane AND external_id IS NOT NULL
    AND external_id IN (SELECT value FROM jsonb_array_elements_text(:ids)) AND op = 'send'
UNION ALL
SELECT turn, part FROM sent_message
WHERE conversation = :of_channel
    AND external_id IN (SELECT value FROM jsonb_array_elements_text(:ids))

-- name: turns_sent_as
SELECT {turn_columns} FROM turn WHERE turn.conversation = :of AND strpos(turn.sent_as, :part) > 0

-- name: question
SELECT {turn_columns}, turn.session, conversation.session, turn.active
FROM turn JOIN conversation ON conversation.key = turn.conversation
WHERE turn.conversation = :of AND turn.role = 'user' AND turn.active AND turn.message_id = :message
ORDER BY turn.id DESC LIMIT 1

-- name: question_before
SELECT {turn_columns}, turn.session, conversation.session, turn.active
FROM turn JOIN conversation ON conversation.key = turn.conversation
WHERE turn.conversation = :of AND turn.role = 'user' AND turn.active AND NOT turn.observed
    AND turn.session = :in_session AND turn.id < :answer
ORDER BY turn.id DESC LIMIT 1

-- name: sent_as
-- The turns that a sent part belongs to: an answer and its versions, or a question that failed.
SELECT {turn_columns}, turn.session, conversation.session, turn.active
FROM turn JOIN conversation ON conversation.key = turn.conversation
WHERE turn.conversation = :of AND strpos(turn.sent_as, :part) > 0
ORDER BY turn.active DESC, turn.id DESC LIMIT 1

-- name: gathered_turns
-- The turns that were gathered with a question whose answer failed.
SELECT {turn_columns} FROM turn
WHERE turn.conversation = :of AND turn.session = :in_session AND turn.id < :question
    AND turn.sent_as = :sent_as
ORDER BY turn.id

-- name: versions
SELECT {turn_columns} FROM turn, turn AS answer
WHERE answer.id = :answer AND turn.conversation = answer.conversation
    AND turn.session = answer.session AND turn.parent IS NOT DISTINCT FROM answer.parent
    AND turn.role = 'assistant'
ORDER BY turn.at, turn.id

-- name: turns_before
SELECT {turn_columns} FROM turn
WHERE turn.conversation = :of AND turn.session = :in_session AND turn.active AND turn.id < :question
ORDER BY turn.id DESC LIMIT :most

-- name: turns_after
-- Observed lines may precede the answer to a question that was edited.
SELECT {turn_columns} FROM turn
WHERE turn.conversation = :of AND turn.session = :in_session AND turn.active AND turn.id > :question
    AND NOT turn.observed
ORDER BY turn.id LIMIT 400

-- name: sends_of_turns
-- A private message that was sent empty and then edited does not edit another turn's message.
SELECT turn, part, external_id FROM outbox
WHERE turn IN (SELECT value FROM jsonb_array_elements_text(:names)) AND state <> 'dead'
    AND (op = 'send' OR op = 'edit' AND target_turn IS NULL AND external_id IS NOT NULL)

-- name: kept_ids_of_turns
SELECT turn, part, external_id FROM sent_message
WHERE turn IN (SELECT value FROM jsonb_array_elements_text(:names))

-- name: failed_questions
-- Failed questions, and commands chosen from menus, after the history's newest question or answer.
-- Observed lines do not count.
SELECT {turn_columns} FROM turn
WHERE turn.conversation = :of
    AND turn.session = (SELECT session FROM conversation WHERE key = :of)
    AND NOT turn.active AND turn.role = 'user' AND turn.sent_as IS NOT NULL
    AND turn.id > coalesce((
        SELECT later.id FROM turn AS later
        WHERE later.conversation = :of
            AND later.session = (SELECT session FROM conversation WHERE key = :of)
            AND later.active AND (later.role = 'assistant' OR NOT later.observed)
        ORDER BY later.id DESC LIMIT 1
    ), 0)
ORDER BY turn.id DESC LIMIT 100

-- name: all_turns
SELECT id FROM turn WHERE conversation = :of

-- name: turns_and_parents
SELECT id, parent, speaker_id, observed FROM turn WHERE conversation = :of ORDER BY id

-- name: turn_of_others
SELECT id FROM turn
WHERE conversation = :of AND speaker_id IS NOT NULL AND speaker_id <> :person LIMIT 1

-- === changes ===

-- name: set_text
UPDATE turn SET text = :text WHERE id = :row

-- name: set_observed
UPDATE turn SET observed = :observed WHERE id = :row

-- name: set_files
UPDATE turn SET files = :files WHERE id = :row

-- name: keep_version
-- The active version keeps the row id; the replaced version is copied to a new row.
INSERT INTO turn (
    conversation, session, role, speaker_id, speaker_name, text, at, preset, preset_version, parent,
    message_id, sent_as, observed, active
)
SELECT conversation, session, role, speaker_id, speaker_name, text, at, preset, preset_version,
    parent, message_id, sent_as, observed, false
FROM turn WHERE id = :row

-- name: set_version
UPDATE turn SET text = :text, at = :at, preset = :preset, preset_version = :preset_version,
    sent_as = :sent_as
WHERE id = :row

-- name: supersede_listed
UPDATE turn SET active = false
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows))

-- name: first_of_listed
SELECT min(at), min(id) FROM turn
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows))

-- name: delete_listed
DELETE FROM turn WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows))

-- name: parts_of_listed
SELECT sent_as FROM turn
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows)) AND sent_as IS NOT NULL

-- name: messages_of_listed
SELECT message_id FROM turn
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows)) AND message_id IS NOT NULL

-- name: empty_unsent
-- Sent rows have no text any more, but dead rows would keep theirs for days.
UPDATE outbox SET text = '', file_text = NULL, error = NULL
WHERE turn IN (SELECT value FROM jsonb_array_elements_text(:names)) AND state = 'dead'

-- name: move_unanswered
-- Until the first answer of the first session, earlier messages are read from the channel. So that
-- deleted messages do not come back, the rest of that session becomes the next session.
UPDATE turn SET session = 2
WHERE conversation = :of AND session = 1
    AND EXISTS (SELECT 1 FROM conversation WHERE key = :of AND session = 1)
    AND NOT EXISTS (
        SELECT 1 FROM turn AS question, turn AS answer
        WHERE question.conversation = :of AND question.session = 1 AND question.role = 'user'
            AND NOT question.observed AND answer.conversation = :of AND answer.session = 1
            AND answer.role = 'assistant' AND answer.id > question.id
    )

-- name: end_empty_session
UPDATE conversation SET session = session + 1
WHERE key = :of AND NOT EXISTS (
    SELECT 1 FROM turn
    WHERE turn.conversation = conversation.key AND turn.session = conversation.session
)

-- name: delete_summaries_from
DELETE FROM summary WHERE conversation = :of AND covers_to >= :first

-- name: drop_feedback_since
DELETE FROM feedback
WHERE receipt IN (SELECT id FROM receipt WHERE conversation = :of AND at >= :since)

-- name: empty_receipts_since
UPDATE receipt SET content = :content, preset = {unnamed_preset}
WHERE conversation = :of AND at >= :since

-- name: note_forgotten
INSERT INTO forgotten (conversation, at) VALUES (:of, :moment)

-- === the histories of a channel ===

-- name: conversation_of_key
SELECT conversation FROM inbox
WHERE platform = :platform AND bot_id = :bot_id AND external_key = :external_key

-- name: in_channel
conversation IN (
        SELECT key FROM conversation
        WHERE (key = :channel OR key ~>=~ :branches AND key ~<~ :end_of_branches)
    )

-- name: newest_of_person
SELECT conversation FROM turn WHERE speaker_id = :person AND {in_channel} ORDER BY id DESC LIMIT 1

-- name: conversations_of_channel
SELECT key, (SELECT count(*) FROM turn WHERE turn.conversation = conversation.key)
FROM conversation WHERE (key = :channel OR key ~>=~ :branches AND key ~<~ :end_of_branches)

-- name: locate_messages
SELECT id, conversation, session, active FROM turn
WHERE message_id IN (SELECT value FROM jsonb_array_elements_text(:ids)) AND {in_channel}
ORDER BY id

-- name: answers_of_channel
SELECT id, conversation, session FROM turn
WHERE active AND strpos(sent_as, :part) > 0 AND {in_channel}
ORDER BY id

-- name: answers_of_conversation
SELECT id, conversation, session FROM turn
WHERE active AND strpos(sent_as, :part) > 0 AND conversation = :of
ORDER BY id

-- name: is_last
SELECT EXISTS (SELECT 1 FROM conversation WHERE key = :of AND session = :in_session)
    AND NOT EXISTS (
        SELECT 1 FROM turn
        WHERE conversation = :of AND active AND id > :turn AND (role = 'user' OR :answered = '')
    )
    AND NOT EXISTS (
        SELECT 1 FROM inbox
        WHERE conversation = :of AND state = 'new' AND kind = 'said' AND external_key <> :answered
    )

-- name: has_turns
SELECT id FROM turn WHERE conversation = :of LIMIT 1

-- name: turns_until
SELECT {turn_columns} FROM turn
WHERE conversation = :of AND session = (SELECT session FROM turn WHERE id = :turn) AND active
    AND id <= :turn
ORDER BY id DESC LIMIT 400
