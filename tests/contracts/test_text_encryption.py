"""Contract of encryption at rest: turning it on and off, and rotating keys; both databases."""

import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import LargeBinary, Text, insert, select, update

from bot.chat.session import Summary, Turn, fingerprint_turns
from bot.errors import SettingsError, StoreError
from bot.runtime.clock import SystemClock
from bot.storage.codec import TextEncryption
from bot.storage.column_types import list_encryptable_columns
from bot.storage.conversations import Conversations
from bot.storage.database import Database, open_database, open_without_decrypting
from bot.storage.inbox import SqlInbox
from bot.storage.rewriting import rewrite_texts
from bot.storage.summaries import SqlSummaries
from bot.storage.tables import metadata, min_code_revision, provider_key, turn
from bot.telemetry.secret_masker import SecretMasker
from tests.checkout import CHECKOUT
from tests.samples import ALICE, begin, make_incoming, read_session
from tests.support.store import LANE, NOON, finish, open_store, present

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
OFF, ON = TextEncryption([OLD]), TextEncryption([OLD], encrypts_new_texts=True)
ROTATED = TextEncryption([NEW, OLD], encrypts_new_texts=True)
NO_KEY = TextEncryption()
WORD = "canary words"
COLUMNS = [column for table in metadata.sorted_tables for column in list_encryptable_columns(table)]
NOT_WORDS = json.loads(Path(__file__).with_name("plain_columns.json").read_text())
"""The columns that are never encrypted: ids, names of settings, hashes, tokens, vectors."""


def make_row(table: Any) -> dict[str, Any]:
    values: Mapping[type, Any] = {str: WORD, bytes: WORD.encode(), int: 1, float: 1.0, bool: True}
    row = {one.name: values[one.type.python_type] for one in table.columns}
    return row | {"role": "user"} if table is turn else row


async def fill(database: Database) -> None:
    """Store a row in every table, with a word in every encryptable column."""
    for table in metadata.sorted_tables:
        row = make_row(table)
        if table not in {provider_key, min_code_revision}:
            await database.write(lambda c, t=table, r=row: c.execute(insert(t), r).rowcount)  # type: ignore[misc]


async def fill_new(url: str, encryption: TextEncryption) -> None:
    async with open_database(url, encryption) as database:
        await fill(database)


async def read_values(database: Database) -> Mapping[str, str | bytes]:
    """Return the value that a database reads from each encryptable column."""
    found = {}
    for column in COLUMNS:
        query = select(column)
        found[str(column)] = await database.read(lambda c, q=query: c.execute(q).scalar())  # type: ignore[misc]
    return found


async def stored_values(url: str) -> Mapping[str, str | bytes]:
    async with open_without_decrypting(url) as database:
        return await read_values(database)


async def expect_refusal(url: str, encryption: TextEncryption) -> None:
    with pytest.raises(SettingsError, match="TROUPE_ENCRYPTION_KEYS"):
        async with open_database(url, encryption):
            pytest.fail("it opened")


def is_plain(value: str | bytes) -> bool:
    return value in {WORD, WORD.encode()}


def nothing(_table: str, _rows: int) -> None:
    """Ignore the progress report."""


def test_every_text_column_is_encryptable_or_contains_no_messages() -> None:
    for table in metadata.sorted_tables:
        plain = {one.name for one in table.columns if isinstance(one.type, Text | LargeBinary)}
        assert plain == set(NOT_WORDS.get(table.name, ())), table.name


async def test_every_encryptable_column_is_encrypted_and_read_back(empty_database: str) -> None:
    async with open_database(empty_database, ON) as database:
        await fill(database)
        assert all(map(is_plain, (await read_values(database)).values()))
    for name, value in (await stored_values(empty_database)).items():
        assert WORD not in str(value), name


async def test_encryption_can_be_turned_on_and_off(empty_database: str) -> None:
    await fill_new(empty_database, OFF)
    assert all(map(is_plain, (await stored_values(empty_database)).values())), "it is off by itself"
    reported: dict[str, int] = {}
    tables = {column.table.name for column in COLUMNS}
    async with open_database(empty_database, ON) as database:
        assert all(map(is_plain, (await read_values(database)).values()))
        assert await rewrite_texts(database, reported.__setitem__) == len(tables)
        assert await rewrite_texts(database, nothing) == 0
    assert reported.keys() == tables
    assert not any(map(is_plain, (await stored_values(empty_database)).values()))
    await expect_refusal(empty_database, NO_KEY)
    async with open_database(empty_database, OFF) as database:
        assert await rewrite_texts(database, nothing) == len(tables)
    assert all(map(is_plain, (await stored_values(empty_database)).values()))
    async with open_database(empty_database, NO_KEY) as database:
        assert all(map(is_plain, (await read_values(database)).values()))


