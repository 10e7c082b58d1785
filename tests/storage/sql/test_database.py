"""The one writer of an SQLite file: nobody waits for it in vain."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select, text

from bot.errors import SettingsError, StoreError
from bot.storage.sql.database import Database, open_database
from bot.storage.sql.tables import cursor

A_MOMENT = 10.0


def put(name: str) -> Callable[[Connection], str]:
    def unit(connection: Connection) -> str:
        connection.execute(insert(cursor).values(name=name, value="1"))
        return name

    return unit


async def count(database: Database) -> int:
    rows: int = await database.read(
        lambda c: c.execute(select(func.count(cursor.c.name))).scalar_one()
    )
    return rows


async def test_a_bug_in_one_unit_is_raised_there_and_spoils_no_other(database: Database) -> None:
    def buggy(connection: Connection) -> None:
        connection.execute(insert(cursor).values(name="half", value="done"))
        raise KeyError("a bug")

    async with asyncio.timeout(A_MOMENT):
        results = [
            asyncio.create_task(database.write(unit)) for unit in [put("a"), buggy, put("b")]
        ]
        await asyncio.wait(results)
        with pytest.raises(KeyError):
            results[1].result()
        assert (results[0].result(), results[2].result()) == ("a", "b")
        assert await database.write(put("c")) == "c"
    assert await count(database) == 3


async def test_a_bug_in_a_lone_unit_does_not_stop_the_writer(database: Database) -> None:
    async with asyncio.timeout(A_MOMENT):
        with pytest.raises(ZeroDivisionError):
            await database.write(lambda _: 1 / 0)
        await database.write(put("a"))
    assert await count(database) == 1


async def test_a_caller_who_stops_waiting_holds_up_nobody(database: Database) -> None:
    impatient = asyncio.create_task(database.write(put("a")))
    await asyncio.sleep(0)
    impatient.cancel()
    async with asyncio.timeout(A_MOMENT):
        await database.write(put("b"))
    assert impatient.cancelled()


async def test_what_is_still_queued_when_the_database_closes_fails(tmp_path: Path) -> None:
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as database:
        late = [asyncio.create_task(database.write(put(str(n)))) for n in range(3)]
        await asyncio.sleep(0)
    async with asyncio.timeout(A_MOMENT):
        await asyncio.wait(late)
    assert all(isinstance(one.exception(), StoreError) for one in late)


async def test_a_closed_database_says_so_at_once(tmp_path: Path) -> None:
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as database:
        pass
    async with asyncio.timeout(A_MOMENT):
        with pytest.raises(StoreError, match="closed"):
            await database.write(put("a"))


async def test_what_the_database_says_is_told_without_the_statement(database: Database) -> None:
    with pytest.raises(StoreError) as told:
        await database.write(
            lambda c: c.execute(text("insert into cursor values ('secret', null)"))
        )
    assert str(told.value) == "the database failed: NOT NULL constraint failed: cursor.value"


async def test_what_was_committed_survives(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    async with open_database(url) as database:
        await database.write(put("a"))
    async with open_database(url) as database:
        assert await count(database) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "TROUPE_DATABASE_URL is not a database URL"),
        ("mysql+aiomysql://host/db", "'mysql\\+aiomysql' is not supported"),
    ],
)
async def test_an_address_that_is_none_names_its_setting(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        async with open_database(url):
            pytest.fail("it opened")


async def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as told:
        async with open_database(f"sqlite:///{tmp_path}/none/troupe.db"):
            pytest.fail("it opened")
    assert str(told.value).startswith("the database failed: unable to open database file; free ")


async def test_tables_of_a_newer_version_are_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    async with open_database(url) as database:
        newer = text("UPDATE alembic_version SET version_num = 'afar'")
        await database.write(lambda c: c.execute(newer).rowcount)

    with pytest.raises(SettingsError, match=r"created by a newer version of Troupe.*afar"):
        async with open_database(url):
            pass


async def test_a_database_server_that_is_away_is_one_line() -> None:
    with pytest.raises(StoreError) as told:
        async with open_database("postgresql+asyncpg://bot:secret@127.0.0.1:1/troupe"):
            pytest.fail("it opened")
    assert "secret" not in str(told.value)
    assert len(str(told.value).splitlines()) == 1
