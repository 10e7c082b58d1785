"""What PostgreSQL reads among 1,000,000 turns and 100,000 open rows: no step scans a table.

The server counts the rows that a step reads, inside of its functions as well.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import pytest_asyncio
from sqlalchemy import Connection, update
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import MessageContent, OutboxRow, OutgoingPart
from bot.chat.session import Claim, ClaimedMessage, InboxMessage, Turn, TurnRange, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.codec import TextCodec
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.retention import delete_expired
from bot.storage.rows import encode_event
from bot.storage.sqlite import ConnectionPool, UnitOfWork
from bot.storage.statements import DialectName, Query, Rows, StartUnit
from bot.storage.tables import inbox
from tests.postgres import create_postgres_database
from tests.samples import ALICE, make_incoming
from tests.turn.whole_chat import use_whole_chat

pytestmark = [
    pytest.mark.service,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

T = TypeVar("T")
CONVERSATION = "telegram:c77"
_READ_PER_MESSAGE = 40
"""More rows than a step reads that is about one message."""
_EXPIRED = 700
_SMALL = {"node", "pause", "role_lease"}
"""Tables with a row for each process, pause and job of the last weeks: they have no index."""

_FILL = f"""
SET LOCAL synchronous_commit = off;
INSERT INTO turn (conversation, session, role, speaker_id, text, at)
    SELECT 'telegram:c' || n % 100000, 1, 'user', 'telegram:c' || n % 100000, 'hello', n
    FROM generate_series(1, 1000000) n;
INSERT INTO inbox (platform, external_key, conversation, payload, received_at, state)
    SELECT 'telegram', 'c' || n % 100000 || ':' || n, 'telegram:c' || n % 100000, '{{}}',
        CASE WHEN n <= {_EXPIRED} THEN 0 ELSE extract(epoch FROM now()) END,
        CASE WHEN n <= 100000 THEN 'done' ELSE 'new' END FROM generate_series(1, 200000) n;
INSERT INTO conversation (key, platform, ready_since)
    SELECT 'telegram:c' || n, 'telegram', n FROM generate_series(0, 99999) n;
INSERT INTO outbox (turn, part, op, platform, chat, lane, text, state, external_id, started_at)
    SELECT 'telegram:c' || n % 100000 || ':' || n, 0, 'send', 'telegram', 'c' || n % 100000,
        'telegram:c' || n % 100000, 'hi', CASE WHEN n <= 100000 THEN 'sent' ELSE 'pending' END,
        n, CASE WHEN n <= {_EXPIRED} THEN 0 ELSE extract(epoch FROM now()) END
    FROM generate_series(1, 200000) n;
INSERT INTO lane (key, platform, due_at)
    SELECT 'telegram:c' || n, 'telegram', n FROM generate_series(0, 99999) n;
INSERT INTO cursor (name, value)
    SELECT 'discord:' || n, '1' FROM generate_series(1, 2000) n;
INSERT INTO receipt (conversation, turn, at, content)
    SELECT 'telegram:c' || n, 't', CASE WHEN n <= {_EXPIRED} THEN 0 ELSE extract(epoch FROM now())
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
    SELECT 'why:telegram:c' || n, CASE WHEN n <= {_EXPIRED} THEN 0 ELSE extract(epoch FROM now())
        END, '{{}}', 'telegram:c' || n FROM generate_series(1, 10000) n;
INSERT INTO budget (key, spent)
    SELECT '2999-01 person:telegram:' || n, 1 FROM generate_series(1, 10000) n;
INSERT INTO choice (scope, key, value, chosen_by, chosen_at, conversation)
    SELECT 'telegram:c' || n || '@telegram:c' || n, 'persona', 'tall', 'telegram:1', n,
        'telegram:c' || n
    FROM generate_series(1, 100000) n;
