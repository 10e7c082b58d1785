"""Contract of copies from SQLite or PostgreSQL into an empty database of either kind."""

import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Table, func, insert, select, update
from sqlalchemy import delete as delete_from

from bot.chat.incoming import IncomingMessage
from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.codec import TextEncryption
from bot.storage.conversations import Conversations
from bot.storage.copying import COPIED_TABLES, back_up, copy_rows
from bot.storage.database import Database, open_database, open_without_decrypting
from bot.storage.inbox import SqlInbox
from bot.storage.tables import inbox, node, outbox, turn
from tests.postgres import create_postgres_database
from tests.samples import begin, make_incoming
from tests.support.store import Store

_ROWS = 601
"""More rows than a page, and not a multiple of the page size."""
_FEW_ROWS = 3


@pytest.fixture
def encryption() -> TextEncryption:
    """Return encryption without keys, because a separate test copies encrypted texts."""
    return TextEncryption()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    if request.param == "postgresql":
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    async with open_database(url) as database:
        yield database


def make_value(column: Any, number: int) -> Any:
    if column.name == "owner" and column.nullable:
        return None  # nobody works on it
    values = {bool: number % 2 == 0, int: number, bytes: bytes([0, number % 256, 255])}
    values[float] = 1_763_000_000.123456 + number / 7
    values[str] = f"Zo\u00eb \U0001f600 {'aZ_-'[number % 4]}{number:05}\r\n"
    return values[column.type.python_type]


def count_rows(table: Table) -> int:
    return _ROWS if table in {inbox, turn} else _FEW_ROWS


def make_rows(table: Table) -> list[dict[str, Any]]:
    numbers = range(1, count_rows(table) + 1)
    return [{c.name: make_value(c, number) for c in table.columns} for number in numbers]


async def fill(database: Database, *tables: Table) -> None:
    for table in tables or COPIED_TABLES:
        rows = make_rows(table)
        await database.write(lambda c, t=table, r=rows: c.execute(insert(t), r).rowcount)  # type: ignore[misc]


async def copy(store: Store, target: Database) -> dict[str, int]:
    """Copy a database; return the reported numbers of rows, by table."""
    reported: dict[str, int] = {}
    assert await copy_rows(store.database, target, reported.__setitem__) == sum(reported.values())
    return reported


async def count_all(database: Database) -> int:
    counts = [select(func.count()).select_from(table) for table in COPIED_TABLES]
    return await database.read(lambda c: sum(c.execute(one).scalar_one() for one in counts))


async def test_every_row_of_every_table_is_copied(store: Store, target: Database) -> None:
    await fill(store.database)
    reported = await copy(store, target)
    assert reported == {table.name: count_rows(table) for table in COPIED_TABLES}
    assert await count_all(target) == sum(reported.values())
    half = delete_from(turn).where(turn.c.id > _ROWS // 2)
    await target.write(lambda c: c.execute(half).rowcount)
    assert await copy(store, target) == reported, "a copy that was interrupted goes on"
    assert await count_all(target) == sum(reported.values())


async def test_ids_of_new_rows_continue_after_the_largest_copied_id(
    store: Store, target: Database
) -> None:
    await fill(store.database, inbox, outbox)
    largest = update(inbox).where(inbox.c.id == _ROWS).values(id=25_000_000_000)
    await store.write(largest)
    await copy(store, target)
    await SqlInbox(target, SystemClock()).receive([make_incoming()], {})
    newest = select(func.max(inbox.c.id))
    assert await target.read(lambda c: c.execute(newest).scalar()) == 25_000_000_001


async def test_encrypted_texts_are_copied_unchanged(empty_database: str, tmp_path: Path) -> None:
    encryption = TextEncryption([Fernet.generate_key().decode()], encrypts_new_texts=True)
    target_url = f"sqlite:///{tmp_path / 'copied.db'}"
    async with open_database(empty_database, encryption) as database:
        await SqlInbox(database, SystemClock()).receive([make_incoming(text="to be copied")], {})
    async with (
        open_without_decrypting(empty_database) as source,
        open_without_decrypting(target_url) as copied,
    ):
        await copy_rows(source, copied, lambda _table, _rows: None)
    assert b"to be copied" not in (tmp_path / "copied.db").read_bytes()
    async with open_database(target_url, encryption) as database:
        _claim, message = await begin(Conversations(database, SystemClock()))
    assert isinstance(message.incoming, IncomingMessage)
    assert message.incoming.text == "to be copied"


async def test_used_target_database_is_refused_and_not_changed(
    store: Store, target: Database
) -> None:
    await store.inbox.receive([make_incoming(text="to be copied")], {})
    await SqlInbox(target, SystemClock()).receive([make_incoming(text="of another one")], {})
    before = await count_all(target)
    with pytest.raises(StoreError, match=r"differ in table \w+, row .*nothing else has used"):
        await copy(store, target)
    assert await count_all(target) == before


async def test_database_in_use_is_not_copied(store: Store, target: Database) -> None:
    await store.inbox.receive([make_incoming()], {})
    await begin(store.conversations)
    with pytest.raises(StoreError, match="stop all processes"):
        await copy(store, target)


async def test_copy_is_refused_while_an_idle_process_uses_postgresql(
    store: Store, target: Database
) -> None:
    """For SQLite, the lock of the data directory prevents this; a killed process releases it."""
    row = {"owner": "idle", "roles": "all", "version": "1", "started_at": 0.0}
    row |= {"seen_at": SystemClock().now()}
    await store.write(insert(node), row)
    if not store.database.is_sqlite:
        with pytest.raises(StoreError, match="is using this database, or was killed less than 30"):
            await copy(store, target)
        await store.write(update(node).values(seen_at=node.c.seen_at - 31))
    assert sum((await copy(store, target)).values()) > 0


async def test_copied_database_accepts_new_messages(store: Store, target: Database) -> None:
    await store.inbox.receive([make_incoming(text="before")], {})
    await copy(store, target)
    await SqlInbox(target, SystemClock()).receive([make_incoming(key="later", text="after")], {})
    rows = await target.read(lambda c: c.execute(select(inbox.c.id).order_by(inbox.c.id)).all())
    assert [row.id for row in rows] == [1, 2]
    _claim, message = await begin(Conversations(target, SystemClock()))
    assert isinstance(message.incoming, IncomingMessage)
    assert message.incoming.text == "before"


def test_backup_is_made_while_the_database_is_written(tmp_path: Path) -> None:
    file, stopped = tmp_path / "troupe.db", threading.Event()
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE pair (first INTEGER, second INTEGER)")

    def write() -> None:
        with contextlib.closing(sqlite3.connect(file)) as writer:
            number = 0
            while not stopped.is_set():
                number += 1
                with writer:
                    writer.execute("INSERT INTO pair VALUES (?, ?)", (number, number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        size = back_up(file, tmp_path / "copy.db")
    finally:
        stopped.set()
        thread.join()
    assert size == (tmp_path / "copy.db").stat().st_size
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT count(*) FROM pair WHERE first != second").fetchone() == (0,)
    assert sorted(found.name for found in tmp_path.glob("copy*")) == ["copy.db"]


def test_backup_never_overwrites_a_file(tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(StoreError, match="choose another name for the backup"):
        back_up(tmp_path / "troupe.db", tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_failed_backup_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "troupe.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match="could not be created: file is not a database"):
        back_up(tmp_path / "troupe.db", tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy*"))
