"""The one writer of an SQLite file: a thread that commits together what has arrived together.

A commit costs an fsync, so twenty units in one transaction cost about what one does; and waking the
event loop once for all of them costs less than once for each. So while units arrive together, the
next ones wait for others; units that follow each other, each after the last one's commit, do not.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from bot.frozen_dataclass import frozen_dataclass
from bot.runtime.wake_ups import wake_ups
from bot.storage.encryption.codec import TextCodec
from bot.storage.engine.encoding import arguments, decoded
from bot.storage.engine.statements import Query, Rows, StartUnit

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]
"""Runs in the writer's thread, inside a transaction that it neither begins nor ends."""

_MAX_UNITS_IN_A_COMMIT = 200
_SECONDS_BETWEEN_COMMITS = 0.015
"""After a commit of several units; an answer has about three units, of which each waits so long."""


@frozen_dataclass
class _Job:
    work: Work[Any]
    done: asyncio.Future[Any]


@frozen_dataclass
class _Outcome:
    done: asyncio.Future[Any]
    value: Any
    error: BaseException | None

    def tell(self) -> None:
        """Let who waits for it go on."""
        if self.done.done():  # whoever asked for it was cancelled meanwhile
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(self.value)


class SqliteWriter:
    """Runs units in transactions of its own thread.

    Args:
        connect: opens the connection, in the thread; `isolation_level` must be None.
        codec: encodes the texts of units; None: none is encrypted.
    """

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], codec: TextCodec | None = None
    ) -> None:
        self._connect = connect
        self._codec = codec or TextCodec()
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="sqlite writer", daemon=True)
        self._closed = False
        self._thread.start()

    async def run(self, start: StartUnit[T]) -> T:
        """Run a unit and commit it; raises as `commit` does."""
        return await self._put(lambda connection: run_unit(connection, start, self._codec))

    async def commit(self, work: Work[T]) -> T:
        """Run some work in a transaction and commit it; it may be run twice.

        Raises:
            sqlite3.Error: the database did not take it; nothing of it was written.
            Exception: whatever the work raised; nothing of it was written.
        """
        return await self._put(work)

    def _put(self, work: Work[T]) -> asyncio.Future[T]:
        if self._closed:
            raise sqlite3.ProgrammingError("the database is closed")
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(work, done))
        return done

    async def close(self) -> None:
        """Commit what has arrived, then close the connection."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        ended = False
        begins_at = 0.0
        try:
            while not ended:
                batch, ended = self._next_batch(begins_at)
                try:
                    connection = connection or self._connect()
                    outcomes = _commit_together(connection, batch)
                except sqlite3.Error as error:  # it cannot even be opened
                    outcomes = [_Outcome(job.done, None, error) for job in batch]
                if outcomes:
                    self._loop.call_soon_threadsafe(_deliver, outcomes)
                together = len(batch) > 1
                begins_at = time.monotonic() + _SECONDS_BETWEEN_COMMITS if together else 0.0
        finally:
            if connection is not None:
                connection.close()

    def _next_batch(self, begins_at: float) -> tuple[list[_Job], bool]:
        """Wait for units, and until a time; returns them and whether they are the last ones."""
        batch: list[_Job] = []
        job = self._jobs.get()
        if (seconds := begins_at - time.monotonic()) > 0:
            time.sleep(seconds)
        while job is not None:
            batch.append(job)
            if len(batch) == _MAX_UNITS_IN_A_COMMIT or self._jobs.empty():
                return batch, False
            job = self._jobs.get_nowait()
        return batch, True


def _commit_together(connection: sqlite3.Connection, batch: Sequence[_Job]) -> list[_Outcome]:
    """Commit all units in one transaction; where one fails, each in its own."""
    try:
        values = _transaction(connection, [job.work for job in batch])
    except Exception as error:  # noqa: BLE001 -- a unit's own error belongs to who asked for it
        if len(batch) == 1:
            return [_Outcome(batch[0].done, None, error)]
        return [outcome for job in batch for outcome in _commit_together(connection, [job])]
    return [_Outcome(job.done, value, None) for job, value in zip(batch, values, strict=True)]


def _transaction(connection: sqlite3.Connection, works: Sequence[Work[Any]]) -> list[Any]:
    # With a plain BEGIN, two processes that read and then write lose an update or fail at once.
    connection.execute("BEGIN IMMEDIATE")
    try:
        values = [work(connection) for work in works]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise
    return values


def run_unit(connection: sqlite3.Connection, start: StartUnit[T], codec: TextCodec) -> T:
    """Run one unit, inside whatever transaction is open."""
    cursor = connection.cursor()
    unit = start()
    try:
        query = next(unit)
        while True:
            query = unit.send(_rows_of(cursor, query, codec))
    except StopIteration as ended:
        value: T = ended.value
        return value
    finally:
        unit.close()


def _rows_of(cursor: sqlite3.Cursor, query: Query, codec: TextCodec) -> Rows:
    sql = query.statement.compiled("sqlite")
    if len(query.many) > 1:
        cursor.executemany(sql.text, [arguments(sql, values, codec) for values in query.many])
        return ()
    values = query.many[0] if query.many else query.values
    cursor.execute(sql.text, arguments(sql, values, codec))
    return decoded(cursor.fetchall(), sql, codec) if cursor.description else ()


def _deliver(outcomes: Sequence[_Outcome]) -> None:
    gate = wake_ups()
    for outcome in outcomes:
        gate.wake(outcome.tell)
