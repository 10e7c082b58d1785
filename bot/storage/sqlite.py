"""SQLite connections: one writer thread, and several reader threads.

A unit of work stays in one thread from its first statement to its commit. An asynchronous driver
would switch threads at each cursor call, about 75 times per message, which costs more than the SQL.

A commit costs an fsync, so twenty units in one transaction cost about as much as one. Waking the
event loop once for all is cheaper, too. So while several units arrive at once, more are collected
for a moment; a unit that arrives alone does not wait.
"""

import asyncio
import contextlib
import functools
import operator
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.pool import StaticPool
from typing_extensions import override

from bot.runtime.tasks import get_resume_limiter
from bot.storage.codec import TextCodec
from bot.storage.column_types import attach_codec
from bot.storage.data_dir import restrict_to_owner
from bot.storage.statements import DialectName, Query, Rows, StartUnit, decode_rows

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]
"""A function that runs in a thread; in the writer thread, inside an open transaction."""

_MAX_UNITS_IN_A_COMMIT = 200
_SECONDS_BETWEEN_COMMITS = 0.015
"""The pause after a commit of several units."""


_Job: TypeAlias = tuple[Work[Any], asyncio.Future[Any]]
_Outcome: TypeAlias = tuple[asyncio.Future[Any], Any, BaseException | None]
"""The future of a unit, and its result or error."""


