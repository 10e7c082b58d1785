"""Test the database: migrations, new files, and errors without values."""

import asyncio
import re
import sqlite3
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest
from sqlalchemy import Connection, bindparam, create_engine, insert, text, update
from sqlalchemy.exc import IntegrityError

from bot.chat.session import MAX_CRASHES, MAX_OWN_CRASHES, AttemptState
from bot.errors import SettingsError, StoreError
from bot.storage import migrations
from bot.storage.database import (
    NEWEST_REVISION,
    Database,
    create_tables,
    open_database,
    open_without_decrypting,
    parse_url,
    read_revision,
    read_revisions,
    translate_error,
)
from bot.storage.outbox import ROW_LEASE_SECONDS
from bot.storage.postgres import PostgresPool
from bot.storage.statements import SQL, Rows, Statement, Unit, describe_failure
from bot.storage.tables import cursor, min_code_revision, outbox
from tests.checkout import CHECKOUT
from tests.waiting import PATIENCE_SECONDS


def insert_cursor(name: str) -> Callable[[Connection], str]:
    def unit(connection: Connection) -> str:
        connection.execute(insert(cursor).values(name=name, value="1"))
        return name

    return unit


def test_every_statement_in_a_file_is_used() -> None:
    files = (CHECKOUT.glob(f"bot/storage/*.{kind}") for kind in ("py", "sql", "toml"))
    texts = "".join(file.read_text() for each in files for file in each)
    begun = tuple(re.findall(r'SQL\[f"(\w+)\{', texts))  # the rest of the name is a value
    named = {*re.findall(r"[\"'](\w+)[\"']", texts), *re.findall(r"\{(\w+)", texts)}
    assert {one for one in SQL if not one.startswith(begun)} <= named


def test_numbers_in_statements_equal_the_constants_in_code() -> None:
    limits = f"own_crashes >= {MAX_OWN_CRASHES} OR crashes >= {MAX_CRASHES}"
    assert limits in SQL["end_message"].text
    assert f":now + {ROW_LEASE_SECONDS:g} " in SQL["take_lane"].text
    assert [one.name for one in sorted(AttemptState)] == [
        "NONE",
        "WITH_OTHERS",
        "RUNS_ALONE",
        "DEFERRED",
    ]


async def test_closed_database_refuses_writes(tmp_path: Path) -> None:
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as database:
        pass
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(StoreError, match="closed"):
            await database.write(insert_cursor("a"))


async def test_new_file_is_opened_while_another_process_writes_to_it(tmp_path: Path) -> None:
    file = tmp_path / "troupe.db"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        opening = group.create_task(_open_and_read(f"sqlite:///{file}"))
        await asyncio.sleep(0.2)  # SQLite refuses to turn on the log now
        other.close()
    assert opening.result() == NEWEST_REVISION


