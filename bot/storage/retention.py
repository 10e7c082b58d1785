"""Delete expired rows: messages, outbox rows, receipts, usage, leases and, if configured, turns."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from bot.chat.incoming import parse_address, source_name
from bot.ports import Clock
from bot.storage import memories
from bot.storage.database import Database
from bot.storage.statements import SQL, Rows, Statement, Unit

_DAY_SECONDS = 86_400.0
INBOX_RETENTION_SECONDS = 14 * _DAY_SECONDS
"""How long events are kept: longer than platforms redeliver them, to recognize repeated ones."""
OUTBOX_RETENTION_SECONDS = 7 * _DAY_SECONDS
USAGE_RETENTION_SECONDS = 400 * _DAY_SECONDS
"""How long usage is kept: a year and the current month."""
_NODE_RETENTION_SECONDS = 7 * _DAY_SECONDS
"""How long operators can see a dead process."""
FORGOTTEN_RETENTION_SECONDS = 30 * _DAY_SECONDS
"""How long a process may be offline without missing deletions by other processes."""
_ROWS_PER_PAGE = 500
"""Rows per transaction: few, so that workers do not wait long for it."""

_FINAL_STATE_CONDITION = "state IN ('sent', 'dead')"


async def delete_expired(database: Database, clock: Clock, receipt_days: float) -> int:
    """Delete expired rows in all tables except turns; return their number."""
    now = await database.now(clock)
    receipt_seconds = receipt_days * _DAY_SECONDS
    deleted_count = 0
    for table, column, seconds, condition in (
        ("inbox", "received_at", INBOX_RETENTION_SECONDS, "state <> 'new'"),
        ("outbox", "started_at", OUTBOX_RETENTION_SECONDS, _FINAL_STATE_CONDITION),
        ("receipt", "at", USAGE_RETENTION_SECONDS, "true"),
        ("forgotten", "at", FORGOTTEN_RETENTION_SECONDS, "true"),
        ("audit", "at", USAGE_RETENTION_SECONDS, "true"),
        ("message_note", "at", min(INBOX_RETENTION_SECONDS, receipt_seconds), "true"),
    ):
        deleted_count += await _delete_old_rows(database, table, column, now - seconds, condition)
    deleted_count += await _empty_receipts(database, now - receipt_seconds)
    oldest_day = datetime.fromtimestamp(now - USAGE_RETENTION_SECONDS, UTC).date().isoformat()
    for name in ("delete_old_budgets", "delete_dead_nodes", "delete_dead_leases"):
        values = {"oldest": oldest_day, "dead_since": now - _NODE_RETENTION_SECONDS}
        deleted_count += len(await database.execute(SQL[name], **values))
    return deleted_count


async def _empty_receipts(database: Database, until: float) -> int:
    """Delete the content of old receipts, page by page, but keep their token usage and cost."""
    emptied_count, since = 0, 0.0
    while True:
        [[page_end]] = await database.fetch(SQL["end_of_receipt_page"], since=since, until=until)
        if page_end is None:
            return emptied_count
        page = {"since": since, "until": page_end}
        await database.execute(SQL["delete_old_feedback"], **page)
        await database.execute(SQL["delete_old_memory_uses"], **page)
        emptied_count += len(await database.execute(SQL["empty_receipt_page"], **page, content=b""))
        since = page_end


async def _delete_old_rows(
    database: Database, table: str, time_column: str, moment: float, condition: str
) -> int:
    """Delete old rows that meet a condition, page by page, up to the first recent row."""
    page_query = Statement(f"""
        SELECT id, {time_column}, {time_column} < :moment AND {condition} FROM {table}
        WHERE id > :last ORDER BY id LIMIT {_ROWS_PER_PAGE}
    """)
    deletion = Statement(f"DELETE FROM {table} WHERE {SQL['is_listed'].text}")
    deleted_count = last_id = 0
    while True:
        rows = await database.fetch(page_query, last=last_id, moment=moment)
        ids = [id_ for id_, _, is_expired in rows if is_expired]
        if ids:
            deleted_count += await database.run(lambda ids=ids: _delete_rows(table, deletion, ids))  # type: ignore[misc]
        if not rows or any(at is not None and at >= moment for _, at, _ in rows):
            return deleted_count
        last_id = rows[-1][0]


def _delete_rows(table: str, deletion: Statement, ids: Sequence[int]) -> Unit[int]:
    if table == "outbox":
        ids = yield from _select_rows_of_finished_turns(ids)
        yield SQL["keep_message_ids"].query(_id_values(ids))
    yield deletion.query(_id_values(ids))
    return len(ids)


def _id_values(ids: Iterable[int]) -> dict[str, object]:
    id_list = list(ids)
    bounds = {"first": min(id_list, default=0), "last": max(id_list, default=0)}
    return {"ids": json.dumps(id_list), **bounds}


def _select_rows_of_finished_turns(ids: Sequence[int]) -> Unit[list[int]]:
    """Return the outbox rows whose turns are complete, so that no edit will need the rows."""
    rows = yield SQL["turns_of_rows"].query(_id_values(ids))
    turns = {row[1] for row in rows}
    unsent_rows = yield SQL["unsent_turns"].query(turns=json.dumps(list(turns)))
    incomplete_turns = {row[0] for row in unsent_rows}
    for platform, bot_id in {(row[2], row[3]) for row in rows}:
        source = f"{source_name(platform, bot_id)}:"  # as in `InboxMessage.turn_name`
        keys = json.dumps([one.removeprefix(source) for one in turns if one.startswith(source)])
        values = {"platform": platform, "bot_id": bot_id, "keys": keys}
        incomplete_turns.update(
            f"{source}{row[0]}" for row in (yield SQL["unanswered_keys"].query(values))
        )
    return [row[0] for row in rows if row[1] not in incomplete_turns]


def retention_start(clock: Clock, days: float | None) -> float:
    """Return the time from which messages are kept: 00:00 UTC `days` days ago, or -inf for None."""
    return -math.inf if days is None else _start_of_day(clock.now(), days)


def _start_of_day(now: float, days_before: float) -> float:
    return (now - days_before * _DAY_SECONDS) // _DAY_SECONDS * _DAY_SECONDS


async def delete_expired_turns(database: Database, clock: Clock, days: float) -> int:
    """Delete turns that are more than `days` days older than today (UTC); return their number.

    Summaries that cover deleted turns are deleted, so histories are trimmed only once a day.
    Conversations that are being answered are skipped until the next time.
    """
    now = await database.now(clock)
    moment = _start_of_day(now, days)
    deleted_count = last_id = 0
    while True:
        rows = await database.fetch(SQL["page_of_turns"], last=last_id)
        for key, expired_rows in _group_expired_rows(rows, moment).items():
            deleted_count += await database.run(
                lambda key=key, old=expired_rows: _delete_conversation_turns(key, old, now)  # type: ignore[misc]
            )
        # Ids grow with time, so all rows after a recent row are recent.
        if not rows or rows[-1][3] >= moment:
            return deleted_count
        last_id = rows[-1][0]


def _group_expired_rows(rows: Rows, moment: float) -> Mapping[str, Rows]:
    rows_by_conversation: dict[str, list[Sequence[object]]] = {}
    for row in rows:
        if row[3] < moment:
            rows_by_conversation.setdefault(row[1], []).append(row)
    return rows_by_conversation


def _delete_conversation_turns(key: str, expired_rows: Rows, now: float) -> Unit[int]:
    key_values = {"of": key}
    if not (yield SQL["skip_epoch"].query(key_values)) and (
        yield SQL["conversation_exists"].query(key_values)
    ):
        return 0
    sessions_json = json.dumps(sorted({row[2] for row in expired_rows}))
    yield SQL["delete_summaries_of_sessions"].query({**key_values, "sessions": sessions_json})
    part_names = [name for row in expired_rows for name in (row[4] or "").split("\n") if name]
    turn_names = json.dumps(sorted({part.rpartition("/")[0] for part in part_names}))
    yield SQL["delete_sent_messages"].query(channel=parse_address(key).channel, names=turn_names)
    yield SQL["delete_turns"].query(_id_values(row[0] for row in expired_rows))
    yield from memories.delete_stale_memories(key, (), now)
    return len(expired_rows)
