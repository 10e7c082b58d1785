"""Contract of the tables and their migrations, on SQLite and on PostgreSQL."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, update

from bot.chat.incoming import (
    Address,
    ButtonPress,
    ChatJoin,
    Incoming,
    MessageDeletion,
    MessageEdit,
    SayRequest,
)
from bot.chat.session import ChatSetting, TurnResult
from bot.errors import Fenced
from bot.storage.database import MIN_CODE_REVISION, NEWEST_REVISION
from bot.storage.leases import resolve_bot_id
from bot.storage.migrations import build_alembic_config
from bot.storage.tables import inbox
from tests.samples import ALICE, make_incoming
from tests.support.store import NOON, Store, claimed, present

OPENING = """
import asyncio, sys
from bot.storage.database import open_database
async def main():
    async with open_database(sys.argv[1]):
        pass
asyncio.run(main())
"""


async def test_first_bot_of_a_platform_uses_keys_without_a_bot_id(store: Store) -> None:
    asked = ("telegram 11", "telegram 77", "discord 77", "telegram 11", "telegram 77")
    ids = [await resolve_bot_id(store.database, *one.split()) for one in asked]
    assert ids == ["", "77", "", "", "77"]


async def test_bots_that_start_simultaneously_agree_on_which_is_first(store: Store) -> None:
    accounts = [str(number) for number in range(8)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(resolve_bot_id(store.database, "telegram", account))
            for account in accounts
        ]
    ids = [task.result() for task in tasks]
    assert ids.count("") == 1
    assert all(id_ in {"", account} for id_, account in zip(ids, accounts, strict=True))


async def test_narrowest_scope_with_a_value_wins(store: Store) -> None:
    settings, scopes = store.chat_settings, ["thread", "channel", "guild"]
    for scope, value in (("guild", "a"), ("channel", "b")):
        await settings.set(scope, "preset", value, "discord:1")
    assert await settings.resolve(scopes, "preset") == ChatSetting("channel", "b")
    await settings.set("channel", "preset", None, "discord:1")
    assert await settings.resolve(scopes, "preset") == ChatSetting("guild", "a")
    assert await settings.resolve(["elsewhere"], "preset") is None


async def test_failed_transaction_does_not_affect_concurrent_ones(store: Store) -> None:
    def spoiled(connection: Connection) -> None:
        connection.execute(update(inbox).values(crashes=1))
        raise Fenced("on purpose")

    async with asyncio.TaskGroup() as group:
        writes = [
            group.create_task(store.inbox.receive([make_incoming(key=f"5:{n}")], {"last": str(n)}))
            for n in range(50)
        ]
        failing = group.create_task(fails(store, spoiled))
    assert all(write.done() for write in writes)
    assert failing.done()
    rows = await store.scalars(select(inbox.c.crashes))
    assert rows == [0] * 50


async def fails(store: Store, unit: object) -> None:
    with pytest.raises(Fenced):
        await store.database.write(unit)  # type: ignore[arg-type]


@pytest.mark.service
async def test_concurrent_processes_create_the_tables_once(database_without_tables: str) -> None:
    """Each caller is a separate process, because Alembic allows only one caller per process."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPENING, database_without_tables, stderr=-1
        )
        for _ in range(3)
    ]
    for process in processes:
        _, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()


async def test_migrations_create_exactly_the_declared_tables(store: Store) -> None:
    def unit(connection: Connection) -> bool:
        config = build_alembic_config()
        config.attributes["connection"] = connection
        command.check(config)  # raises when a migration is missing
        return True

    assert await store.database.write(unit)


EVENTS = [
    MessageEdit("5:1:e3", make_incoming("new words"), NOON),
    MessageDeletion(Address("telegram", "5"), "d1-2-2", ("1", "2"), NOON, ("telegram:5",)),
    ButtonPress(Address("telegram", "5"), "cb1", "7", ALICE, "stop", NOON, ("telegram:5",)),
    ChatJoin(Address("telegram", "5"), "join:5:1", ALICE, NOON, ("telegram:5",)),
    SayRequest(Address("telegram", "5"), "say:1", "It is done.", NOON, ("telegram:5",)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
async def test_every_kind_of_event_is_stored_once(store: Store, event: Incoming) -> None:
    await store.inbox.receive([event], {})
    await store.inbox.receive([event], {})
    begun = present(await claimed(store))
    assert begun.message.incoming == event
    finished = await store.conversations.finish(begun.claim, begun.message, TurnResult())
    assert finished.next_message is None


def test_newest_migration_equals_the_declared_revision() -> None:
    assert ScriptDirectory.from_config(build_alembic_config()).get_current_head() == NEWEST_REVISION


Columns: TypeAlias = Mapping[str, Mapping[str, bool]]
"""Whether a row can be inserted without a column, by table and column."""


async def test_upgrades_only_add_tables_and_columns(store: Store) -> None:
    """Otherwise, processes of both versions could not run side by side (CONTRIBUTING.md)."""

    def unit(connection: Connection) -> list[Columns]:
        config = build_alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, MIN_CODE_REVISION)
        before = read_columns(connection)
        command.upgrade(config, "head")
        return [before, read_columns(connection)]

    before, after = await store.database.write(unit)
    assert not list(unusable(before, after))


def test_incompatible_upgrades_are_detected() -> None:
    before = {"turn": {"id": False, "text": True}, "gone": {"id": False}}
    after = {"turn": {"id": False, "needed": False, "optional": True}, "new": {"id": False}}
    assert set(unusable(before, after)) == {"gone.id", "turn.text", "turn.needed"}


def unusable(before: Columns, after: Columns) -> Iterator[str]:
    """Yield the columns that a process of the older version cannot use."""
    for table, columns in before.items():
        now = after.get(table, {})
        yield from (f"{table}.{name}" for name in columns.keys() - now.keys())
        yield from (f"{table}.{name}" for name in now.keys() - columns.keys() if not now[name])


def read_columns(connection: Connection) -> Columns:
    tables = inspect(connection)
    return {
        name: {
            one["name"]: one["nullable"] or one["default"] is not None
            for one in tables.get_columns(name)
        }
        for name in tables.get_table_names()
    }
