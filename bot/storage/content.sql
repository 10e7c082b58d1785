-- The statements of receipts, stories, summaries and web channels.

-- === receipts ===

-- name: newest_receipts
-- Rows without a turn are receipts of replays.
SELECT id, content FROM receipt WHERE conversation = :of AND length(content) > 0 AND turn = (
    SELECT turn FROM receipt WHERE conversation = :of AND length(content) > 0 AND turn <> ''
    ORDER BY id DESC LIMIT 1
)
ORDER BY id

-- name: newest_replay
SELECT max(id) FROM receipt WHERE conversation = :of AND turn = '' AND length(content) > 0

-- name: receipts_of_answer
-- An answer may be stored up to 600 s after its last word, while other characters answer.
SELECT id, content FROM receipt WHERE conversation = :of AND length(content) > 0 AND turn = (
    SELECT turn FROM receipt
    WHERE conversation = :of AND at >= :at AND at < :at + 600 AND length(content) > 0 AND turn <> ''
    ORDER BY id LIMIT 1
)
ORDER BY id

-- === stories ===

-- name: story_revision
SELECT revision FROM story_revision WHERE character = :of

-- name: story_vectors
SELECT sha256, vector FROM story WHERE character = :of AND model = :model ORDER BY place

-- name: story_texts
SELECT sha256, place, text FROM story
WHERE character = :of AND sha256 IN (SELECT value FROM jsonb_array_elements_text(:keys))

-- name: known_stories
SELECT sha256, place, model FROM story WHERE character = :of

-- name: delete_story
DELETE FROM story WHERE character = :of AND sha256 = :key

-- name: set_story_place
UPDATE story SET place = :place WHERE character = :of AND sha256 = :key

-- name: set_story_vector
UPDATE story SET model = :model, vector = :vector WHERE character = :of AND sha256 = :key

-- name: add_story
INSERT INTO story (character, sha256, place, text) VALUES (:of, :key, :place, :text)

-- name: raise_story_revision
-- Locks a character's stories until the commit.
INSERT INTO story_revision (character, revision) VALUES (:of, 1)
ON CONFLICT (character) DO UPDATE SET revision = story_revision.revision + 1

-- === summaries ===

-- name: locked_session
SELECT session FROM conversation WHERE key = :of FOR UPDATE

-- name: turns_of_session
SELECT id, role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files
FROM turn WHERE conversation = :of AND session = :in_session AND active ORDER BY id

-- name: newest_own_turn
SELECT session, id, at FROM turn
WHERE speaker_id = :person AND conversation = :of AND active ORDER BY id DESC LIMIT 1

-- name: newest_turns_after
SELECT id, role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files
FROM turn
WHERE conversation = :of AND (session, id) > (:in_session, :last_own) AND active
ORDER BY session DESC, id DESC LIMIT 400

-- name: summary
SELECT session, covers_to, fingerprint, text FROM summary
WHERE conversation = :of AND session = :in_session

-- name: current_summary
SELECT session, covers_to, fingerprint, text FROM summary
WHERE conversation = :of AND session = (SELECT session FROM conversation WHERE key = :of)
    AND turns = (
        SELECT count(*) FROM turn
        WHERE turn.conversation = summary.conversation AND turn.session = summary.session
            AND turn.id <= summary.covers_to AND turn.active
    )

-- name: save_summary
INSERT INTO summary (conversation, session, covers_to, fingerprint, text, turns)
VALUES (:of, :in_session, :covers_to, :fingerprint, :text, (
    SELECT count(*) FROM turn
    WHERE conversation = :of AND session = :in_session AND id <= :covers_to AND active
))
ON CONFLICT (conversation, session) DO UPDATE SET covers_to = excluded.covers_to,
    fingerprint = excluded.fingerprint, text = excluded.text, turns = excluded.turns

-- === web channels ===

-- name: web_message
SELECT content, position, revision FROM web_message
WHERE channel = :of AND id = :id AND NOT is_deleted

-- name: newest_web_messages
SELECT content, position, revision FROM web_message
WHERE channel = :of AND NOT is_deleted AND position < :older_than
ORDER BY position DESC LIMIT :most

-- name: changed_web_messages
SELECT content, position, revision FROM web_message
WHERE channel = :of AND revision > :newer_than ORDER BY revision LIMIT :most

-- name: web_channels
SELECT content, revision FROM web_channel ORDER BY created_at

-- name: web_channel
SELECT content, revision FROM web_channel WHERE id = :of

-- name: lock_web_channel
SELECT content, revision FROM web_channel WHERE id = :of FOR UPDATE

-- name: create_web_channel
INSERT INTO web_channel (id, revision, content, created_at) VALUES (:of, 0, :content, :created_at)

-- name: update_web_channel
UPDATE web_channel SET content = :content WHERE id = :of

-- name: delete_web_channel
DELETE FROM web_channel WHERE id = :of

-- name: delete_web_messages
DELETE FROM web_message WHERE channel = :of

-- name: next_web_revision
-- The row is locked until the commit, so that revisions are committed in their order.
UPDATE web_channel SET revision = revision + 1 WHERE id = :of RETURNING revision

-- name: add_web_message
INSERT INTO web_message (channel, id, position, revision, is_deleted, content)
VALUES (:of, :id, :revision, :revision, :is_deleted, :content) ON CONFLICT DO NOTHING

-- name: replace_web_message
UPDATE web_message SET revision = :revision, is_deleted = :is_deleted, content = :content
WHERE channel = :of AND id = :id AND NOT is_deleted RETURNING id

-- name: recent_conversations
SELECT conversation FROM turn GROUP BY conversation ORDER BY max(id) DESC LIMIT :most

-- name: create_copy
INSERT INTO conversation (key, platform) VALUES (:of, :platform)
ON CONFLICT DO NOTHING RETURNING key
