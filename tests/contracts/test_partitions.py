"""Partitions of receipts in PostgreSQL: made ahead, dropped when old; no receipt needs one."""

import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from typing_extensions import override

from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.partitions import maintenance, receipts
from bot.storage.partitions.maintenance import PartitionChanges
from bot.storage.partitions.upkeep import keep_partitions
from bot.storage.sql.database import Database, open_database
from bot.storage.sql.retention import delete_expired
from bot.storage.sql.tables import metadata, receipt
from bot.storage.sql.upgrading.migrations import make_alembic_config
from tests.postgres import create_postgres_database

pytestmark = pytest.mark.service

DAY = 86_400.0
NOW = time.time()
"""In all tests, so that no week begins between two of their lines."""
NOTHING = PartitionChanges()


class DaysAgo(SystemClock):
    """The clock of some days ago, or of days to come; it waits for nothing."""

    def __init__(self, days: float) -> None:
        self._now = NOW - days * DAY

    @override
    def now(self) -> float:
        return self._now

    @override
    async def sleep(self, seconds: float) -> None:
        """Return at once."""


@pytest.fixture
async def url(postgres_folder: str) -> str:
    return await create_postgres_database(postgres_folder)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with open_database(url) as one:
        yield one


async def store_receipt(database: Database, days_ago: float) -> int:
    """Store a receipt as old as that; return its id."""
    row = {"conversation": "c", "turn": "t", "content": b"x", "at": NOW - days_ago * DAY}
    added = insert(receipt).values(row).returning(receipt.c.id)
    return await database.write(lambda c: c.execute(added).scalar_one())


async def read_rows(database: Database) -> dict[int, str]:
    """Return the partition of each receipt."""
    query = text("SELECT id, tableoid::regclass::text AS name FROM receipt ORDER BY id")
    return await database.read(lambda c: {row.id: row.name for row in c.execute(query)})


async def keep(database: Database, days_ago: float = 0, receipt_days: float = 14) -> object:
    return await keep_partitions(database, DaysAgo(days_ago), receipt_days)


def week_of(days_ago: float) -> str:
    """Return the name of the partition of one week that this day falls into."""
    day = datetime.fromtimestamp(NOW - days_ago * DAY, UTC)
    end = day + timedelta(days=7 - day.weekday())
    return f"receipt_to_{end:%Y%m%d}"


async def test_weeks_have_partitions_before_their_receipts(database: Database) -> None:
    await keep(database, days_ago=30)
    made = await keep(database)
    assert isinstance(made, PartitionChanges)
    assert made.created >= 4
    assert await keep(database) == NOTHING
    days = (7, 0, -7, -20)
    ids = [await store_receipt(database, one) for one in days]
    assert await read_rows(database) == {
        id_: week_of(one) for id_, one in zip(ids, days, strict=True)
    }


async def test_receipts_without_a_partition_are_stored_and_get_one(database: Database) -> None:
    await keep(database, days_ago=100)
    days = (103, 60, 2, 0)
    ids = [await store_receipt(database, one) for one in days]
    rows = await read_rows(database)
    assert [rows[one] for one in ids[1:]] == ["receipt_default"] * 3

    await keep(database)

    rows = await read_rows(database)
    assert list(rows) == ids
    assert "receipt_default" not in rows.values()
    await store_receipt(database, -10)
    assert list((await read_rows(database)).values())[-1] == week_of(-10)
    assert await keep(database) == NOTHING


async def test_receipts_of_the_future_do_not_keep_weeks_from_being_made(
    database: Database,
) -> None:
    await keep(database)
    await store_receipt(database, -40_000)  # the clock of that process is wrong
    assert await keep(database) == NOTHING
    assert set((await read_rows(database)).values()) == {week_of(0)}


async def test_old_usage_is_dropped_with_its_week_and_by_rows_where_nobody_drops(
    database: Database,
) -> None:
    await keep(database, days_ago=440)
    await store_receipt(database, 439)
    await keep(database, days_ago=420)
    await store_receipt(database, 410)
    kept = [await store_receipt(database, 390)]
    changes = await keep(database)
    assert isinstance(changes, PartitionChanges)
    assert changes.dropped >= 2
    assert list(await read_rows(database)) == kept
    await store_receipt(database, 415)
    await delete_expired(database, SystemClock(), 14)
    assert list(await read_rows(database)) == kept


