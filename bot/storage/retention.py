"""Delete old rows: answered messages, sent outbox rows, the content of receipts, usage, leases.

And the turns of conversations that are older than an installation keeps histories.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from bot.chat.incoming import address_of, source_name
from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.operation import IS_JOB
from bot.storage.statements import Rows, Statement, Unit

_DAY = 86_400.0
INBOX_SECONDS = 14 * _DAY
"""As long as a platform may deliver a message again: the row is what recognizes a repetition."""
OUTBOX_SECONDS = 7 * _DAY
USAGE_SECONDS = 400 * _DAY
"""A year, and the current month."""
_NODE_SECONDS = 7 * _DAY
"""How long operators see that a process died."""
FORGOTTEN_SECONDS = 30 * _DAY
"""How long a process may be offline and still learn what it must delete."""
_ROWS_PER_PAGE = 500
"""Few enough that no worker waits long for the transaction that deletes them."""

_IS_FINAL = "state IN ('sent', 'dead')"
# The range keeps PostgreSQL from reading a whole table in order to look for the ids of one page.
_IDS = """
id BETWEEN :first AND :last AND id IN (SELECT value::bigint FROM jsonb_array_elements_text(:ids))
"""
# Turns are found by the messages that they were sent as (histories.py).
_KEEP_MESSAGE_IDS = Statement(f"""
INSERT INTO sent_message (conversation, external_id, turn, part)
SELECT lane || coalesce(':' || thread, ''), external_id, turn, part FROM outbox
WHERE {_IDS} AND op = 'send' AND external_id IS NOT NULL
ON CONFLICT DO NOTHING
""")
_TURNS = Statement(f"SELECT id, turn, platform, bot_id FROM outbox WHERE {_IDS}")
_UNSENT_TURNS = Statement(f"""
SELECT turn FROM outbox
WHERE turn IN (SELECT value FROM jsonb_array_elements_text(:turns)) AND NOT {_IS_FINAL}
""")
_UNANSWERED_KEYS = Statement("""
SELECT external_key FROM inbox
WHERE platform = :platform AND bot_id = :bot_id AND state = 'new'
    AND external_key IN (SELECT value FROM jsonb_array_elements_text(:keys))
""")
_KEPT_CONTENT = "FROM receipt WHERE at BETWEEN :since AND :until AND length(content) > 0"
_END_OF_PAGE = Statement(f"""
SELECT max(at) FROM (SELECT at {_KEPT_CONTENT} ORDER BY at LIMIT {_ROWS_PER_PAGE}) AS oldest
""")
_EMPTY_RECEIPTS = Statement(f"""
UPDATE receipt SET content = :content
WHERE id IN (SELECT id {_KEPT_CONTENT}) RETURNING id
""")
_DELETE_OTHERS = [
    Statement(text)
    for text in (
        "DELETE FROM budget WHERE key < :oldest RETURNING key",
        "DELETE FROM node WHERE seen_at < :dead_since RETURNING owner",
        # The names of jobs stay: that nobody has one is what an operator has to see.
        f"DELETE FROM role_lease WHERE NOT ({IS_JOB}) AND lease_until < :dead_since RETURNING role",
    )
]


async def delete_expired(database: Database, clock: Clock, receipt_days: float) -> int:
    """Delete old rows that nothing depends on any more; return their number."""
    now = await database.now(clock)
    receipt_seconds = receipt_days * _DAY
    deleted = 0
    for table, time, seconds, condition in (
        ("inbox", "received_at", INBOX_SECONDS, "state <> 'new'"),
        ("outbox", "started_at", OUTBOX_SECONDS, _IS_FINAL),
        ("receipt", "at", USAGE_SECONDS, "true"),
        ("forgotten", "at", FORGOTTEN_SECONDS, "true"),
        ("audit", "at", USAGE_SECONDS, "true"),
        ("message_note", "at", min(INBOX_SECONDS, receipt_seconds), "true"),
    ):
        deleted += await _delete_old(database, table, time, now - seconds, condition)
    deleted += await _empty_receipts(database, now - receipt_seconds)
    oldest = datetime.fromtimestamp(now - USAGE_SECONDS, UTC).date().isoformat()
    for statement in _DELETE_OTHERS:
        values = {"oldest": oldest, "dead_since": now - _NODE_SECONDS}
        deleted += len(await database.execute(statement, **values))
    return deleted


async def _empty_receipts(database: Database, until: float) -> int:
    """Delete the content of old receipts, page by page; their usage stays."""
    emptied, since = 0, 0.0
    while True:
        [[end]] = await database.fetch(_END_OF_PAGE, since=since, until=until)
        if end is None:
            return emptied
        emptied += len(await database.execute(_EMPTY_RECEIPTS, since=since, until=end, content=b""))
        since = end


async def _delete_old(
    database: Database, table: str, time: str, moment: float, condition: str
) -> int:
    """Read a table from its oldest row to the first one that is young, page by page.

    Ids grow with time, so only rows that are old are read: the table may be large.
    """
    page = Statement(f"""
        SELECT id, {time}, {time} < :moment AND {condition} FROM {table}
        WHERE id > :last ORDER BY id LIMIT {_ROWS_PER_PAGE}
    """)
    delete = Statement(f"DELETE FROM {table} WHERE {_IDS}")
    deleted = last = 0
    while True:
        rows = await database.fetch(page, last=last, moment=moment)
        ids = [id_ for id_, _, is_expired in rows if is_expired]
        if ids:
            deleted += await database.run(lambda ids=ids: _delete_rows(table, delete, ids))  # type: ignore[misc]
        if not rows or any(at is not None and at >= moment for _, at, _ in rows):
            return deleted
        last = rows[-1][0]


def _delete_rows(table: str, delete: Statement, ids: Sequence[int]) -> Unit[int]:
    if table == "outbox":
        ids = yield from _of_complete_turns(ids)
        yield _KEEP_MESSAGE_IDS.query(_listed(ids))
    yield delete.query(_listed(ids))
    return len(ids)


def _listed(ids: Iterable[int]) -> dict[str, object]:
    listed = list(ids)
    bounds = {"first": min(listed, default=0), "last": max(listed, default=0)}
    return {"ids": json.dumps(listed), **bounds}


def _of_complete_turns(ids: Sequence[int]) -> Unit[list[int]]:
    """Return the rows of complete turns: an edit that is still to come needs the message's id."""
    rows = yield _TURNS.query(_listed(ids))
    turns = {row[1] for row in rows}
    unsent = yield _UNSENT_TURNS.query({"turns": json.dumps(list(turns))})
    incomplete = {row[0] for row in unsent}
    for platform, bot_id in {(row[2], row[3]) for row in rows}:
        source = f"{source_name(platform, bot_id)}:"  # as `InboxMessage.turn` spells it
        keys = json.dumps([one.removeprefix(source) for one in turns if one.startswith(source)])
        asked = {"platform": platform, "bot_id": bot_id, "keys": keys}
        incomplete.update(f"{source}{row[0]}" for row in (yield _UNANSWERED_KEYS.query(asked)))
    return [row[0] for row in rows if row[1] not in incomplete]