class SqliteThreads:
    """Runs functions in several threads, each with its own connection, without transactions.

    `connect` opens a connection in its thread, with `isolation_level=None`.
    """

    _name = "sqlite reader"
    _thread_count = 4
    _max_batch_size = 1

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], codec: TextCodec | None = None
    ) -> None:
        self._connect = connect
        self._codec = codec or TextCodec()
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_closed = False
        self._close_lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run_jobs, name=self._name, daemon=True)
            for _ in range(self._thread_count)
        ]
        for one in self._threads:
            one.start()

    async def run(self, start_unit: StartUnit[T]) -> T:
        """Run a unit of work."""
        return await self.submit(lambda connection: run_unit(connection, start_unit, self._codec))

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        """Run a function on a connection."""
        if self._is_closed:
            raise sqlite3.ProgrammingError("the database is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((work, future))
        return future

    async def close(self) -> None:
        """Finish pending work, then close the connections."""
        self._is_closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for one in self._threads:
            await asyncio.to_thread(one.join)

    def _run_jobs(self) -> None:
        connection: sqlite3.Connection | None = None
        should_stop = False
        not_before = 0.0
        try:
            while not should_stop:
                batch, should_stop = self._take_batch(not_before)
                if not batch:
                    break
                try:
                    connection = connection or self._connect()
                    outcomes = self._run_batch(connection, batch)
                except sqlite3.Error as error:  # the database cannot be opened
                    outcomes = [(future, None, error) for _, future in batch]
                self._loop.call_soon_threadsafe(_deliver_outcomes, outcomes)
                has_several_jobs = len(batch) > 1
                not_before = (
                    time.monotonic() + _SECONDS_BETWEEN_COMMITS if has_several_jobs else 0.0
                )
        finally:
            # Two connections closed at once would each leave the write-ahead log to the other.
            with self._close_lock:
                if connection is not None:
                    connection.close()

    def _take_batch(self, not_before: float) -> tuple[list[_Job], bool]:
        """Return the jobs to run together, after `not_before`, and whether to stop after them."""
        batch: list[_Job] = []
        job = self._jobs.get()
        if (seconds := not_before - time.monotonic()) > 0:
            time.sleep(seconds)
        while job is not None:
            batch.append(job)
            if len(batch) == self._max_batch_size or self._jobs.empty():
                return batch, False
            job = self._jobs.get_nowait()
        return batch, True

    def _run_batch(self, connection: sqlite3.Connection, batch: Sequence[_Job]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        for work, future in batch:
            try:
                outcomes.append((future, work(connection), None))
            except Exception as error:  # noqa: BLE001 -- the error belongs to the caller
                outcomes.append((future, None, error))
        return outcomes


class SqliteWriter(SqliteThreads):
    """Runs units of work in transactions, in its own thread.

    If a unit raises, it writes nothing. If another unit in its transaction fails, it runs twice.
    """

    _name = "sqlite writer"
    _thread_count = 1
    _max_batch_size = _MAX_UNITS_IN_A_COMMIT

    @override
    def _run_batch(self, connection: sqlite3.Connection, batch: Sequence[_Job]) -> list[_Outcome]:
        return _commit_together(connection, batch)


def _commit_together(connection: sqlite3.Connection, batch: Sequence[_Job]) -> list[_Outcome]:
    """Commit all units in one transaction; if one fails, commit each unit separately."""
    try:
        values = _run_in_transaction(connection, [work for work, _ in batch])
    except Exception as error:  # noqa: BLE001 -- the error belongs to the unit's caller
        if len(batch) == 1:
            return [(batch[0][1], None, error)]
        return [outcome for job in batch for outcome in _commit_together(connection, [job])]
    return [(future, value, None) for (_, future), value in zip(batch, values, strict=True)]


def _run_in_transaction(connection: sqlite3.Connection, works: Sequence[Work[Any]]) -> list[Any]:
    # With a plain BEGIN, two processes that read and then write could lose an update or fail.
    connection.execute("BEGIN IMMEDIATE")
    try:
        values = [work(connection) for work in works]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return values


def run_unit(connection: sqlite3.Connection, start_unit: StartUnit[T], codec: TextCodec) -> T:
    """Run a unit of work inside the open transaction."""
    cursor = connection.cursor()
    unit = start_unit()
    try:
        query = next(unit)
        while True:
            query = unit.send(_execute_query(cursor, query, codec))
    except StopIteration as ended:
        value: T = ended.value
        return value
    finally:
        unit.close()


def _execute_query(cursor: sqlite3.Cursor, query: Query, codec: TextCodec) -> Rows:
    sql = query.statement.compile_for("sqlite")
    if len(query.value_rows) > 1:
        cursor.executemany(sql.text, [sql.arguments(values, codec) for values in query.value_rows])
        return ()
    values = query.value_rows[0] if query.value_rows else query.values
    cursor.execute(sql.text, sql.arguments(values, codec))
    if not cursor.description:
        return ()
    return decode_rows(cursor.fetchall(), tuple([one[0] for one in cursor.description]), codec)


def _deliver_outcomes(outcomes: Sequence[_Outcome]) -> None:
    limiter = get_resume_limiter()
    for outcome in outcomes:
        limiter.call_in_this_or_later_pass(functools.partial(_wake_caller, *outcome))


def _wake_caller(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():  # the caller was cancelled in the meantime
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


UnitOfWork = Callable[[Connection], T]

_USE_WRITE_AHEAD_LOG = "PRAGMA journal_mode=WAL"
_PRAGMAS = (
    "PRAGMA synchronous=FULL",  # so that acknowledged messages survive a power cut
    "PRAGMA busy_timeout=5000",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",  # overwrites deleted content
)
_MAX_WAL_ATTEMPTS = 100
_SECONDS_BETWEEN_ATTEMPTS = 0.05


class ConnectionPool(Protocol):
    """Runs units of work on connections; raises the driver's errors unchanged."""

    dialect: DialectName

    async def run(self, start_unit: StartUnit[T]) -> T:
        """Run a unit of work directly on the driver, and commit it."""

    async def run_readonly(self, start_unit: StartUnit[T]) -> T:
        """Run a read-only unit of work."""
        return await self.run(start_unit)

    async def read(self, unit: UnitOfWork[T]) -> T:
        """Run a read-only SQLAlchemy function."""

    async def commit(self, unit: UnitOfWork[T]) -> T:
        """Run a SQLAlchemy function in a separate transaction, and commit it."""

    async def run_maintenance(self, unit: UnitOfWork[T]) -> T:
        """Run like `commit`, but without a statement timeout."""
        return await self.commit(unit)

    async def close(self) -> None: ...


class SqliteThreadPool(ConnectionPool):
    """A SQLite file with one writer thread and several reader threads."""

    dialect: DialectName = "sqlite"

    def __init__(self, url: URL, codec: TextCodec | None = None) -> None:
        self._codec = codec or TextCodec()
        self._file = url.database or ":memory:"
        if self._file != ":memory:":
            _create_private_file(Path(self._file))
        self._readers = SqliteThreads(self._open_connection, self._codec)
        self._writer = SqliteWriter(self._open_connection, self._codec)
        self._engines: dict[int, Engine] = {}

    @override
    def run(self, start_unit: StartUnit[T]) -> Coroutine[Any, Any, T]:
        return self._writer.run(start_unit)

    @override
    def run_readonly(self, start_unit: StartUnit[T]) -> Coroutine[Any, Any, T]:
        return self._readers.run(start_unit)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await self._readers.submit(
            lambda connection: self._run_with_sqlalchemy(connection, unit)
        )

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await self._writer.submit(
            lambda connection: self._run_with_sqlalchemy(connection, unit)
        )

    @override
    async def close(self) -> None:
        await self._writer.close()
        await self._readers.close()

    def _open_connection(self) -> sqlite3.Connection:
        # Only the thread that opens the connection uses it, except to close it.
        connection = sqlite3.connect(self._file, check_same_thread=False, factory=_LentConnection)
        _prepare_connection(connection)
        return connection

    def _run_with_sqlalchemy(self, connection: sqlite3.Connection, unit: UnitOfWork[T]) -> T:
        """Run a SQLAlchemy function on the driver's connection, and return its result."""
        engine = self._engines.get(id(connection))
        if engine is None:
            engine = self._engines[id(connection)] = _wrap_connection(connection)
            attach_codec(engine, self._codec)
        with engine.connect() as wrapped_connection:
            return unit(wrapped_connection)


def _create_private_file(file: Path) -> None:
    """Create a database that only its owner can read; SQLite gives its log the same mode."""
    with contextlib.suppress(OSError):  # opening the database will report the problem
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        for one in (file, *file.parent.glob(f"{file.name}-*")):
            restrict_to_owner(one, 0o600)


class _LentConnection(sqlite3.Connection):
    """A connection that SQLAlchemy borrows.

    The writer begins and ends transactions with BEGIN and COMMIT, and readers have none.
    """

    @override
    def commit(self) -> None: ...

    @override
    def rollback(self) -> None: ...


def _wrap_connection(connection: sqlite3.Connection) -> Engine:
    """Wrap a connection in an engine that neither begins nor ends transactions."""
    return create_engine(
        "sqlite://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
    )


def _prepare_connection(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None  # we run BEGIN ourselves
    # Replace invalid UTF-8, so that one row does not make a statement fail.
    connection.text_factory = operator.methodcaller("decode", errors="replace")
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    _use_write_ahead_log(cursor)
    cursor.close()


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Turn on WAL mode; retry if another connection is doing the same."""
    for _ in range(_MAX_WAL_ATTEMPTS):
        try:
            cursor.execute(_USE_WRITE_AHEAD_LOG)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
        else:
            return
    cursor.execute(_USE_WRITE_AHEAD_LOG)