async def _open_and_read(url: str) -> str | None:
    async with open_database(url) as database:
        return (await database.read(read_revisions)).current


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
async def test_invalid_url_error_names_its_setting(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        async with open_database(url):
            pytest.fail("it opened")


async def test_missing_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        async with open_database(f"sqlite:///{tmp_path}/none/troupe.db"):
            pytest.fail("it opened")
    assert str(raised.value).startswith("the database failed: unable to open database file; free ")


async def set_revision(url: str, revision: str, oldest: str | None) -> None:
    """Set the revision of a database, and the oldest program revision that can use it."""
    async with open_database(url) as database:
        if oldest is not None:
            values = update(min_code_revision).values(oldest=oldest)
            await database.write(lambda c: c.execute(values).rowcount)
        other = text("UPDATE alembic_version SET version_num = :r").bindparams(r=revision)
        await database.write(lambda c: c.execute(other).rowcount)


@pytest.mark.parametrize(
    ("revision", "told"),
    [
        ("9001", r"newer version.* 9001, which needs 9000 or newer"),
        ("0031", r"another version of Troupe; start that version: .*0031"),
    ],
)
async def test_unsupported_database_revisions_are_refused(
    tmp_path: Path, revision: str, told: str
) -> None:
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    await set_revision(url, revision, "9000" if revision == "9001" else None)

    with pytest.raises(SettingsError, match=told):
        async with open_database(url):
            pytest.fail("it opened")


async def test_newer_tables_that_support_this_version_are_used(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    await set_revision(url, "9001", NEWEST_REVISION)

    async with open_database(url) as database:
        await database.ping()
    assert await read_revision(url) == "9001"

    with pytest.raises(SettingsError, match="would not copy its new tables"):
        async with open_without_decrypting(url):
            pytest.fail("it opened")


async def test_unreachable_server_is_reported_in_one_line_without_the_password() -> None:
    with pytest.raises(StoreError) as raised:
        async with open_database("postgresql+asyncpg://bot:secret@127.0.0.1:1/troupe"):
            pytest.fail("it opened")
    assert "secret" not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_read_only_server_is_reported_with_the_remedy() -> None:
    class ReadOnlyError(Exception):
        sqlstate = "25006"

    told = str(translate_error(ReadOnlyError("cannot execute UPDATE in a read-only transaction")))
    assert "use the primary's address, or end the recovery (`SELECT pg_promote()`)" in told


@pytest.mark.slow
def test_tables_of_a_new_file_equal_those_of_the_migrations(tmp_path: Path) -> None:
    created, migrated = tmp_path / "created.db", tmp_path / "migrated.db"
    with create_engine(f"sqlite:///{created}").begin() as connection:
        assert create_tables(connection)
    with create_engine(f"sqlite:///{migrated}").begin() as connection:
        migrations.upgrade(connection)
    assert schema(created) == schema(migrated)


async def test_existing_tables_are_upgraded_by_migrations(tmp_path: Path) -> None:
    with create_engine(f"sqlite:///{tmp_path / 'old.db'}").begin() as connection:
        connection.exec_driver_sql("CREATE TABLE old (id INTEGER)")
        assert not create_tables(connection)


async def test_new_file_is_at_the_newest_revision(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    async with open_database(url):
        pass
    with create_engine(url).begin() as connection:
        migrations.upgrade(connection)  # has nothing to do
    assert "turn" in schema(tmp_path / "new.db")


def schema(file: Path) -> dict[str, Any]:
    """Describe tables and indexes, regardless of column order and SQL formatting."""
    connection = sqlite3.connect(file)
    described: dict[str, Any] = dict(
        connection.execute(
            "SELECT name, instr(sql, 'AUTOINCREMENT') > 0 FROM sqlite_master WHERE type = 'table'"
        )
    )
    for table in list(described):
        columns = sorted(row[1:] for row in connection.execute(f"PRAGMA table_info({table})"))
        indexes = [
            (_index(connection, name), *more)
            for _, name, *more in connection.execute(f"PRAGMA index_list({table})")
        ]
        described[table] = described[table], columns, sorted(indexes)
    connection.close()
    return described


def _index(connection: sqlite3.Connection, name: str) -> tuple[str, list[str], str]:
    columns = [row[2] for row in connection.execute(f"PRAGMA index_info({name})")]
    found = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", [name]).fetchone()
    if not found[0]:  # of a constraint
        return "", columns, ""
    return name, columns, found[0].partition(" WHERE ")[2].strip("()")


ROW = "Failing row contains (1, words of people)."
_ONE = Statement("SELECT 1")


def server_error(state: str, text: str, detail: str = "") -> asyncpg.PostgresError:
    fields = {"S": "ERROR", "C": state, "M": text, **({"D": detail} if detail else {})}
    error = asyncpg.PostgresError.new(fields)
    assert isinstance(error, asyncpg.PostgresError)
    return error


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (server_error("23514", "a check is violated", ROW), "a check is violated"),
        (
            server_error("22P02", 'invalid input syntax for type json: "words"'),
            "InvalidTextRepresentationError (22P02)",
        ),
        (
            asyncpg.InterfaceError("invalid input for query argument $5: 'words' (expected int)"),
            "invalid input for query argument $5",
        ),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_failure_is_described_without_values(error: Exception, described: str) -> None:
    assert describe_failure(error) == described
    by_sqlalchemy = IntegrityError("INSERT", {"text": "words"}, error)
    assert str(translate_error(by_sqlalchemy)) == f"the database failed: {described}"


class FailingConnection:
    """A connection, and its pool, on which every statement fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_terminated = False

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self

    def acquire(self) -> Self:
        return self

    async def release(self, *_: object, **_options: float) -> None:
        pass

    async def fetch(self, *_: object) -> Rows:
        raise self.error

    def terminate(self) -> None:
        self.is_terminated = True


def unit() -> Unit[int]:
    rows = yield _ONE.query_alone()
    return int(rows[0][0])


@pytest.mark.parametrize(
    ("error", "is_terminated"),
    [
        (server_error("23514", "a check is violated", ROW), False),
        (asyncpg.InternalClientError("another operation (2) is in progress"), True),
    ],
)
async def test_failing_unit_raises_store_error_and_closes_a_broken_connection(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_terminated: bool
) -> None:
    connection = FailingConnection(error)
    monkeypatch.setattr(asyncpg, "create_pool", lambda *_, **__: connection)
    with pytest.raises(StoreError) as failed:
        await PostgresPool(parse_url("postgresql://nowhere")).run(unit)
    assert "words" not in "".join(traceback.format_exception(failed.value))
    assert connection.is_terminated is is_terminated
