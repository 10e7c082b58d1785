"""Test units of work in the writer thread: committed together, rolled back separately."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typing_extensions import override

from bot.storage.sqlite import SqliteThreads, SqliteWriter
from bot.storage.statements import Statement, Unit

ADD = Statement("INSERT INTO note (text) VALUES (:words) RETURNING id")
ADD_MANY = Statement("INSERT INTO note (text, id) VALUES (:words, :number)")
ALL = Statement("SELECT text FROM note ORDER BY id")
MARK = Statement("UPDATE note SET text = 'done' WHERE id = :number")


class Connections:
    """Opens connections to one file, and counts the commits on them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.commits = 0

    def open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        connection.execute("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, text TEXT)")
        connection.set_trace_callback(self._count)
        return connection

    def _count(self, statement: str) -> None:
        self.commits += statement == "COMMIT"


@pytest.fixture
def connections(tmp_path: Path) -> Connections:
    return Connections(tmp_path / "notes.db")


@pytest.fixture
async def writer(connections: Connections) -> AsyncIterator[SqliteWriter]:
    writer = SqliteWriter(connections.open)
    yield writer
    await writer.close()


def add(words: str) -> Unit[int]:
    rows = yield ADD.query({"words": words})
    return int(rows[0][0])


def read() -> Unit[list[str]]:
    rows = yield ALL.query()
    return [row[0] for row in rows]


def add_then_fail() -> Unit[None]:
    yield ADD.query({"words": "undone"})
    raise ValueError("no")


async def test_run_returns_the_value_of_the_unit(writer: SqliteWriter) -> None:
    assert await writer.run(lambda: add("one")) == 1
    assert await writer.run(read) == ["one"]


async def test_statement_runs_once_for_each_row(writer: SqliteWriter) -> None:
    def unit() -> Unit[None]:
        yield ADD_MANY.query_many([{"number": 1, "words": "a"}, {"number": 2, "words": "b"}])
        yield MARK.query({"number": 2})

    await writer.run(unit)
    assert await writer.run(read) == ["a", "done"]


async def test_concurrent_units_share_a_commit(
    writer: SqliteWriter, connections: Connections
) -> None:
    await writer.run(read)  # the thread is up
    before = connections.commits
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(writer.run(lambda number=number: add(str(number))))  # type: ignore[misc]
    assert connections.commits - before < 25
    assert len(await writer.run(read)) == 50


async def test_writer_waits_for_more_units_after_a_shared_commit(
    writer: SqliteWriter, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, goes_on, may_commit = threading.Event(), threading.Event(), threading.Event()

    def wait(_: float) -> None:
        waits.set()
        goes_on.wait()

    monkeypatch.setattr("bot.storage.sqlite._SECONDS_BETWEEN_COMMITS", 60.0)
    monkeypatch.setattr("bot.storage.sqlite.time.sleep", wait)
    one_by_one = [await writer.run(read) for _ in range(3)]
    assert one_by_one == [[]] * 3
    assert not waits.is_set()
    async with asyncio.TaskGroup() as group:
        writer.submit(lambda _: may_commit.wait())
        group.create_task(writer.run(lambda: add("together")))
        group.create_task(writer.run(lambda: add("together")))
        await asyncio.sleep(0)
        may_commit.set()
    before = connections.commits
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.run(lambda: add("first")))
        await asyncio.to_thread(waits.wait)
        group.create_task(writer.run(lambda: add("second")))
        await asyncio.sleep(0)
        goes_on.set()
    assert connections.commits == before + 1
    await writer.close()  # while its waits are cut short


async def test_failing_unit_rolls_back_only_its_own_changes(writer: SqliteWriter) -> None:
    async with asyncio.TaskGroup() as group:
        good = [group.create_task(writer.run(lambda: add("kept"))) for _ in range(3)]
        bad = group.create_task(expect_value_error(writer))
        good += [group.create_task(writer.run(lambda: add("kept"))) for _ in range(3)]
    assert bad.done()
    assert all(task.done() for task in good)
    assert await writer.run(read) == ["kept"] * 6


async def expect_value_error(writer: SqliteWriter) -> None:
    with pytest.raises(ValueError, match="no"):
        await writer.run(add_then_fail)


async def test_cancelled_caller_does_not_affect_other_callers(writer: SqliteWriter) -> None:
    cancelled = asyncio.create_task(writer.run(lambda: add("nobody waits")))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await writer.run(lambda: add("next")) in {1, 2}
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_caller_gets_the_error_of_a_database_that_cannot_be_opened(tmp_path: Path) -> None:
    writer = SqliteWriter(lambda: sqlite3.connect(tmp_path / "no" / "such" / "folder.db"))
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await writer.run(read)
    await writer.close()


async def test_closing_the_writer_finishes_units_in_progress(connections: Connections) -> None:
    writer = SqliteWriter(connections.open)
    adding = asyncio.create_task(writer.run(lambda: add("last")))
    await asyncio.sleep(0)
    await writer.close()
    assert await adding == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await writer.run(read)


async def test_event_loop_runs_other_callbacks_between_units_of_a_commit(
    writer: SqliteWriter,
) -> None:
    loop = asyncio.get_running_loop()
    may_go_on = threading.Event()
    passes: list[int] = [0]

    def next_pass() -> None:
        passes.append(0)
        ticking[0] = loop.call_soon(next_pass)

    async def run() -> None:
        await writer.run(read)
        passes[-1] += 1

    ticking = [loop.call_soon(next_pass)]
    async with asyncio.TaskGroup() as group:
        writer.submit(lambda _: may_go_on.wait(60))
        for _ in range(100):
            group.create_task(run())
        for _ in range(10):  # until all are queued behind the first
            await asyncio.sleep(0)
        may_go_on.set()
    ticking[0].cancel()
    assert sum(passes) == 100
    assert max(passes) <= 20


class SlowConnection(sqlite3.Connection):
    """A connection that takes time to close, and counts how many close at once."""

    closing = 0
    most_closing = 0

    @override
    def close(self) -> None:
        cls = type(self)
        cls.closing += 1
        cls.most_closing = max(cls.most_closing, cls.closing)
        time.sleep(0.01)
        super().close()
        cls.closing -= 1


async def test_reader_connections_are_closed_one_at_a_time(tmp_path: Path) -> None:
    """If they closed at the same time, SQLite would leave its log file behind."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "notes.db", factory=SlowConnection)

    readers = SqliteThreads(connect)
    all_connected = threading.Barrier(4)
    for _ in range(4):
        readers.submit(lambda _: all_connected.wait())
    await readers.close()
    assert SlowConnection.most_closing == 1
