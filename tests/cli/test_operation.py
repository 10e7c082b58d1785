"""Operator commands: nodes, jobs, dead letters, pauses, backups, and personal data."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select, update

from bot.chat.access import COMMAND_LINE_ACTOR
from bot.chat.incoming import Address, ForgetRequest
from bot.chat.session import PresetVersion, Turn
from bot.chat.usage import AnswerCharge
from bot.cli.installation import format_age
from bot.errors import SettingsError, StoreError, UserError
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.storage.leases import SqlRoleLeases
from bot.storage.operation import NodeRegistry
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.presets import PresetVersions
from bot.storage.rows import decode_event
from bot.storage.tables import inbox, node
from tests.cli.command import read_audit_log, troupe, use_database
from tests.samples import ALICE, BOB, make_incoming
from tests.support.store import RECEIPT, Store, refuse_answer, set_aside, store_answer

LIST = ("dead-letters", "list")


def run(*words: str) -> list[str]:
    return troupe(*words).splitlines()


async def do_nothing(_database: Database) -> None:
    return


def on_store(make: Callable[[Store], Awaitable[None]]) -> Callable[[Database], Awaitable[object]]:
    async def act(database: Database) -> None:
        clock = SystemClock()
        sender = SenderIdentity("me", 0)
        store = object.__new__(Store)
        store.database = database
        store.inbox = SqlInbox(database, clock)
        store.conversations = Conversations(database, clock)
        store.outbox = SqlOutbox(database, clock, sender)
        await make(store)

    return act


def check_audit(*actions: str) -> None:
    assert [(who, action) for who, action, _ in read_audit_log()] == [
        (COMMAND_LINE_ACTOR, a) for a in actions
    ]


def test_processes_and_jobs_are_listed_and_a_dead_process_is_shown_as_silent() -> None:
    async def start(database: Database) -> None:
        nodes = NodeRegistry(database, SystemClock())
        await nodes.register("host:1", "gateway,worker", "0.2.0")
        await SqlRoleLeases(database, "host:1", SystemClock()).take("receive telegram", 60)
        silent = update(node).values(seen_at=node.c.seen_at - 300)
        await database.write(lambda c: c.execute(silent).rowcount)

    use_database(do_nothing)
    assert run("nodes") == ["no process has reported; is the service running on this database?"]
    assert run("jobs")[0] == "no role is leased: with SQLite, one process does everything"
    use_database(start)
    head, line = run("nodes")
    assert head.split() == ["process", "roles", "version", "up", "seen", "answering", "holds"]
    assert "host:1" in line
    assert "gateway,worker" in line
    assert "5 min ago (silent)" in line
    assert line.endswith("receive telegram")
    jobs = run("jobs")
    assert jobs[1].split()[:3] == ["receive", "telegram", "host:1"]
    assert any(line.startswith("conversations waiting") for line in jobs)


@pytest.mark.parametrize("make", [set_aside, refuse_answer])
def test_dead_letter_is_listed_shown_retried_and_dropped(
    make: Callable[[Store], Awaitable[None]],
) -> None:
    use_database(on_store(make))
    _, line = run(*LIST)
    name, words = line.split()[0], {"poison", "an answer"}
    assert not any(one in line for one in words), "a list has no words of people"
    assert run("dead-letters", "show", name)[0] in words
    report = f"{name} will be retried in the conversation telegram:5"
    assert run("dead-letters", "retry", name) == [report]
    assert run(*LIST) == ["there are no dead letters"]
    check_audit("retry dead letter")

    use_database(on_store(make) if make is set_aside else _kill_again)
    _, line = run(*LIST)
    name = line.split()[0]
    assert run("dead-letters", "drop", name) == [f"dropped {name}"]
    assert run(*LIST) == ["there are no dead letters"]
    with pytest.raises(UserError, match=f"there is no dead letter '{name}'"):
        run("dead-letters", "drop", name)
    check_audit("retry dead letter", "drop dead letter")


async def _kill_again(database: Database) -> None:
    outbox = SqlOutbox(database, SystemClock(), SenderIdentity("me", 0))
    [row] = await outbox.reserve_due_rows(["telegram:5"])
    await outbox.give_up(row, "the chat is closed")


def test_pause_and_resume_are_announced_and_audited() -> None:
    use_database(do_nothing)
    assert run("pause") == ["paused: all; takes effect within 2 seconds in every process"]
    with pytest.raises(UserError, match="all is already paused; `troupe resume` ends the pause"):
        run("pause")
    run("pause", "--channel", "telegram:-100")
    assert run("resume") == ["resumed: all; still paused: telegram:-100"]
    with pytest.raises(UserError, match="all is not paused; still paused: telegram:-100"):
        run("resume")
    assert run("resume", "--channel", "telegram:-100") == ["resumed: telegram:-100"]
    check_audit("pause answering", "pause answering", "resume answering", "resume answering")


@pytest.mark.parametrize(
    "words", [["nodes"], ["jobs"], ["pause"], LIST, ["export", "--user", ALICE.id]]
)
def test_commands_do_not_create_a_missing_database(words: list[str], folder: Path) -> None:
    with pytest.raises(SettingsError, match="there is no database in"):
        run(*words)
    assert list(folder.iterdir()) == []


def test_backup_is_restored_and_the_old_database_is_kept(folder: Path) -> None:
    use_database(do_nothing)
    run("db", "backup", "backup.db")
    use_database(on_store(set_aside))
    (folder / "data" / "slots").mkdir()
    assert len(run(*LIST)) > 1

    assert run("db", "restore", "backup.db")[-1] == (
        "restored backup.db; the old database was kept as data/troupe.db.replaced."
        " Now start the service"
    )

    assert run(*LIST) == ["there are no dead letters"]
    check_audit("restore database")
    found = sorted(one.name for one in (folder / "data").iterdir())
    assert "slots" not in found, "what models keep may be of what was forgotten"
    assert {"troupe.db", "troupe.db.replaced"} <= set(found)
    assert not [name for name in found if "restoring" in name]
    assert (folder / "data" / "troupe.db").stat().st_mode & 0o077 == 0


def test_failed_restore_reports_the_problem_and_changes_nothing(folder: Path) -> None:
    use_database(on_store(set_aside))
    (folder / "text.db").write_text("a text")
    with pytest.raises(StoreError, match=r"the backup text\.db cannot be restored"):
        run("db", "restore", "text.db")
    with pytest.raises(StoreError, match="No such file"):
        run("db", "restore", "none.db")
    with pytest.raises(UserError, match=r"there is no file other\.jsonl"):
        run("db", "restored", "--forgotten", "other.jsonl")
    with pytest.raises(UserError, match="'soon' is not a time"):
        run("db", "restored", "--answered-until", "soon")
    assert len(run(*LIST)) > 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (-1, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_ages_use_a_suitable_unit(seconds: float | None, shown: str) -> None:
    assert format_age(seconds) == shown


async def talk_in_two_channels(database: Database) -> None:
    """Store answers to ALICE and BOB in a channel and its topic, and to ALICE in a second one."""
    said = [("5", None, ALICE), ("5", "7", BOB), ("6", None, ALICE)]
    for number, (chat, thread, who) in enumerate(said):
        incoming = make_incoming("hi", key=f"{chat}:{number}", author=who)
        incoming = replace(incoming, address=Address("telegram", chat, thread))
        server = "discord:guild:1" if chat == "6" else None
        receipt = replace(RECEIPT, charge=AnswerCharge(person=who.id, server=server))
        turns = [Turn("user", "hi", who, incoming.at)]
        await store_answer(database, receipt, incoming=incoming, turns=turns)


def deletion_requests() -> list[tuple[str, str | None]]:
    async def read(database: Database) -> list[tuple[str, str | None]]:
        query = select(inbox.c.conversation, inbox.c.kind, inbox.c.payload).where(
            inbox.c.state == "new"
        )
        found = []
        for row in await database.read(lambda c: c.execute(query).all()):
            event = decode_event(row.kind, row.payload)
            assert isinstance(event, ForgetRequest)
            found.append((row.conversation, event.person_id))
        return sorted(found, key=str)

    return use_database(read)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ([], ALICE.id, [("telegram:5", ALICE.id), ("telegram:6", ALICE.id)]),
        (["--user"], ALICE.id, [("telegram:5", ALICE.id), ("telegram:6", ALICE.id)]),
        (["--channel"], "telegram:5", [("telegram:5", None), ("telegram:5:7", None)]),
        (["--server"], "discord:guild:1", [("telegram:6", None)]),
        (["--channel"], "telegram:55", []),
    ],
)
def test_operator_deletes_conversations(
    option: list[str], value: str, expected: list[tuple[str, str | None]]
) -> None:
    use_database(talk_in_two_channels)
    [line] = run("forget", *option, value)
    assert line == f"conversations in which {value} will be forgotten: {len(expected)}"
    assert deletion_requests() == expected


@pytest.mark.parametrize(
    ("option", "place", "is_kept"),
    [
        ("--channel", "telegram:1", True),  # a private chat
        ("--channel", "telegram:-1", False),
        ("--user", "telegram:1", False),
    ],
)
def test_forgetting_a_person_deletes_their_characters(
    option: str, place: str, *, is_kept: bool
) -> None:
    name = f"{place}/Mira"

    async def create(database: Database) -> None:
        versions = PresetVersions(database, SystemClock())
        await versions.save([PresetVersion(name, "{}", 1, place)])

    async def exists(database: Database) -> bool:
        return await PresetVersions(database, SystemClock()).newest(name) is not None

    use_database(create)
    run("forget", option, place)
    assert use_database(exists) is is_kept


def test_operator_can_delete_only_one_subject_at_a_time() -> None:
    use_database(do_nothing)
    for words in ((), ("--user", "telegram:1", "--channel", "telegram:5")):
        with pytest.raises(UserError, match="use exactly one of --user"):
            run("forget", *words)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("forget", "--user", "telegarm:1"), "'telegarm' is not a platform"),
        (("forget", "--user", "telegram"), "--user must be a platform and an id, such as"),
        (("forget", "--server", "guild:1"), "'guild' is not a platform"),
        (("forget", "--channel", "discord:guild:1"), "is a server; use one of its channels"),
        (("pause", "--channel", "discord:guild:1"), "is a server; use one of its channels"),
        (
            ("pause", "--platform", "irc"),
            "'irc' is not a platform; the platforms are: discord, telegram",
        ),
        (("pause", "--channel", "12345"), "'12345' is not a platform"),
        (("pause", "--channel", "telegram:"), "--channel must be a platform and an id"),
        (("pause", "--platform", "telegram", "--channel", "telegram:1"), "either --platform or"),
    ],
)
def test_malformed_platform_keys_are_rejected(words: tuple[str, ...], problem: str) -> None:
    use_database(do_nothing)
    with pytest.raises(UserError, match=problem):
        run(*words)
    assert deletion_requests() == []


ALICES_MESSAGES = [("telegram:5", "in a group, é\u202e"), ("telegram:6", "in another one")]


def export(*words: str) -> str:
    return troupe("export", *words)


def store_words() -> None:
    """Store messages from ALICE in two chats and BOB in one, and a self-description of each."""

    async def store(database: Database) -> None:
        said = [
            (ALICES_MESSAGES[0], ALICE),
            (("telegram:5", "not mine"), BOB),
            (ALICES_MESSAGES[1], ALICE),
        ]
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
def test_operator_exports_a_persons_own_messages(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", Fernet.generate_key().decode())
    monkeypatch.setenv("TROUPE_ENCRYPT_TEXTS", str(is_encrypted))
    store_words()
    stored = b"".join(file.read_bytes() for file in (folder / "data").glob("troupe.db*"))
    assert (b"in another one" in stored) != is_encrypted

    text = export(ALICE.id)

    assert words_in(text) == ALICES_MESSAGES
    assert json.loads(text)["person"] == ALICE.id
    assert json.loads(text)["descriptions"] == {f"{ALICE.id}@telegram:5": "a knight"}
    assert read_audit_log() == [("command line", "export person", ALICE.id)]


def test_export_file_is_private_and_never_overwrites_a_file(folder: Path) -> None:
    store_words()
    file = folder / "alice.json"

    assert export("--user", ALICE.id, "--to", str(file)).startswith(
        "wrote 2 messages of telegram:1 to "
    )

    written = file.read_bytes()
    assert words_in(written.decode()) == ALICES_MESSAGES
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match=r"alice\.json already exists; choose another name"):
        export("--user", BOB.id, "--to", str(file))
    assert file.read_bytes() == written
    with pytest.raises(UserError, match=r"alice\.json cannot be written: No such file"):
        export("--user", ALICE.id, "--to", str(folder / "nowhere" / "alice.json"))


@pytest.mark.parametrize(
    ("person", "problem"),
    [
        ("telegarm:1", "'telegarm' is not a platform"),
        ("telegram", "--user must be a platform and an id, such as"),
        ("telegram:404", "nothing is stored about telegram:404"),
    ],
)
def test_export_of_an_unknown_person_is_an_error_and_writes_no_file(
    folder: Path, person: str, problem: str
) -> None:
    store_words()
    with pytest.raises(UserError, match=problem):
        export("--user", person, "--to", "words.json")
    assert not (folder / "words.json").exists()
    assert read_audit_log() == []
