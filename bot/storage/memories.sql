-- Statements on memories (memories.py).

-- name: memory_columns
id, subject_kind, subject, subject_name, text, kind, said_by, told_by, told_by_name, present,
    conversation, turns, is_derived, audience, origin, server, is_widened, state, is_pinned, since,
    until, model, embedding

-- name: memories_for_listener
-- All memories that a character may recall in a place: those made there, those about people present
-- that may be recalled in the whole server, and the server's newest ones. Of memories that the asker
-- made in other private chats, only the ids. Each query filters before its limit.
WITH recallable AS (
    SELECT id FROM (
        SELECT id FROM memory
        WHERE origin = :here AND state = 'kept'
            AND (present = '' OR strpos(present, :character) > 0)
        ORDER BY is_pinned DESC, id DESC LIMIT 250
    ) AS said_here
    UNION
    SELECT id FROM (
        SELECT id FROM memory
        WHERE audience = :here AND state = 'kept'
            AND (present = '' OR strpos(present, :character) > 0)
        ORDER BY is_pinned DESC, id DESC LIMIT 250
    ) AS widened_to_here
    UNION
    SELECT id FROM (
        SELECT id FROM memory AS candidate
        WHERE subject IN (SELECT value FROM jsonb_array_elements_text(:subjects))
            AND candidate.audience IN (:in_server, 'everywhere') AND state = 'kept'
            AND (present = '' OR strpos(present, :character) > 0)
        ORDER BY is_pinned DESC, id DESC LIMIT 250
    ) AS of_present
    UNION
    SELECT id FROM (
        SELECT id, present FROM memory WHERE audience = :in_server AND state = 'kept'
        ORDER BY id DESC LIMIT 100
    ) AS newest WHERE present = '' OR strpos(present, :character) > 0
)
SELECT id, subject_kind, subject, text, said_by, told_by, told_by_name, is_pinned, since, model,
    embedding, subject_name AS stored_name, false
FROM memory WHERE id IN (SELECT id FROM recallable)
UNION ALL
SELECT id, '', '', '', '', NULL, NULL, false, since, '', NULL, '', true FROM memory
WHERE said_by = :asker AND strpos(audience, 'private ') = 1 AND audience <> :here
    AND state = 'kept' AND (present = '' OR strpos(present, :character) > 0)

-- name: is_visible
-- Memories by a person, and memories that may be recalled where the person asks. Memories that may be
-- recalled everywhere are listed only in the server that they come from.
(
    said_by = :person OR origin = :here OR audience = :here OR audience = :in_server
        OR audience = 'everywhere' AND server = :server
)

-- name: visible_memories
SELECT {memory_columns} FROM memory
WHERE {is_visible} AND (:subject = '' OR subject = :subject)
ORDER BY is_pinned DESC, state, id DESC LIMIT :most

-- name: newest_memories
SELECT {memory_columns} FROM memory
WHERE (:state = '' OR state = :state) AND (:id = 0 OR id = :id)
ORDER BY id DESC LIMIT :most

-- name: changeable_memory
SELECT {memory_columns} FROM memory
WHERE id = :id AND {is_visible}
    AND (said_by = :person OR subject = :person OR :is_admin AND server = :server) FOR UPDATE

-- name: memories_of_author
-- An author's memories about a subject in one place.
SELECT {memory_columns} FROM memory
WHERE subject = :subject AND subject_kind = :subject_kind AND origin = :origin
    AND said_by = :said_by AND state <> 'retired'

-- name: texts_of_active_turns
SELECT id, text FROM turn
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:rows))
    AND conversation = :of AND active

-- name: add_memory
INSERT INTO memory (
    subject_kind, subject, subject_name, text, kind, said_by, told_by, told_by_name, present,
    conversation, turns, is_derived, audience, origin, server, is_widened, state, is_pinned, since,
    until, model, embedding
)
VALUES (
    :subject_kind, :subject, :subject_name, :text, :kind, :said_by, :told_by, :told_by_name,
    :present, :conversation, :turns, :is_derived, :audience, :origin, :server, :is_widened, :state,
    :is_pinned, :since, :until, :model, :embedding
)
RETURNING id

