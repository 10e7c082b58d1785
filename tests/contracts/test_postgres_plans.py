"""Which indexes PostgreSQL uses among many rows: no statement of a message's path scans a table."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from bot.storage.engine.statements import Query
from bot.storage.sql.database import Database, open_database
from tests.postgres import create_postgres_database
from tests.storage.sql.test_plans import STEPS, Chat

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

# 20,000 turns; 2,000 unanswered messages, unsent rows, lanes in wait
_FILL = """
INSERT INTO turn (conversation, session, role, text, at)
    SELECT 'telegram:c' || n % 2000, 1, 'user', 'hello', n FROM generate_series(1, 20000) n;
INSERT INTO inbox (platform, external_key, conversation, payload, received_at, state)
    SELECT 'telegram', 'k' || n, 'telegram:c' || n % 2000, '', n,
        CASE WHEN n <= 2000 THEN 'new' ELSE 'done' END FROM generate_series(1, 20000) n;
INSERT INTO conversation (key, platform, ready_since)
    SELECT 'telegram:c' || n, 'telegram', n FROM generate_series(1, 2000) n;
INSERT INTO outbox (turn, part, op, platform, chat, lane, text, state)
    SELECT 't' || n, 0, 'send', 'telegram', 'c', 'telegram:c' || n % 2000, 'hi',
        CASE WHEN n <= 2000 THEN 'pending' ELSE 'sent' END FROM generate_series(1, 20000) n;
INSERT INTO lane (key, platform, due_at)
    SELECT 'telegram:c' || n, 'telegram', n FROM generate_series(1, 2000) n;
INSERT INTO cursor (name, value)
    SELECT 'discord:' || n, '1' FROM generate_series(1, 2000) n;
ANALYZE
"""
_EMPTY_THE_CHAT = """
DELETE FROM inbox WHERE conversation = 'telegram:5';
DELETE FROM conversation WHERE key = 'telegram:5';
DELETE FROM outbox WHERE lane = 'telegram:5';
DELETE FROM lane WHERE key = 'telegram:5'
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def full_database(postgres_folder: str) -> AsyncIterator[Database]:
    url = await create_postgres_database(postgres_folder)
    async with open_database(url) as database:
        await _run(database, _FILL)
        yield database


@pytest.mark.parametrize("step", ["receive", *STEPS])
async def test_no_step_scans_a_table_among_many_rows(step: str, full_database: Database) -> None:
    chat = Chat(full_database)
    await _run(full_database, _EMPTY_THE_CHAT)
    if step == "receive":
        await chat.receive("5")
    else:
        await chat.open()
        await STEPS[step](chat)

    def plans(connection: Connection) -> list[tuple[str, dict[str, Any]]]:
        return [
            (query.statement.compiled("postgresql").text, _plan(connection, query))
            for query in chat.database.queries
        ]

    found = await full_database.read(plans)  # and rolled back
    assert found
    for sql, plan in found:
        print(f"{plan['Execution Time']:.2f} ms {sql.split()[0]} {sql.split()[2]}")  # noqa: T201
        scans = [node for node in _nodes(plan["Plan"]) if node["Node Type"] == "Seq Scan"]
        assert scans == [], sql


async def _run(database: Database, script: str) -> None:
    def unit(connection: Connection) -> None:
        for statement in script.split(";"):
            connection.exec_driver_sql(statement)

    await database.write(unit)


def _plan(connection: Connection, query: Query) -> dict[str, Any]:
    sql = query.statement.compiled("postgresql")
    values = {**sql.defaults, **(query.many[0] if query.many else query.values)}
    explained = connection.exec_driver_sql(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.text}", tuple(values[name] for name in sql.names)
    )
    plan: dict[str, Any] = explained.scalar_one()[0]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