@pytest.mark.parametrize("keys", [(), (NEW,)])
@pytest.mark.parametrize("is_on", [True, False])
async def test_wrong_encryption_key_is_reported(
    empty_database: str, keys: Sequence[str], *, is_on: bool
) -> None:
    await fill_new(empty_database, ON)
    before = await stored_values(empty_database)
    await expect_refusal(empty_database, TextEncryption(keys, encrypts_new_texts=is_on))
    assert await stored_values(empty_database) == before


async def test_rotated_texts_need_only_the_new_key(empty_database: str) -> None:
    await fill_new(empty_database, ON)
    async with open_database(empty_database, ROTATED) as database:
        assert await rewrite_texts(database, nothing) > 0
        assert await rewrite_texts(database, nothing) == 0
    await expect_refusal(empty_database, ON)
    async with open_database(
        empty_database, TextEncryption([NEW], encrypts_new_texts=True)
    ) as database:
        assert all(map(is_plain, (await read_values(database)).values()))


async def test_running_process_reads_a_key_that_was_added_to_its_file(
    empty_database: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD, encoding="utf-8")
    async with open_database(empty_database, TextEncryption([OLD], True, file)) as other:
        await fill_new(empty_database, ROTATED)
        query = select(turn.c.text)
        with pytest.raises(StoreError, match="TROUPE_ENCRYPTION_KEYS"):
            await other.read(lambda c: c.execute(query).scalar())
        file.write_text(f"{NEW}\n{OLD}", encoding="utf-8")
        assert await other.read(lambda c: c.execute(query).scalar()) == WORD
        assert NEW not in SecretMasker(()).mask(f"key {NEW}")


async def test_texts_forgotten_during_rewriting_stay_deleted(empty_database: str) -> None:
    await fill_new(empty_database, NO_KEY)
    async with open_database(empty_database, ON) as database:
        gone = update(turn).values(text="")
        async with asyncio.TaskGroup() as group:
            group.create_task(rewrite_texts(database, nothing))
            group.create_task(database.write(lambda c: c.execute(gone).rowcount))
        assert await database.read(lambda c: c.execute(select(turn.c.text)).scalar()) == ""


async def test_summary_stays_valid_when_the_turns_are_rewritten(empty_database: str) -> None:
    async with open_store(empty_database, NO_KEY) as store:
        turns = [Turn("user", one, ALICE, NOON) for one in ("日本", "two", "three")]
        await finish(store, turns=turns)
        summaries = SqlSummaries(store.database)
        covered = (await summaries.load_whole_session(LANE)).turns
        saved = Summary(1, covered[-1].id, fingerprint_turns(covered), "They count.")
        assert await summaries.save(LANE, saved)
    for encryption in (ON, OFF):
        async with open_database(empty_database, encryption) as database:
            assert await rewrite_texts(database, nothing) > 0
            found = present(await SqlSummaries(database).current(LANE))
            assert found.text == "They count."


async def test_process_with_encryption_off_reads_encrypted_texts(empty_database: str) -> None:
    async with open_database(empty_database, OFF) as one, open_database(empty_database) as blind:
        async with open_database(empty_database, ON) as other:
            await SqlInbox(other, SystemClock()).receive([make_incoming(text=WORD)], {})
        with pytest.raises(StoreError, match="TROUPE_ENCRYPTION_KEYS"):
            await begin(Conversations(blind, SystemClock()))
        _claim, message = await begin(Conversations(one, SystemClock()))
    assert WORD in str(message.incoming)


_KILLED = """
import asyncio, os, signal, sys
from bot.storage.codec import TextEncryption
from bot.storage.rewriting import rewrite_texts
from bot.storage.database import open_database

url, key = sys.argv[1:]

def die(table, _rows):
    if table == "preset_version":
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_database(url, TextEncryption([key], encrypts_new_texts=True)) as database:
        await rewrite_texts(database, die)

asyncio.run(main())
"""


async def test_interrupted_rewriting_can_be_resumed(empty_database: str) -> None:
    await fill_new(empty_database, NO_KEY)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _KILLED, empty_database, OLD), cwd=CHECKOUT
    )
    assert await process.wait() == -signal.SIGKILL
    stored = (await stored_values(empty_database)).values()
    assert {is_plain(one) for one in stored} == {True, False}
    async with open_database(empty_database, ON) as database:
        assert (await read_session(database, WORD)).turns[0].text == WORD
        assert await rewrite_texts(database, nothing) > 0
    assert not any(map(is_plain, (await stored_values(empty_database)).values()))
