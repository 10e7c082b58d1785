"""Partitions of `inbox` and `outbox` in PostgreSQL: weeks begin, end and are dropped unnoticed."""

import asyncio
from collections.abc import Callable

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Table, delete, insert, select, text, update
from sqlalchemy.ext.asyncio import create_async_engine

from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import Turn, TurnResult
from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.encryption.codec import TextEncryption
from bot.storage.operation.nodes import SqlNodeRegistry
from bot.storage.partitions import maintenance
from bot.storage.partitions.first_partition import partition_rows
from bot.storage.partitions.maintenance import Maintenance, PartitionChanges
from bot.storage.partitions.queue_tables import QUEUE_TABLES, attach, read_partitions
from bot.storage.partitions.queue_weeks import _go_on_in_newest, _is_over, keep_queue_table
from bot.storage.partitions.upkeep import keep_partitions
from bot.storage.sql.database import open_database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.tables import inbox, node, outbox
from bot.storage.sql.upgrading.migrations import make_alembic_config
from bot.storage.sql.upgrading.revisions import read_revisions
from tests.contracts.conftest import Store
from tests.contracts.store_steps import answer, begin, taken
from tests.postgres import create_postgres_database
from tests.samples import make_incoming
from tests.weeks import begin_week

pytestmark = pytest.mark.service

DAY = 86_400.0


@pytest.fixture
async def empty_database(postgres_folder: str) -> str:
    return await create_postgres_database(postgres_folder)


@pytest.fixture
def encryption() -> TextEncryption:
    return TextEncryption()


async def keep(store: Store) -> PartitionChanges:
    clock = SystemClock()
    job = Maintenance(store.database, clock, clock.now())
    changes = PartitionChanges()
    for queue in QUEUE_TABLES:
        changes += await keep_queue_table(job, queue)
    return changes


async def make_older(store: Store, days: float) -> None:
    messages = update(inbox).values(received_at=inbox.c.received_at - days * DAY)
    rows = update(outbox).values(started_at=outbox.c.started_at - days * DAY)
    await store.database.write(lambda c: c.execute(messages).rowcount + c.execute(rows).rowcount)


async def send(store: Store, external_id: str) -> None:
    row = await taken(store)
    await store.outbox.mark_sent(row, external_id)
    await store.outbox.release_all()


async def partitions_of(store: Store, table: Table) -> list[str]:
    """Return the partition of each row, the oldest row first."""
    query = text(f"SELECT tableoid::regclass::text FROM {table.name} ORDER BY id")  # noqa: S608
    return list(await store.database.read(lambda c: c.execute(query).scalars().all()))


async def receive(store: Store, key: str) -> None:
    await store.inbox.receive([make_incoming(key=key)], {})


async def test_week_begins_once_with_rows_of_the_week_before(store: Store) -> None:
    assert await keep(store) == PartitionChanges(), "a table that nobody uses stays as it is"
    await answer(store, "a")
    await send(store, "1")
    assert await keep(store) == PartitionChanges()
    await make_older(store, 8)

    assert (await keep(store)).created == 2

    assert await keep(store) == PartitionChanges()
    await receive(store, "5:2")
    [first, second] = await partitions_of(store, inbox)
    assert first == "inbox_first"
    assert second.startswith("inbox_from_20")
    await make_older(store, 8)
    assert (await keep(store)).created == 0, "no clock that is behind makes it begin twice"


async def test_week_begins_although_the_first_message_was_stored_by_a_clock_that_is_ahead(
    store: Store,
) -> None:
    await receive(store, "5:1")
    await make_older(store, -365)
    await receive(store, "5:2")
    await make_older(store, 8)
    assert (await keep(store)).created == 1


async def test_message_of_an_earlier_week_is_not_stored_again(store: Store) -> None:
    for number in (1, 2, 3):
        await receive(store, "5:1")
        await receive(store, f"6:{number}")
        await begin_week(store.database, number)
    assert await partitions_of(store, inbox) == [
        *("inbox_first", "inbox_first", "inbox_from_week_1", "inbox_from_week_2")
    ]