-- name: change_memory
UPDATE memory SET subject_name = :subject_name, text = :text, kind = :kind, said_by = :said_by,
    told_by = :told_by, told_by_name = :told_by_name, conversation = :conversation,
    turns = :turns, is_derived = :is_derived, audience = :audience, is_widened = :is_widened,
    state = :state, is_pinned = :is_pinned, since = :since, until = :until, model = :model,
    embedding = :embedding
WHERE id = :id

-- name: retire_memory
UPDATE memory SET state = 'retired', until = :moment WHERE id = :id

-- name: surplus_of_subject
SELECT id, is_derived OR state = 'retired' FROM memory
WHERE subject = :subject AND subject_kind = :subject_kind AND server = :server
ORDER BY state = 'retired', is_pinned DESC, is_derived, id DESC LIMIT 1000 OFFSET :most

-- name: surplus_of_channel
SELECT id, is_derived OR state = 'retired' FROM memory
WHERE origin = :origin
ORDER BY state = 'retired', is_pinned DESC, is_derived, id DESC LIMIT 1000 OFFSET :most

-- name: delete_memories
DELETE FROM memory WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:ids))

-- name: memories_of_person
SELECT {memory_columns} FROM memory
WHERE said_by = :person OR subject = :person AND subject_kind = 'person'
ORDER BY id

-- name: memory_texts_of_person
SELECT text, subject_name, audience, since FROM memory
WHERE said_by = :person OR subject = :person AND subject_kind = 'person'
ORDER BY id

-- name: set_audience
UPDATE memory SET audience = :audience WHERE id = :id

-- === deletion: mark memories as gone, then delete them with the prompts that contain them ===

-- name: mark_listed_memories
UPDATE memory SET state = 'gone'
WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(:ids))

-- name: mark_stale_memories
-- Memories derived from turns that are deleted, inactive, or about to change.
UPDATE memory SET state = 'gone'
WHERE conversation = :of AND is_derived AND EXISTS (
    SELECT 1 FROM jsonb_array_elements_text(memory.turns::jsonb)
    WHERE value::bigint IN (SELECT changed.value::bigint FROM jsonb_array_elements_text(:rows) AS changed)
        OR NOT EXISTS (SELECT 1 FROM turn WHERE turn.id = value::bigint AND turn.active)
)

-- name: mark_memories_of_person
UPDATE memory SET state = 'gone'
WHERE (said_by = :person OR subject = :person AND subject_kind = 'person') AND since <= :until

-- name: mark_memories_of_conversation
UPDATE memory SET state = 'gone' WHERE conversation = :of AND since <= :until

-- name: receipt_of_gone
id IN (
    SELECT receipt FROM memory_use WHERE memory IN (SELECT id FROM memory WHERE state = 'gone')
)

-- name: note_memories_gone
-- Conversations whose prompts processes and model servers may have cached.
INSERT INTO forgotten (conversation, at)
SELECT DISTINCT conversation, :moment::float8 FROM receipt WHERE {receipt_of_gone}

-- name: empty_receipts_of_memories
UPDATE receipt SET content = :content, preset = {unnamed_preset} WHERE {receipt_of_gone}

-- name: delete_uses_of_gone
DELETE FROM memory_use WHERE memory IN (SELECT id FROM memory WHERE state = 'gone')

-- name: delete_gone_memories
DELETE FROM memory WHERE state = 'gone'

-- === how far conversations were read for memories (extractions.py) ===

-- name: newest_unread
SELECT id, role, speaker_id, speaker_name, text, at, preset, preset_version, message_id, sent_as,
    observed, files, memory_read_to, memory_asked_to
FROM turn JOIN conversation ON conversation.key = turn.conversation
WHERE turn.conversation = :of AND active AND id > memory_read_to

-- name: unread_turns
-- Observed turns have their own limit, so that small talk does not displace exchanges.
SELECT * FROM (
    {newest_unread} AND NOT observed
    ORDER BY turn.session DESC, id DESC LIMIT 100
) AS addressed
UNION ALL
SELECT * FROM (
    {newest_unread} AND observed
    ORDER BY turn.session DESC, id DESC LIMIT 100
) AS overheard

-- name: set_asked_to
UPDATE conversation SET memory_asked_to = :to
WHERE key = :of AND memory_asked_to = :known
RETURNING key

-- name: set_read_to
UPDATE conversation SET memory_read_to = :to WHERE key = :of AND memory_read_to = :known

-- name: read_again_from
UPDATE conversation SET memory_read_to = :first - 1 WHERE key = :of AND memory_read_to >= :first