async def test_clock_that_is_wrong_drops_nothing(database: Database) -> None:
    await keep(database)
    ids = [await store_receipt(database, one) for one in (20, 0)]
    assert await keep(database, days_ago=-10_000, receipt_days=30) == NOTHING
    assert list(await read_rows(database)) == ids


async def test_partition_shrinks_once_no_receipt_has_content(
    database: Database,
) -> None:
    await keep(database, days_ago=40)
    row = {"conversation": "c", "turn": "t", "content": b"x" * 2000, "at": NOW - 38 * DAY}
    await database.write(lambda c: c.execute(insert(receipt), [row] * 40).rowcount)
    await keep(database, days_ago=38)
    before = await database.read(size)
    rows = await read_rows(database)
    await delete_expired(database, SystemClock(), 14)
    changes = await keep(database)
    assert isinstance(changes, PartitionChanges)
    assert changes.compacted >= 1
    assert await database.read(size) < before / 4
    assert await read_rows(database) == rows
    assert await keep(database) == NOTHING


def size(connection: Connection) -> int:
    query = "SELECT sum(pg_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'receipt'"
    return int(connection.exec_driver_sql(f"{query}::regclass").scalar_one())


async def test_large_table_becomes_a_partition_that_was_checked_before(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "_SCANNED_BYTES", 0)
    ids = [await store_receipt(database, one) for one in (50, 3, -40_000)]
    await keep(database)
    rows = await read_rows(database)
    assert list(rows) == ids
    [partition] = set(rows.values())
    assert partition >= week_of(-50), "messages are stored while it is checked"
    assert await database.read(constraints) == []
    ids.append(await store_receipt(database, -70))
    assert list(await read_rows(database)) == ids


def constraints(connection: Connection) -> list[str]:
    query = "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conname LIKE 'receipt%'"
    return list(connection.exec_driver_sql(query).scalars())


@pytest.mark.parametrize("scanned", [0, 1 << 30], ids=["large", "small"])
async def test_nobody_waits_long_for_a_table_that_somebody_reads(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    monkeypatch.setattr(receipts, "_SCANNED_BYTES", scanned)
    monkeypatch.setattr(maintenance, "_ATTEMPTS", 2)
    await store_receipt(database, 3)
    engine = create_async_engine(url)
    async with engine.connect() as backup:
        await backup.execute(select(receipt.c.id))
        with pytest.raises(StoreError, match="lock timeout"):
            await keep(database)
        await store_receipt(database, 0)
        await store_receipt(database, -400)
    await engine.dispose()
    assert await database.read(constraints) == []
    await keep(database)
    assert len(await read_rows(database)) == 3


async def test_upgrade_and_its_undoing_keep_rows_ids_and_rights(database: Database) -> None:
    def move(connection: Connection, step: Callable[[Config, str], None], revision: str) -> None:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        step(config, revision)

    await keep(database, days_ago=30)
    ids = [await store_receipt(database, one) for one in (40, 10)]
    await database.write(lambda c: move(c, command.downgrade, "0026"))
    role = f"reader_{time.time_ns()}"
    for statement in (f"CREATE ROLE {role}", f"GRANT SELECT ON receipt TO {role}"):
        await database.write(lambda c, sql=statement: c.exec_driver_sql(sql).close())  # type: ignore[misc]
    ids.append(await store_receipt(database, 0))
    await database.write(lambda c: move(c, command.upgrade, "head"))
    ids.append(await store_receipt(database, 0))
    assert list(await read_rows(database)) == ids == sorted(set(ids))
    rights = f"SELECT has_table_privilege('{role}', 'receipt', 'SELECT')"
    assert await database.read(lambda c: c.exec_driver_sql(rights).scalar_one())


async def test_tables_say_how_they_are_partitioned(database: Database) -> None:
    query = text(
        "SELECT relname AS name, pg_get_partkeydef(oid) AS key FROM pg_class WHERE relkind = 'p'"
    )
    described = {
        table.name: table.dialect_options["postgresql"]["partition_by"]
        for table in metadata.sorted_tables
        if table.dialect_options["postgresql"]["partition_by"]
    }
    found = await database.read(lambda c: {row.name: row.key for row in c.execute(query)})
    assert found == described
