-- Rows of other chats.

WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
INSERT INTO turn (conversation, session, role, text, at, message_id)
SELECT 'telegram:' || (1000 + n % 1000), 1, 'user', 'What do you think of it?', n, n FROM numbers;

WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
INSERT INTO inbox (platform, external_key, conversation, payload, received_at)
SELECT 'telegram', 'open:' || n, 'telegram:' || (1000 + n % 1000), X'7b7d', n FROM numbers;

WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
INSERT INTO conversation (key, platform, ready_since)
SELECT 'telegram:' || (1000 + n), 'telegram', n FROM numbers;

WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
INSERT INTO outbox (turn, part, op, platform, chat, lane, text)
SELECT 'open:' || n, 0, 'send', 'telegram', 1000 + n, 'telegram:' || (1000 + n), 'It is fine.' FROM numbers;

WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
INSERT INTO lane (key, platform, due_at)
SELECT 'telegram:' || (1000 + n), 'telegram', n FROM numbers;
