-- Statements on chat settings, presets, keys, tokens, budgets and leases.

-- === chat settings ===

-- name: set_choice
INSERT INTO choice (scope, key, value, chosen_by, chosen_at, conversation)
VALUES (:scope, :key, :value, :by, :at, :conversation)
ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value, chosen_by = excluded.chosen_by,
    chosen_at = excluded.chosen_at, conversation = excluded.conversation

-- name: reset_choice
DELETE FROM choice WHERE scope = :scope AND key = :key

-- name: locked_choice
SELECT value FROM choice WHERE scope = :scope AND key = :key FOR UPDATE

-- name: choices_of_scopes
SELECT scope, key, value FROM choice
WHERE scope IN (SELECT value FROM jsonb_array_elements_text(:scopes))

-- name: characters
SELECT value FROM choice WHERE key LIKE 'character %'

-- === presets ===

-- name: newest_preset
SELECT version, sha256, content FROM preset_version WHERE name = :name
ORDER BY version DESC LIMIT 1

-- name: preset_content
SELECT content FROM preset_version WHERE name = :name AND version = :version

-- name: preset_history
SELECT version, first_seen_at FROM preset_version WHERE name = :name AND sha256 <> :deleted
ORDER BY version DESC LIMIT :most

-- name: add_preset
INSERT INTO preset_version (name, version, sha256, content, first_seen_at, owner)
VALUES (:name, :version, :sha256, :content, :first_seen_at, :owner) ON CONFLICT DO NOTHING

-- name: newest_of_owner
SELECT name, content, version FROM preset_version
WHERE owner = :owner AND owner IS NOT NULL ORDER BY name, version

-- name: drop_character
DELETE FROM preset_version WHERE name = :name AND owner IS NOT NULL

-- name: drop_old_versions
DELETE FROM preset_version WHERE name = :name AND owner IS NOT NULL AND version <= :newest - 5

-- name: drafts
SELECT name, base_version, revision, content, updated_at FROM preset_draft ORDER BY name

-- name: draft
SELECT name, base_version, revision, content, updated_at, source_name, source
FROM preset_draft WHERE name = :name

-- name: add_draft
INSERT INTO preset_draft (
    name, base_version, revision, content, updated_at, source_name, source
)
VALUES (:name, :base_version, :revision, :content, :updated_at, :source_name, :source)
ON CONFLICT DO NOTHING RETURNING name

-- name: update_draft
UPDATE preset_draft SET base_version = :base_version, revision = :revision, content = :content,
    updated_at = :updated_at, source_name = :source_name, source = :source
WHERE name = :name AND revision = :revision - 1 RETURNING name

-- name: delete_draft
DELETE FROM preset_draft WHERE name = :name RETURNING name

-- === provider keys ===

-- name: add_key
INSERT INTO provider_key (provider, token, added_at) VALUES (:provider, :token, :added_at)

-- name: keys
SELECT id, provider, token, added_at FROM provider_key ORDER BY id

-- name: replace_key
UPDATE provider_key SET token = :token WHERE id = :row

-- name: remove_key
DELETE FROM provider_key WHERE id = :row RETURNING id

-- === tokens ===

-- name: find_token
SELECT name, scopes, created_at, channels FROM console_token
WHERE sha256 = :digest AND kind = :kind AND (expires_at IS NULL OR expires_at > :at)

-- name: use_token
DELETE FROM console_token
WHERE sha256 = :digest AND kind = :kind AND (expires_at IS NULL OR expires_at > :at)
RETURNING kind

-- name: delete_expired_tokens
DELETE FROM console_token WHERE expires_at <= :at

-- name: add_token
INSERT INTO console_token (sha256, kind, created_at, expires_at)
VALUES (:digest, :kind, :at, :expires_at)

-- name: end_sessions
DELETE FROM console_token WHERE kind <> 'api' RETURNING kind, expires_at

-- name: add_api_token
INSERT INTO console_token (sha256, kind, name, scopes, created_at, channels)
VALUES (:digest, 'api', :name, :scopes, :created_at, :channels)
ON CONFLICT (name) DO NOTHING RETURNING name

-- name: api_tokens
SELECT name, scopes, created_at, channels FROM console_token WHERE kind = 'api' ORDER BY name

-- name: revoke_token
DELETE FROM console_token WHERE name = :name RETURNING name

-- === usage ===

-- name: ensure_budget
INSERT INTO budget (key, spent) VALUES (:key, 0) ON CONFLICT DO NOTHING

-- name: locked_budgets
-- In a fixed order, to avoid deadlocks.
SELECT key, spent FROM budget WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys))
ORDER BY key FOR UPDATE

-- name: budgets
SELECT key, spent FROM budget WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys))

-- name: add_to_budgets
UPDATE budget SET spent = spent + :amount
WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys))

-- name: usage_sums
-- Rows without a turn are the usage of summaries.
coalesce(sum(CASE WHEN turn <> '' THEN 1 ELSE 0 END), 0), coalesce(sum(prompt_tokens), 0),
    coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cost), 0),
    coalesce(sum(CASE WHEN cost IS NULL AND turn <> '' THEN 1 ELSE 0 END), 0)

-- name: usage_of_person
SELECT {usage_sums}
FROM receipt WHERE at >= :since AND provider IS NOT NULL AND person = :person

-- name: usage_by_day
SELECT floor(at / 86400)::bigint, person, conversation, server, preset, provider, model,
    {usage_sums}
FROM receipt WHERE at >= :since AND provider IS NOT NULL AND at < :until
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7

-- name: usage_over_time
SELECT floor((at - :since) / :step)::bigint, {group}, {usage_sums}
FROM receipt WHERE at >= :since AND at < :until AND provider IS NOT NULL
GROUP BY 1, 2

-- name: first_words
-- Rounded to hundredths of a second, as they are displayed.
SELECT floor((at - :since) / :step)::bigint, round(first_word_seconds * 100) / 100, count(*)
FROM receipt WHERE at >= :since AND at < :until AND first_word_seconds IS NOT NULL
GROUP BY 1, 2

-- name: failures_over_time
SELECT floor((at - :since) / :step)::bigint, count(*) FROM message_note
WHERE at >= :since AND at < :until AND strpos(key, :kind) = 1
GROUP BY 1

-- === leases ===

-- name: take_role
INSERT INTO role_lease (role, owner, lease_until, held_since)
VALUES (:role, :owner, :now + :seconds, :now)
ON CONFLICT (role) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until,
    held_since = CASE
        WHEN role_lease.owner = excluded.owner AND role_lease.lease_until >= :now
        THEN role_lease.held_since
        ELSE :now
    END
WHERE role_lease.owner = excluded.owner OR role_lease.lease_until < :now
RETURNING role

-- name: release_role
UPDATE role_lease SET lease_until = 0 WHERE role = :role AND owner = :owner

-- name: held_roles
SELECT role FROM role_lease WHERE strpos(role, :prefix) = 1 AND lease_until >= :now

-- name: claim_first_bot
INSERT INTO first_bot (platform, account) VALUES (:platform, :account) ON CONFLICT DO NOTHING

-- name: first_bot
SELECT account FROM first_bot WHERE platform = :platform
