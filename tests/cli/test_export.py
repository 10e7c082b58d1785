"""`troupe export` writes what a person said, and said of themselves, as JSON."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from bot.chat.incoming import Address
from bot.chat.session import Turn
from bot.errors import SettingsError, UserError
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from tests.cli.command import audited, troupe, use_database
from tests.samples import ALICE, BOB, make_incoming
from tests.support.answers import store_answer

MINE = [("telegram:5", "in a group, é\u202e"), ("telegram:6", "in another one")]


def export(*words: str) -> str:
    return troupe("export", *words)


def store_words() -> None:
    """Let ALICE say something in two chats, and BOB in one; both describe themselves."""

    async def store(database: Database) -> None:
        said = [(MINE[0], ALICE), (("telegram:5", "not mine"), BOB), (MINE[1], ALICE)]
        for number, ((key, text), who) in enumerate(said):
            one = make_incoming(text, key=f"{key}:{number}", author=who)
            one = replace(one, address=Address("telegram", key.rpartition(":")[2]))
            turns = [Turn("user", text, who, one.at), Turn("assistant", "ok", None, one.at)]
            await store_answer(database, incoming=one, turns=turns)
        chat_settings = SqlChatSettings(database, SystemClock())
        await chat_settings.set(f"{ALICE.id}@telegram:5", "persona", "a knight", ALICE.id)
        await chat_settings.set(BOB.id, "persona", "a dragon", BOB.id)

    use_database(store)


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
    assert audited() == [("command line", "export person", ALICE.id)]


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
        ("telegarm:1", "'telegarm' is not a platform"),
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
    assert audited() == []


def test_person_who_only_described_themselves_is_exported() -> None:
    use_database(
        lambda database: SqlChatSettings(database, SystemClock()).set(
            BOB.id, "persona", "a dragon", "me"
        )
    )
    text = export("--user", BOB.id)
    assert (words_in(text), json.loads(text)["descriptions"]) == ([], {BOB.id: "a dragon"})


def test_export_before_there_is_a_database_makes_none(folder: Path) -> None:
    with pytest.raises(SettingsError, match="there is no database in"):
        export("--user", ALICE.id)
    assert list(folder.iterdir()) == []
