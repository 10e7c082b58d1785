-- 1,000,000 turns and 100,000 open rows; 700 rows of each kind have expired.
SET LOCAL synchronous_commit = off;
INSERT INTO turn (conversation, session, role, speaker_id, text, at)
    SELECT 'telegram:c' || n % 100000, 1, 'user', 'telegram:c' || n % 100000, 'hello', n
    FROM generate_series(1, 1000000) n;
INSERT INTO inbox (platform, external_key, conversation, payload, received_at, state)
    SELECT 'telegram', 'c' || n % 100000 || ':' || n, 'telegram:c' || n % 100000, '{}',
        CASE WHEN n <= 700 THEN 0 ELSE extract(epoch FROM now()) END,
        CASE WHEN n <= 100000 THEN 'done' ELSE 'new' END FROM generate_series(1, 200000) n;
INSERT INTO conversation (key, platform, ready_since)
    SELECT 'telegram:c' || n, 'telegram', n FROM generate_series(0, 99999) n;
INSERT INTO outbox (turn, part, op, platform, chat, lane, text, state, external_id, started_at)
    SELECT 'telegram:c' || n % 100000 || ':' || n, 0, 'send', 'telegram', 'c' || n % 100000,
        'telegram:c' || n % 100000, 'hi', CASE WHEN n <= 100000 THEN 'sent' ELSE 'pending' END,
        n, CASE WHEN n <= 700 THEN 0 ELSE extract(epoch FROM now()) END
    FROM generate_series(1, 200000) n;
INSERT INTO lane (key, platform, due_at)
    SELECT 'telegram:c' || n, 'telegram', n FROM generate_series(0, 99999) n;
INSERT INTO cursor (name, value)
    SELECT 'discord:' || n, '1' FROM generate_series(1, 2000) n;
INSERT INTO receipt (conversation, turn, at, content)
    SELECT 'telegram:c' || n, 't', CASE WHEN n <= 700 THEN 0 ELSE extract(epoch FROM now())
        END, 'x' FROM generate_series(1, 100000) n;
INSERT INTO sent_message (conversation, external_id, turn, part)
    SELECT 'telegram:c' || n, n, 't' || n, 0 FROM generate_series(1, 100000) n;
INSERT INTO summary (conversation, session, covers_to, turns, fingerprint, text)
    SELECT 'telegram:c' || n, 1, 1, 1, '', '' FROM generate_series(1, 10000) n;
INSERT INTO forgotten (conversation, at)
    SELECT 'telegram:c' || n, extract(epoch FROM now()) FROM generate_series(1, 10000) n;
INSERT INTO audit (at, who, action, subject, before, after)
    SELECT extract(epoch FROM now()), 'telegram:1', 'set', 'telegram:c' || n, '', ''
    FROM generate_series(1, 10000) n;
INSERT INTO message_note (key, at, content, person)
    SELECT 'why:telegram:c' || n, CASE WHEN n <= 700 THEN 0 ELSE extract(epoch FROM now())
        END, '{}', 'telegram:c' || n FROM generate_series(1, 10000) n;
INSERT INTO budget (key, spent)
    SELECT '2999-01 person:telegram:' || n, 1 FROM generate_series(1, 10000) n;
INSERT INTO choice (scope, key, value, chosen_by, chosen_at, conversation)
    SELECT 'telegram:c' || n || '@telegram:c' || n, 'persona', 'tall', 'telegram:1', n,
        'telegram:c' || n
    FROM generate_series(1, 100000) n;
INSERT INTO feedback (receipt, person, reaction, at)
    SELECT n, 'telegram:c' || n, '👍', n FROM generate_series(1, 10000) n;
INSERT INTO preset_version (name, version, sha256, content, first_seen_at, owner)
    SELECT 'telegram:c' || n || '/nova', 1, '', '{}', n, 'telegram:c' || n
    FROM generate_series(1, 10000) n;
INSERT INTO memory (
    subject_kind, subject, subject_name, text, kind, said_by, present, conversation, turns,
    is_derived, audience, origin, server, is_widened, state, is_pinned, since, model
)
    SELECT 'person', 'telegram:c' || n, '', 'x', 'fact', 'telegram:c' || n, '', 'telegram:c' || n,
        '[]', true, 'channel telegram:c' || n, 'channel telegram:c' || n, 'telegram:c' || n, false,
        'kept', false, n, ''
    FROM generate_series(1, 20000) n;
INSERT INTO memory_use (receipt, memory) SELECT n, n FROM generate_series(1, 20000) n;
ANALYZE