_PAGE = Statement(f"""
SELECT id, conversation, session, at, sent_as FROM turn
WHERE id > :last ORDER BY id LIMIT {_ROWS_PER_PAGE}
""")
_EXISTS = Statement("SELECT key FROM conversation WHERE key = :of")
# What processes know of the history holds under the next epoch only: they read it again.
_SKIP_EPOCH = Statement("""
UPDATE conversation SET epoch = epoch + 1 WHERE key = :of AND ready_since IS NULL RETURNING key
""")
_DELETE_TURNS = Statement(f"DELETE FROM turn WHERE {_IDS}")
_DELETE_SUMMARIES = Statement("""
DELETE FROM summary WHERE conversation = :of
    AND session IN (SELECT value::bigint FROM jsonb_array_elements_text(:sessions))
""")
_DELETE_SENT = Statement("""
DELETE FROM sent_message WHERE conversation = :channel
    AND turn IN (SELECT value FROM jsonb_array_elements_text(:names))
""")


def kept_since(clock: Clock, days: float | None) -> float:
    """Return the time from which on messages are kept, in Unix seconds.

    That is 00:00 UTC some days ago; -inf where they are kept forever (None).
    """
    return -math.inf if days is None else _start_of_day(clock.now(), days)


def _start_of_day(now: float, days_before: float) -> float:
    return (now - days_before * _DAY) // _DAY * _DAY


async def delete_expired_turns(database: Database, clock: Clock, days: float) -> int:
    """Delete turns that are more than `days` days older than today (UTC); return their number.

    A summary that covers a deleted turn is deleted with it, so histories are cut once a day. Where
    a message is being answered, it is done the next time.

    Raises:
        StoreError: the database failed.
    """
    moment = _start_of_day(await database.now(clock), days)
    deleted = last = 0
    while True:
        rows = await database.fetch(_PAGE, last=last)
        for key, expired in _by_conversation(rows, moment).items():
            deleted += await database.run(
                lambda key=key, expired=expired: _delete_turns_of(key, expired)  # type: ignore[misc]
            )
        # Ids grow with time: what follows on a row that is young is younger.
        if not rows or rows[-1][3] >= moment:
            return deleted
        last = rows[-1][0]


def _by_conversation(rows: Rows, moment: float) -> Mapping[str, Rows]:
    found: dict[str, list[Sequence[object]]] = {}
    for row in rows:
        if row[3] < moment:
            found.setdefault(row[1], []).append(row)
    return found


def _delete_turns_of(key: str, expired: Rows) -> Unit[int]:
    of = {"of": key}
    if not (yield _SKIP_EPOCH.query(of)) and (yield _EXISTS.query(of)):
        return 0
    sessions = json.dumps(sorted({row[2] for row in expired}))
    yield _DELETE_SUMMARIES.query({**of, "sessions": sessions})
    parts = [name for row in expired for name in (row[4] or "").split("\n") if name]
    names = json.dumps(sorted({part.rpartition("/")[0] for part in parts}))
    yield _DELETE_SENT.query({"channel": address_of(key).channel, "names": names})
    yield _DELETE_TURNS.query(_listed(row[0] for row in expired))
    return len(expired)
