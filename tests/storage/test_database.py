"""The database: migrations, errors."""

import asyncio
import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, bindparam, insert, text, update

from bot.errors import SettingsError, StoreError
from bot.storage.database import (
    NEWEST_REVISION,
    Database,
    open_database,
    open_without_decrypting,
    read_revision,
    translate,
)
from bot.storage.statements import SQL
from bot.storage.tables import cursor, outbox, supported_revision
from tests.checkout import CHECKOUT

TIMEOUT_SECONDS = 10.0


def put(name: str) -> Callable[[Connection], str]:
    def unit(connection: Connection) -> str:
        connection.execute(insert(cursor).values(name=name, value="1"))
        return name

    return unit


def test_every_statement_in_a_file_is_used() -> None:
    files = [*CHECKOUT.glob("bot/storage/*.py"), *CHECKOUT.glob("bot/storage/*.sql")]
    texts = "".join(file.read_text() for file in files)
    assert SQL.keys() <= {*re.findall(r"[\"'](\w+)[\"']", texts), *re.findall(r"\{(\w+)", texts)}


async def test_closed_database_refuses_writes(tmp_path: Path) -> None:
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as database:
        pass
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(StoreError, match="closed"):
            await database.write(put("a"))


async def test_error_text_omits_the_statement_and_its_values(database: Database) -> None:
    with pytest.raises(StoreError) as raised:
        await database.write(
            lambda c: c.execute(text("insert into cursor values ('secret', null)"))
        )
    assert str(raised.value) == "the database failed: NOT NULL constraint failed: cursor.value"


async def test_traceback_omits_the_values_of_a_statement(database: Database) -> None:
    row = insert(outbox).values(turn="t", part=0, op="send", text=bindparam("said"))
    said = {"said": "hunter2"}
    with pytest.raises(StoreError) as failed:
        await database.write(lambda connection: connection.execute(row, said))
    assert "hunter2" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "TROUPE_DATABASE_URL is not a database URL"),
        ("mysql+aiomysql://host/db", "'mysql\\+aiomysql' is not supported"),
    ],
)
async def test_invalid_url_names_its_setting(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        async with open_database(url):
            pytest.fail("it opened")


async def test_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        async with open_database(f"sqlite:///{tmp_path}/none/troupe.db"):
            pytest.fail("it opened")
    assert str(raised.value).startswith("the database failed: unable to open database file; free ")


async def upgrade_as_a_newer_version(url: str, oldest: str) -> None:
    async with open_database(url) as database:
        await database.write(
            lambda c: c.execute(update(supported_revision).values(oldest=oldest)).rowcount
        )
        newer = text("UPDATE alembic_version SET version_num = '9001'")
        await database.write(lambda c: c.execute(newer).rowcount)


async def test_tables_that_are_too_new_are_refused_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    await upgrade_as_a_newer_version(url, "9000")

    with pytest.raises(SettingsError, match=r"newer version.* 9001, which needs 9000 or newer"):
        async with open_database(url):
            pytest.fail("it opened")


async def test_database_of_an_unreleased_version_is_refused_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    async with open_database(url) as database:
        older = text("UPDATE alembic_version SET version_num = '0031'")
        await database.write(lambda c: c.execute(older).rowcount)

    with pytest.raises(SettingsError, match=r"unreleased version.*0031.* set TROUPE_DATA_DIR or"):
        async with open_database(url):
            pytest.fail("it opened")


async def test_newer_tables_that_support_this_version_are_used(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    await upgrade_as_a_newer_version(url, NEWEST_REVISION)

    async with open_database(url) as database:
        await database.ping()
    assert await read_revision(url) == "9001"

    with pytest.raises(SettingsError, match="would not copy what is new"):
        async with open_without_decrypting(url):
            pytest.fail("it opened")


async def test_unreachable_server_is_one_line_without_the_password() -> None:
    with pytest.raises(StoreError) as raised:
        async with open_database("postgresql+asyncpg://bot:secret@127.0.0.1:1/troupe"):
            pytest.fail("it opened")
    assert "secret" not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_standby_or_recovery_is_named_with_the_remedy() -> None:
    class ReadOnlyError(Exception):
        sqlstate = "25006"

    told = str(translate(ReadOnlyError("cannot execute UPDATE in a read-only transaction")))
    assert "name the primary, or end the recovery (`SELECT pg_promote()`)" in told
