"""Recall from 100,000 memories of one server with one indexed query, and print its duration."""

import sys
import time
from statistics import median

import pytest
from sqlalchemy import Connection, text
from typing_extensions import override

from bot.chat.memory import MemoryPlace, RecallingCharacter
from bot.runtime.clock import SystemClock
from bot.storage.memories import SqlMemories
from bot.storage.statements import SQL, Query
from tests.support.memory_world import MortalDatabase
from tests.support.store import Store

pytestmark = pytest.mark.slow

SERVER, PEOPLE, CHANNELS = "discord:guild:1", 4_000, 500
"""Each person has 25 memories and each channel 200; a fifth of them are for the whole server."""
VECTOR = bytes(1536)
RECALLS = 50


FILL = """
    INSERT INTO memory (
        subject_kind, subject, subject_name, text, kind, said_by, present, conversation, turns,
        is_derived, audience, origin, server, is_widened, state, is_pinned, since, model, embedding
    )
    WITH RECURSIVE numbers (number) AS (
        SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < 99999
    )
    SELECT
        'person', 'discord:' || (number % :people), 'Ann', 'Ann keeps ' || number || ' bees',
        'fact', 'discord:' || (number % :people), CASE number % 2 WHEN 1 THEN :present ELSE '' END,
        'discord:' || (number % :channels), '[]', true,
        CASE number % 5
            WHEN 0 THEN 'server ' || :server ELSE 'channel discord:' || (number % :channels)
        END,
        'channel discord:' || (number % :channels), :server, false, 'kept', number % 100 = 0,
        CAST(number AS DOUBLE PRECISION), 'm', :vector
    FROM numbers
"""


def fill(connection: Connection) -> None:
    values = {"people": PEOPLE, "channels": CHANNELS, "server": SERVER, "present": "\nnora\n"}
    connection.execute(text(FILL).bindparams(vector=VECTOR, **values))


class CountingDatabase(MortalDatabase):
    """A database that records the queries of its units of work."""

    queries: list[Query]

    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self.queries = []

    @override
    def _count(self, query: Query) -> Query:
        self.queries.append(query)
        return query


async def test_recall_in_a_large_server_needs_one_indexed_query(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    await store.database.write(fill)
    if not store.database.is_sqlite:
        await store.database.run_maintenance(lambda c: c.execute(text("ANALYZE memory")))
    database = CountingDatabase(store)
    memories = SqlMemories(database, SystemClock())
    people = tuple(f"discord:{number}" for number in range(1, 21))
    place = MemoryPlace("discord:3", SERVER, is_private=False)
    seconds, recalled = [], 0
    for _ in range(RECALLS):
        started = time.perf_counter()
        found = await memories.recall(RecallingCharacter(place, "nora", people[0], people))
        seconds.append(time.perf_counter() - started)
        recalled = len(found.memories)
    assert len(database.queries) == RECALLS
    plan = await plan_of(store, database.queries[0])
    lines = [
        f"{store.database.dialect}: {recalled} of 100,000 memories",
        f"median {1000 * median(seconds):.1f} ms, least {1000 * min(seconds):.1f} ms",
    ]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, *plan, ""]))
    assert not [line for line in plan if "SCAN memory" in line or "Seq Scan on memory" in line]


async def plan_of(store: Store, query: Query) -> list[str]:
    compiled = SQL["memories_for_listener"].compile_for(store.database.dialect)
    is_sqlite = store.database.is_sqlite
    explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN (ANALYZE, BUFFERS) "
    values = [query.values[name] for name in compiled.names]
    sql = compiled.text
    for at in range(len(values), 0, -1):
        literal = "'" + str(values[at - 1]).replace("'", "''") + "'"
        sql = sql.replace(f"?{at}" if is_sqlite else f"${at}", literal)
    found = await store.rows(text((explain + sql).replace(":", "\\:")))
    return [str(row[-1]) for row in found]
