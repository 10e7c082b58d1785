"""Recall among 100,000 memories of one server: one query, over indexes; prints its time."""

import sys
import time
from statistics import median
from typing import Any

import pytest
from sqlalchemy import Connection, insert, text
from typing_extensions import override

from bot.chat.memory import MemoryListener, MemoryPlace
from bot.runtime.clock import SystemClock
from bot.storage.memories import SqlMemories
from bot.storage.statements import SQL, Query
from bot.storage.tables import memory
from tests.support.memory_world import MortalDatabase
from tests.support.store import Store

pytestmark = pytest.mark.slow

SERVER, PEOPLE, CHANNELS = "discord:guild:1", 4_000, 500
"""Each person has 25 memories, each channel 200; a fifth of them the whole server may hear."""
VECTOR = bytes(1536)
RECALLS = 50


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {
            "subject_kind": "person",
            "subject": f"discord:{number % PEOPLE}",
            "subject_name": "Ann",
            "text": f"Ann keeps {number} bees",
            "kind": "fact",
            "said_by": f"discord:{number % PEOPLE}",
            "present": "\nnora\n" if number % 2 else "",
            "conversation": f"discord:{number % CHANNELS}",
            "turns": "[]",
            "is_derived": True,
            "audience": f"server {SERVER}"
            if number % 5 == 0
            else f"channel discord:{number % CHANNELS}",
            "origin": f"channel discord:{number % CHANNELS}",
            "server": SERVER,
            "is_widened": False,
            "state": "kept",
            "is_pinned": number % 100 == 0,
            "since": float(number),
            "model": "m",
            "embedding": VECTOR,
        }
        for number in range(first, last)
    ]


def fill(connection: Connection) -> None:
    for first in range(0, 100_000, 10_000):
        connection.execute(insert(memory), rows(first, first + 10_000))


class CountingDatabase(MortalDatabase):
    """Counts the queries of its units."""

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
        await store.database.maintain(lambda c: c.execute(text("ANALYZE memory")))
    database = CountingDatabase(store)
    memories = SqlMemories(database, SystemClock())
    people = tuple(f"discord:{number}" for number in range(1, 21))
    place = MemoryPlace("discord:3", SERVER, is_private=False)
    seconds, recalled = [], 0
    for _ in range(RECALLS):
        started = time.perf_counter()
        found = await memories.recall(MemoryListener(place, "nora", people[0], people))
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
    compiled = SQL["memories_for_listener"].compiled(store.database.dialect)
    is_sqlite = store.database.is_sqlite
    explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN (ANALYZE, BUFFERS) "
    values = [query.values[name] for name in compiled.names]
    sql = compiled.text
    for at in range(len(values), 0, -1):
        literal = "'" + str(values[at - 1]).replace("'", "''") + "'"
        sql = sql.replace(f"?{at}" if is_sqlite else f"${at}", literal)
    found = await store.rows(text((explain + sql).replace(":", "\\:")))
    return [str(row[-1]) for row in found]
