-- The units of work of a message as PostgreSQL functions: one round trip and one transaction each.
--
-- Each does what the unit of the same name does step by step on SQLite. {claim} inserts the statement
-- `claim` of statements.sql, with :name replaced by the variable _name; {claim of=_key} sets another
-- expression, and {append_turn _one} takes the values from the columns of a record.
--
-- Waiting for the disk is the largest cost of a commit. If losing a unit in a crash of the server does
-- no harm, its commit does not wait: a lost claim is fenced, and a row that may have been sent is
-- searched for.

-- name: message_columns
_id bigint, _payload bytea, _crashes int, _own_crashes int, _kind text,
    _received_at double precision, _is_followed boolean

-- name: message_variables
_id, _payload, _crashes, _own_crashes, _kind, _received_at, _is_followed

-- name: head_columns
_head_id bigint, _head_turn text, _head_part int, _head_op text, _head_platform text,
    _head_bot_id text, _head_chat text, _head_thread text, _head_text text, _head_reply_to text,
    _head_interaction text, _head_state text, _head_attempts int, _head_not_before double precision,
    _head_file_name text, _head_file_text text, _head_face text, _head_buttons text,
    _head_started_at double precision, _head_external_id text

-- name: head_variables
_head_id, _head_turn, _head_part, _head_op, _head_platform, _head_bot_id, _head_chat, _head_thread,
    _head_text, _head_reply_to, _head_interaction, _head_state, _head_attempts, _head_not_before,
    _head_file_name, _head_file_text, _head_face, _head_buttons, _head_started_at, _head_external_id

-- name: begin_head
CREATE OR REPLACE FUNCTION troupe_begin_head(
    _of text, _sender text, _settle double precision, _leased double precision
) RETURNS TABLE ({head_columns})
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    _at double precision := _leased - 20;
    _moment double precision;
BEGIN
{head} INTO {head_variables};
IF NOT FOUND THEN
    {empty_lane};
    RETURN;
END IF;
_moment := _head_not_before;
IF _head_state = 'sending' THEN -- its sender died
    _head_state := 'unknown';
    _moment := greatest(_moment, coalesce(_head_started_at, 0) + _settle);
    {lose_row row=_head_id};
END IF;
IF _moment > _at THEN
    {postpone_lane};
    RETURN;
END IF;
IF _head_state = 'pending' THEN
    {begin_row row=_head_id begun='sending' started=_at};
ELSE
    {begin_row row=_head_id begun=_head_state started=_head_started_at};
END IF;
RETURN NEXT;
END
$function$

-- name: take_head
SELECT * INTO {head_variables} FROM troupe_begin_head(_lane, _sender, _settle, _leased)

-- name: receive
CREATE OR REPLACE FUNCTION troupe_receive(
    _platforms text[], _bot_ids text[], _external_keys text[], _conversations text[],
    _kinds text[], _payloads bytea[], _received_at double precision,
    _keys text[], _key_platforms text[], _key_bot_ids text[], _names text[], _places text[]
) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
FOR _at IN 1 .. cardinality(_external_keys) LOOP
    {store_message platform=_platforms[_at] bot_id=_bot_ids[_at] external_key=_external_keys[_at]
        conversation=_conversations[_at] kind=_kinds[_at] payload=_payloads[_at]};
END LOOP;
FOR _at IN 1 .. cardinality(_keys) LOOP
    {make_ready key=_keys[_at] platform=_key_platforms[_at] bot_id=_key_bot_ids[_at]};
END LOOP;
FOR _at IN 1 .. cardinality(_names) LOOP
    {advance_cursor name=_names[_at] reached=_places[_at]};
END LOOP;
END
$function$

-- name: begin
CREATE OR REPLACE FUNCTION troupe_begin(
    _keys text[], _claimed_by text, _seconds double precision
) RETURNS TABLE (_of text, _epoch bigint, {message_columns})
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
PERFORM set_config('synchronous_commit', 'off', true);
FOREACH _of IN ARRAY _keys LOOP
    {claim} INTO _epoch;
    CONTINUE WHEN NOT FOUND;
    {begin_next_message} INTO {message_variables};
    IF FOUND THEN
        RETURN NEXT;
    ELSE
        {settle at_epoch=_epoch};
    END IF;
END LOOP;
END
$function$

-- name: open
CREATE OR REPLACE FUNCTION troupe_open(
    _of text, _at_epoch bigint, _claimed_by text, _turn text, _part int, _op text, _platform text,
    _bot_id text, _chat text, _thread text, _lane text, _text text, _reply_to text,
    _interaction text, _file_name text, _file_text text, _face text, _buttons text,
    _sender text, _settle double precision
) RETURNS TABLE (_held boolean, _number bigint, {head_columns})
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    _session int;
    _leased double precision;
BEGIN
{lock_conversation} INTO _session;
_held := FOUND;
IF _held THEN
    {queue_once} INTO _number;
    IF _sender IS NULL THEN
        {make_due key=_lane};
    ELSE
        {make_due_and_take key=_lane} INTO _leased;
        IF FOUND THEN
            {take_head};
        END IF;
    END IF;
END IF;
RETURN NEXT;
END
$function$

