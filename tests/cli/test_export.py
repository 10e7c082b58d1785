"""`troupe export` writes what a person said, and said of themselves, as JSON."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from typer.testing import CliRunner

from bot.chat.incoming import Address
from bot.chat.session import Turn, TurnResult
from bot.cli.app import app
from bot.errors import SettingsError, UserError
from bot.runtime.clock import SystemClock
from bot.settings import read_settings
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.conversations import Conversations
from bot.storage.database import open_database
from bot.storage.inbox import SqlInbox
from bot.storage.operation import AuditLog
from tests.samples import ALICE, BOB, begin, make_incoming

MINE = [("telegram:5", "in a group, é\u202e"), ("telegram:6", "in another one")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def export(*words: str) -> str:
    result = CliRunner().invoke(app, ["export", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def store_words() -> None:
    """Let ALICE say something in two chats, and BOB in one; both describe themselves."""

    async def store() -> None:
        settings, clock = read_settings(), SystemClock()
        said = [(MINE[0], ALICE), (("telegram:5", "not mine"), BOB), (MINE[1], ALICE)]
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            conversations = Conversations(database, clock)
            for number, ((key, text), who) in enumerate(said):
                address = Address("telegram", key.rpartition(":")[2])
                one = make_incoming(text, key=f"{key}:{number}", author=who)
                await SqlInbox(database, clock).receive([replace(one, address=address)], {})
                claim, message = await begin(conversations, key)
                turns = [Turn("user", text, who, one.at), Turn("assistant", "ok", None, one.at)]
                await conversations.finish(claim, message, TurnResult(turns))
                await conversations.release(claim)
            chat_settings = SqlChatSettings(database, clock)
            await chat_settings.set(f"{ALICE.id}@telegram:5", "persona", "a knight", ALICE.id)
            await chat_settings.set(BOB.id, "persona", "a dragon", BOB.id)

    asyncio.run(store())


async def noted() -> Sequence[tuple[str, str, str]]:
    """Return what the audit log says."""
    settings = read_settings()
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        entries = await AuditLog(database).newest(10)
    return [(one.who, one.action, one.subject) for one in entries]


def words_in(text: str) -> Sequence[tuple[str, str]]:
    return [(one["conversation"], one["text"]) for one in json.loads(text)["messages"]]


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_operator_exports_the_own_words_of_a_person(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", Fernet.generate_key().decode())
    monkeypatch.setenv("TROUPE_ENCRYPT_TEXTS", str(is_encrypted))
    store_words()
    stored = b"".join(file.read_bytes() for file in (folder / "data").glob("troupe.db*"))
    assert (b"in another one" in stored) != is_encrypted

    text = export(ALICE.id)

    assert words_in(text) == MINE
    assert json.loads(text)["person"] == ALICE.id
    assert json.loads(text)["descriptions"] == {f"{ALICE.id}@telegram:5": "a knight"}
    assert asyncio.run(noted()) == [("command line", "export person", ALICE.id)]


def test_file_of_an_export_is_for_its_owner_only_and_replaces_none(folder: Path) -> None:
    store_words()
    file = folder / "alice.json"

    assert export("--user", ALICE.id, "--to", str(file)).endswith(
        " holds messages of telegram:1: 2\n"
    )

    written = file.read_bytes()
    assert words_in(written.decode()) == MINE
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match=r"alice\.json exists; give the file another name"):
        export("--user", BOB.id, "--to", str(file))
    assert file.read_bytes() == written
    with pytest.raises(UserError, match=r"alice\.json cannot be written: No such file"):
        export("--user", ALICE.id, "--to", str(folder / "nowhere" / "alice.json"))


@pytest.mark.parametrize(
    ("person", "problem"),
    [
        ("telegarm:1", "'telegarm' is no platform"),
        ("telegram", "--user is a platform and an id, such as"),
        ("telegram:404", "nothing is stored of telegram:404"),
    ],
)
def test_export_of_nobody_is_an_error_and_writes_no_file(
    folder: Path, person: str, problem: str
) -> None:
    store_words()
    with pytest.raises(UserError, match=problem):
        export("--user", person, "--to", "words.json")
    assert not (folder / "words.json").exists()
    assert asyncio.run(noted()) == []


def test_person_who_only_described_themselves_is_exported() -> None:
    async def describe() -> None:
        async with open_database("sqlite:///data/troupe.db") as database:
            await SqlChatSettings(database, SystemClock()).set(BOB.id, "persona", "a dragon", "me")

    asyncio.run(describe())
    text = export("--user", BOB.id)
    assert (words_in(text), json.loads(text)["descriptions"]) == ([], {BOB.id: "a dragon"})


def test_export_before_there_is_a_database_makes_none(folder: Path) -> None:
    with pytest.raises(SettingsError, match="there is no database in"):
        export("--user", ALICE.id)
    assert list((folder / "data").iterdir()) == []
