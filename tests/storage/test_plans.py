"""Test which indexes SQLite uses: no statement reads more rows than necessary.

This includes the path of a message, polls, probes, /forget, and the janitor.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from sqlalchemy import Connection, event
from typing_extensions import override

from bot.storage.codec import TextCodec
from bot.storage.database import Database
from bot.storage.sqlite import UnitOfWork
from bot.storage.statements import Query, StartUnit
from tests.support.chat_steps import OVER_ALL_ROWS, STEPS, Chat
from tests.support.units import through
from tests.turn.whole_chat import use_whole_chat

T = TypeVar("T")
Values: TypeAlias = Mapping[str, Any] | Sequence[Any]
# They hold only rows that somebody has to work on.
_QUEUES = "ix_conversation_ready|ix_lane_due|ix_inbox_open|ix_inbox_dead|ix_outbox_unsent"
# A node is a process, and a lease is of a job or a process: there are few, and retention, which
# keeps it so, looks at all of them once an hour.
_FEW = "node|role_lease"
_OWN = r"CONSTANT ROW|\(subquery-\d+\)"  # what the statement itself consists of
_MAY_SCAN = re.compile(
    rf"SCAN (({_FEW}|{_OWN})$|\w+ VIRTUAL TABLE|\w+ USING (COVERING )?INDEX ({_QUEUES})\b)"
)
_MAX_INSTRUCTIONS = 20_000
"""Instructions of SQLite's virtual machine; reading all rows of other chats takes far more."""
_OF_OTHERS = Path(__file__).with_name("rows_of_others.sql").read_text("utf-8")


class RecordingDatabase(Database):
    """Records the SQL and values of the units and functions that it runs."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._pool)
        self._database = database
        self.statements: list[tuple[str, Values]] = []

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self._database.run(lambda: through(self._record, start()))

    @override
    async def run_readonly(self, start: StartUnit[T]) -> T:
        return await self.run(start)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await self._database.read(lambda connection: unit(self._listened(connection)))

    @override
    async def write(self, unit: UnitOfWork[T]) -> T:
        return await self._database.write(lambda connection: unit(self._listened(connection)))

    def _record(self, query: Query) -> Query:
        self.statements.append(_sql_of(query))
        return query

    def _listened(self, connection: Connection) -> Connection:
        def note(
            _connection: object, _cursor: object, sql: str, values: Values, *_: object
        ) -> None:
            if not sql.startswith("PRAGMA"):
                self.statements.append((sql, values))

        event.listen(connection, "before_cursor_execute", note)
        return connection


async def statements_of(step: str, database: Database) -> RecordingDatabase:
    recording = RecordingDatabase(database)
    chat = Chat(recording)
    await chat.open()
    recording.statements.clear()
    await STEPS[step](chat)
    return recording


@pytest.mark.parametrize("step", STEPS)
async def test_no_processing_step_scans_a_table(step: str, database: Database) -> None:
    assert await _scans(await statements_of(step, database)) == set()


async def test_no_action_in_a_chat_scans_a_table(database: Database) -> None:
    recording = RecordingDatabase(database)
    await use_whole_chat(recording)
    assert await _scans(recording) == set()


@pytest.mark.parametrize("step", sorted(STEPS.keys() - OVER_ALL_ROWS))
async def test_no_step_reads_rows_of_other_chats(step: str, database: Database) -> None:
    def fill(connection: Connection) -> None:
        for statement in _OF_OTHERS.split(";\n"):
            connection.exec_driver_sql(statement)

    await database.write(fill)
    recording = await statements_of(step, database)

    def instructions(connection: Connection) -> dict[str, int]:
        executed = dict(recording.statements)
        return {sql: _instructions(connection, sql, values) for sql, values in executed.items()}

    counts = await database.write(instructions)
    assert {sql: count for sql, count in counts.items() if count > _MAX_INSTRUCTIONS} == {}


async def _scans(database: RecordingDatabase) -> set[tuple[str, str]]:
    """Return the query plan steps that scan a table, with their statements."""
    statements = dict(database.statements)
    assert statements

    def plans(connection: Connection) -> set[tuple[str, str]]:
        return {
            (line, sql)
            for sql, values in statements.items()
            for line in _plan(connection, sql, values)
            if line.startswith("SCAN") and not _MAY_SCAN.match(line)
        }

    return await database.read(plans)


def _sql_of(query: Query) -> tuple[str, Sequence[Any]]:
    sql = query.statement.compile_for("sqlite")
    values = query.value_rows[0] if query.value_rows else query.values
    return sql.text, sql.arguments(values, TextCodec())


def _plan(connection: Connection, sql: str, values: Values) -> list[str]:
    cursor = connection.connection.cursor()
    cursor.execute(f"EXPLAIN QUERY PLAN {sql}", values)
    return [str(row[3]) for row in cursor.fetchall()]


def _instructions(connection: Connection, sql: str, values: Values) -> int:
    """Count the instructions of a statement in SQLite, in hundreds, and roll it back."""
    passed: list[None] = []
    raw: Any = connection.connection.dbapi_connection
    connection.exec_driver_sql("SAVEPOINT counted")
    raw.set_progress_handler(lambda: passed.append(None), 100)
    try:
        raw.execute(sql, values).fetchall()
    finally:
        raw.set_progress_handler(None, 100)
        connection.exec_driver_sql("ROLLBACK TO counted")
    return 100 * len(passed)