ANALYZE
"""  # noqa: S608
_COUNTS = """
SELECT relname, seq_scan, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
FROM pg_stat_xact_user_tables
"""


class OneConnection(ConnectionPool):
    """Runs everything in one transaction of one connection."""

    dialect: DialectName = "postgresql"

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._free = asyncio.Lock()

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self.read(lambda connection: _run(connection, start))

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        async with self._free:
            return await self._connection.run_sync(unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await self.read(unit)

    @override
    async def close(self) -> None:
        """The test closes it."""


class Process:
    """The repositories of a process; each step notes which tables it scanned, what it read."""

    def __init__(self, connection: AsyncConnection) -> None:
        database = Database(OneConnection(connection))
        clock, sender = SystemClock(), SenderIdentity("me", 0)
        self.database = database
        self.inbox = SqlInbox(database, clock)
        self.conversations = Conversations(database, clock, sender)
        self.outbox = SqlOutbox(database, clock, sender)
        self.scanned: dict[str, list[str]] = {}
        self.rows_read: dict[str, int] = {}

    async def step(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        before = await self.database.read(_counts)
        value = await work()
        after = await self.database.read(_counts)
        none = (0, 0)
        self.scanned[name] = [
            table for table, (scans, _) in after.items() if scans > before.get(table, none)[0]
        ]
        self.rows_read[name] = sum(
            rows - before.get(table, none)[1] for table, (_, rows) in after.items()
        )
        return value


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def full_url(postgres_folder: str) -> AsyncIterator[str]:
    url = await create_postgres_database(postgres_folder)
    async with _transaction(url) as connection:
        await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        for statement in _FILL.split(";"):
            await connection.exec_driver_sql(statement)
        readable = update(inbox).where(inbox.c.conversation == CONVERSATION)
        await connection.execute(readable.values(payload=encode_event(make_incoming(chat="c77"))))
        await connection.commit()
    yield url


@pytest_asyncio.fixture(loop_scope="module")
async def process(full_url: str) -> AsyncIterator[Process]:
    async with _transaction(full_url) as connection:
        yield Process(connection)


async def test_no_step_of_a_message_scans_a_table(process: Process) -> None:
    messages = [make_incoming(chat="new", key=f"new:{number}") for number in (1, 2)]
    await process.step("receive", lambda: process.inbox.receive(messages, {"discord:1": "2"}))
    claim, message = await _begin(process, "telegram:new")
    opened = await process.step(
        "open",
        lambda: process.conversations.open(claim, message, OutgoingPart(0, MessageContent("…"))),
    )
    await _mark_sent(process, opened.row)
    said = [Turn("user", "a", ALICE, message.incoming.at)] * 2
    result = TurnResult(
        said, [OutgoingPart(0, MessageContent("Hi.")), OutgoingPart(1, MessageContent("There."))]
    )
    finished = await process.step(
        "finish", lambda: process.conversations.finish(claim, message, result)
    )
    await _mark_sent(process, finished.row)
    following = finished.next_message
    assert following is not None
    again = TurnResult(said, supersedes=TurnRange(0, 1))
    await process.step(
        "finish again", lambda: process.conversations.finish(claim, following, again)
    )
    _assert_nothing_is_scanned(process)


async def test_no_poll_of_a_full_queue_scans_a_table(process: Process) -> None:
    ready = await process.step("ready", lambda: process.conversations.ready(9, ["telegram"]))
    assert len(ready) == 9
    due = await process.step("due", lambda: process.outbox.due_lanes(9, ["telegram"]))
    assert len(due) == 9
    asked = [CONVERSATION, *(f"discord:{number}" for number in range(5000))]
    waiting = await process.step("waiting", lambda: process.inbox.waiting(asked, 500, 20))
    assert len(waiting) == 1
    claim, _ = await _begin(process, CONVERSATION)
    assert not await process.step("renew", lambda: process.conversations.renew([claim], 15))
    [row] = await process.step("take", lambda: process.outbox.take([CONVERSATION]))
    await process.step("has later", lambda: process.outbox.has_later(row))
    await process.step("later", lambda: process.outbox.reschedule(row, 0))
    await process.step("probe", lambda: process.outbox.sent_ids([row.id]))
    await process.step("known ids", lambda: process.outbox.known_ids(Address("telegram", "c77")))
    await process.step("load", lambda: process.conversations.load_session(claim, 20))
    await process.step("release", lambda: process.conversations.release(claim))
    _assert_nothing_is_scanned(process)


async def test_forget_scans_no_table_of_messages(process: Process) -> None:
    claim, _ = await _begin(process, CONVERSATION)
    assert await process.step("forget", lambda: process.conversations.forget(claim)) == 10
    await process.step("release", lambda: process.conversations.release(claim))
    _assert_nothing_is_scanned(process)


async def test_nothing_that_is_done_to_a_chat_scans_a_table(process: Process) -> None:
    await process.step("whole chat", lambda: use_whole_chat(process.database))
    assert set(process.scanned["whole chat"]) <= _SMALL


async def test_retention_reads_little_more_than_it_deletes(process: Process) -> None:
    clock = SystemClock()
    deleted = await process.step("retention", lambda: delete_expired(process.database, clock, 14))
    assert deleted == 4 * _EXPIRED
    assert set(process.scanned["retention"]) <= _SMALL
    assert process.rows_read["retention"] < 20 * _EXPIRED


async def _begin(process: Process, key: str) -> tuple[Claim, InboxMessage]:
    async def begin() -> list[ClaimedMessage]:
        return list(await process.conversations.begin([key], "me", 60))

    [begun] = await process.step("begin", begin)
    return begun.claim, begun.message


async def _mark_sent(process: Process, row: OutboxRow | None) -> None:
    assert row is not None
    await process.step("sent", lambda: process.outbox.mark_sent(row, str(row.id)))


def _assert_nothing_is_scanned(process: Process) -> None:
    print(process.rows_read)  # noqa: T201
    assert {name: tables for name, tables in process.scanned.items() if tables} == {}
    assert {name for name, rows in process.rows_read.items() if rows > _READ_PER_MESSAGE} == set()


def _counts(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return the scans of each table in this transaction, and the rows that were read from it."""
    rows = connection.exec_driver_sql(_COUNTS).all()
    return {table: (scans, read) for table, scans, read in rows}


def _run(connection: Connection, start: StartUnit[T]) -> T:
    unit, rows = start(), None
    while True:
        try:
            query = unit.send(rows) if rows is not None else next(unit)
        except StopIteration as ended:
            value: T = ended.value
            return value
        rows = _rows_of(connection, query)


def _rows_of(connection: Connection, query: Query) -> Rows:
    sql = query.statement.compiled("postgresql")
    found: Rows = ()
    for values in query.many or (query.values,):
        result = connection.exec_driver_sql(sql.text, tuple(sql.arguments(values, TextCodec())))
        found = result.fetchall() if result.returns_rows else ()
    return found


@asynccontextmanager
async def _transaction(url: str) -> AsyncIterator[AsyncConnection]:
    """Open a connection whose changes are rolled back, unless the block commits them."""
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()