-- name: finish
CREATE OR REPLACE FUNCTION troupe_finish(
    _of text, _at_epoch bigint, _claimed_by text, _messages bigint[], _new_session boolean,
    _begin_next boolean, _removed_count int, _removed_newer int, _superseded_count int,
    _superseded_newer int, _turns json, _receipts bytea[], _usages json, _at double precision,
    _changes json, _parts int[], _may_be_opened boolean, _turn text, _platform text, _bot_id text,
    _chat text, _thread text, _lane text, _reply_to text, _sender text, _settle double precision
) RETURNS TABLE (_held boolean, {message_columns}, {head_columns})
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    _session int;
    _message bigint;
    _opened int[] := '{}';
    _one record;
    _leased double precision;
BEGIN
IF _new_session THEN
    {begin_session} INTO _session;
ELSE
    {lock_conversation} INTO _session;
END IF;
_held := FOUND;
IF NOT _held THEN
    RETURN NEXT;
    RETURN;
END IF;
FOREACH _message IN ARRAY _messages LOOP
    {end_message};
END LOOP;
IF _removed_count > 0 THEN
    {remove_failed of_session=_session count=_removed_count newer=_removed_newer};
    {remove_turns of_session=_session count=_removed_count newer=_removed_newer};
END IF;
IF _superseded_count > 0 THEN
    {supersede_turns of_session=_session count=_superseded_count newer=_superseded_newer};
END IF;
IF _removed_count + _superseded_count > 0 THEN
    {mark_stale_memories rows='[]'};
    {note_memories_gone moment=_at};
    {empty_receipts_of_memories content=''};
    {delete_uses_of_gone};
    {delete_gone_memories};
END IF;
FOR _one IN
    SELECT * FROM json_to_recordset(_turns) AS one(
        role text, speaker_id text, speaker_name text, text text, at double precision, preset text,
        preset_version int, message_id text, sent_as text, observed boolean, active boolean,
        files text
    )
LOOP
    {append_turn _one conversation=_of session=_session};
END LOOP;
FOR _one IN
    SELECT * FROM ROWS FROM (
        unnest(_receipts),
        json_to_recordset(_usages) AS (
            person text, server text, preset text, provider text, model text,
            prompt_tokens bigint, cached_tokens bigint, output_tokens bigint, cost bigint,
            memories text, first_word_seconds double precision, seconds double precision
        )
    ) AS one(content)
LOOP
    {add_receipt _one conversation=_of turn=_turn at=_at};
    IF _one.memories IS NOT NULL THEN
        {note_memory_uses _one conversation=_of};
        {empty_receipt_of_deleted _one conversation=_of};
        {note_deleted_memory conversation=_of};
    END IF;
END LOOP;
IF _may_be_opened THEN
    _opened := ARRAY({opened_parts of_turn=_turn});
END IF;
IF cardinality(_parts) + cardinality(_opened) > 0 THEN
    IF _sender IS NULL THEN
        {make_due key=_lane};
    ELSE
        {make_due_and_take key=_lane} INTO _leased;
    END IF;
    FOR _one IN
        SELECT * FROM json_to_recordset(_changes) AS change(
            part int, op text, text text, interaction text, file_name text, file_text text,
            face text, buttons text, opened boolean
        )
        UNION ALL
        SELECT part, 'delete', '', NULL, NULL, NULL, NULL, NULL, NULL
        FROM unnest(_opened) AS part WHERE part <> ALL (_parts)
    LOOP
        CONTINUE WHEN _one.opened <> (_one.part = ANY (_opened));
        {queue_row _one turn=_turn platform=_platform bot_id=_bot_id chat=_chat thread=_thread
            lane=_lane reply_to=_reply_to};
    END LOOP;
    IF _leased IS NOT NULL THEN
        {take_head};
    END IF;
END IF;
IF NOT _begin_next THEN
    {release_claim} INTO _session;
ELSE
    {begin_next_message} INTO {message_variables};
    IF NOT FOUND THEN
        {settle};
    END IF;
END IF;
RETURN NEXT;
END
$function$

-- name: sent
CREATE OR REPLACE FUNCTION troupe_sent(
    _row bigint, _attempt int, _arrived_as text, _lane text, _sender text, _settle double precision
) RETURNS TABLE (_held boolean, {head_columns})
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    _leased double precision;
BEGIN
PERFORM 1 FROM ({lock_lane of=_lane}) AS locked;
{end_sent_row} INTO _lane;
_held := FOUND;
IF _held THEN
    {empty_lane of=_lane}; -- rows queued from now on wait for this unit
    IF EXISTS ({unsent_row of=_lane}) THEN
        {hold_lane of=_lane} INTO _leased;
        {take_head};
    ELSE
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END IF;
RETURN NEXT;
END
$function$

-- name: take
CREATE OR REPLACE FUNCTION troupe_take(
    _lanes text[], _sender text, _settle double precision
) RETURNS TABLE ({head_columns})
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    _lane text;
    _leased double precision;
BEGIN
FOREACH _lane IN ARRAY _lanes LOOP
    {take_lane of=_lane} INTO _leased;
    IF FOUND THEN
        RETURN QUERY SELECT * FROM troupe_begin_head(_lane, _sender, _settle, _leased);
    END IF;
END LOOP;
END
$function$