async def test_messages_that_arrive_while_weeks_begin_are_stored_once(
    store: Store, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_LOCK_WAIT", "10s")  # the machine may be busy
    async with open_database(empty_database) as database:
        inboxes = (store.inbox, SqlInbox(database, SystemClock()))
        for week in range(3):
            keys = [f"{week}:{number}" for number in range(40)]
            async with asyncio.TaskGroup() as group:
                group.create_task(begin_week(database, week))
                for key in keys:
                    for one in inboxes:
                        group.create_task(one.receive([make_incoming(key=key)], {}))
    stored = select(inbox.c.external_key)
    found = await store.database.read(lambda c: c.execute(stored).scalars().all())
    assert sorted(found) == sorted(f"{week}:{n}" for week in range(3) for n in range(40))


async def test_turn_that_was_opened_in_an_earlier_week_goes_on(store: Store) -> None:
    claim, message = await begin(store)
    opened = OutgoingPart(0, MessageContent("…"))
    number = await store.conversations.open(claim, message, opened)
    await begin_week(store.database)
    assert await store.conversations.open(claim, message, opened) == number
    await send(store, "77")
    result = TurnResult(outgoing=[OutgoingPart(0, MessageContent("all of it"))])
    await store.conversations.finish(claim, message, result)
    row = await taken(store)
    assert (row.external_id, row.content.text) == ("77", "all of it")
    assert await partitions_of(store, outbox) == ["outbox_first", "outbox_from_week_1"]


async def test_week_is_dropped_once_nobody_needs_its_rows(store: Store) -> None:
    names = ("telegram:5:1/0",)
    claim, message = await begin(store)
    answered = Turn("assistant", "a", None, message.incoming.at, sent_as=names)
    part = OutgoingPart(0, MessageContent("a"))
    await store.conversations.finish(claim, message, TurnResult([answered], outgoing=[part]))
    await send(store, "1")
    before = await store.conversations.find_turns(claim, ["1"])
    assert before
    claim, message = await begin(store, "5:2")
    await store.conversations.open(claim, message, OutgoingPart(0, MessageContent("…")))
    await send(store, "2")
    await make_older(store, 30)
    await keep(store)
    assert await partitions_of(store, outbox) == ["outbox_first"] * 2, "an edit is still to come"

    await store.conversations.finish(claim, message, TurnResult(outgoing=[part]))
    assert await keep(store) == PartitionChanges(dropped=1), "the edit is not yet sent"
    assert await partitions_of(store, inbox) == []
    await send(store, "2")
    assert await keep(store) == PartitionChanges(dropped=1)
    [kept] = await partitions_of(store, outbox)
    assert kept.startswith("outbox_from_20")
    assert await store.conversations.find_turns(claim, ["1"]) == before


async def test_week_that_has_an_unanswered_message_stays(store: Store) -> None:
    await answer(store, "a")
    await receive(store, "5:2")
    await make_older(store, 30)
    await keep(store)
    assert await partitions_of(store, inbox) == ["inbox_first"] * 2
    claim, message = await begin(store, "5:3")
    await store.conversations.finish(claim, message, TurnResult())
    assert message.incoming.external_key == "5:2"
    await keep(store)
    [kept] = await partitions_of(store, inbox)
    assert kept.startswith("inbox_from_20")


async def test_week_begins_later_where_a_transaction_stands_still(
    store: Store, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_ATTEMPTS", 1)
    await receive(store, "5:1")
    await make_older(store, 8)
    engine = create_async_engine(empty_database)
    async with engine.connect() as standing:
        row = {"platform": "telegram", "external_key": "9:9", "conversation": "c"}
        await standing.execute(insert(inbox), {**row, "received_at": 0.0})
        with pytest.raises(StoreError, match="lock timeout"):
            await keep(store)
        await receive(store, "5:2")
        await standing.commit()
    await engine.dispose()
    assert await partitions_of(store, inbox) == ["inbox_first"] * 3
    await keep(store)
    await receive(store, "5:3")
    await receive(store, "9:9")
    [*_, newest] = await partitions_of(store, inbox)
    assert newest.startswith("inbox_from_20")


async def test_week_begins_only_once_those_have_ended_that_do_not_know_its_partition(
    store: Store, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that has waited for a lane would take it for empty."""
    monkeypatch.setattr(maintenance, "_ATTEMPTS", 1)
    await receive(store, "5:1")
    engine = create_async_engine(empty_database)
    async with engine.connect() as reading:
        await reading.execute(select(inbox.c.id))
        with pytest.raises(StoreError, match="lock timeout"):
            await begin_week(store.database)
        await receive(store, "5:2")
    await engine.dispose()
    await keep(store)
    await receive(store, "5:3")
    assert await partitions_of(store, inbox) == ["inbox_first"] * 2 + ["inbox_from_week_1"]


async def test_table_that_somebody_locks_keeps_no_other_one_from_its_week(
    store: Store, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_ATTEMPTS", 1)
    await receive(store, "5:1")
    await make_older(store, 8)
    engine = create_async_engine(empty_database)
    async with engine.connect() as standing:
        await standing.execute(text("LOCK TABLE ONLY receipt IN SHARE UPDATE EXCLUSIVE MODE"))
        with pytest.raises(StoreError, match="lock timeout"):
            await keep_partitions(store.database, SystemClock(), receipt_days=14)
    await engine.dispose()
    await receive(store, "5:2")
    [_, newest] = await partitions_of(store, inbox)
    assert newest.startswith("inbox_from_20")


async def test_tables_of_an_earlier_version_are_partitioned_once_none_of_its_processes_runs(
    store: Store,
) -> None:
    await answer(store, "a")
    await receive(store, "5:2")
    await store.database.maintain(lambda c: move(c, command.downgrade, "0028"))
    await store.database.maintain(lambda c: move(c, command.upgrade, "head"))
    nodes = SqlNodeRegistry(store.database, SystemClock())
    for name in ("older", "newer"):
        await nodes.enter(name, "worker", "0.1.0")
    older = node.c.owner == "older"
    await store.database.write(
        lambda c: c.execute(update(node).where(older).values(revision=None)).rowcount
    )
    assert await partitions_of(store, inbox) == ["inbox"] * 2

    await keep(store)
    assert await partitions_of(store, inbox) == ["inbox"] * 2
    await store.database.write(lambda c: c.execute(delete(node).where(older)).rowcount)
    await keep(store)

    assert await partitions_of(store, inbox) == ["inbox_first"] * 2
    assert await partitions_of(store, outbox) == ["outbox_first"]
    assert (await store.database.read(read_revisions)).oldest == "0029"
    await receive(store, "5:2")
    assert len(await partitions_of(store, inbox)) == 2
    await send(store, "1")
    await begin_week(store.database)
    await receive(store, "5:3")
    assert await partitions_of(store, inbox) == ["inbox_first"] * 2 + ["inbox_from_week_1"]


async def test_job_that_comes_second_leaves_the_tables_as_they_are(store: Store) -> None:
    await receive(store, "5:1")
    clock = SystemClock()
    await partition_rows(Maintenance(store.database, clock, clock.now()), QUEUE_TABLES[0])
    await begin_week(store.database)
    await receive(store, "5:2")
    assert await partitions_of(store, inbox) == ["inbox_first", "inbox_from_week_1"]


async def test_week_whose_ids_are_still_given_stays(store: Store) -> None:
    """Another job comes between the two steps of the one that begins the next week."""
    await store.database.maintain(
        lambda c: attach(c, QUEUE_TABLES[0], "inbox_next", 10_000_000_000, 20_000_000_000)
    )
    [first, _next] = await store.database.read(lambda c: read_partitions(c, QUEUE_TABLES[0]))
    now = SystemClock().now()
    assert not await store.database.read(lambda c: _is_over(c, QUEUE_TABLES[0], first, now))
    await _go_on_in_newest(Maintenance(store.database, SystemClock(), now), QUEUE_TABLES[0])
    assert await store.database.read(lambda c: _is_over(c, QUEUE_TABLES[0], first, now))


def move(connection: Connection, step: Callable[[Config, str], None], revision: str) -> None:
    config = make_alembic_config()
    config.attributes["connection"] = connection
    step(config, revision)
