"""Test /memory: who can see and change which memories, and import and export of files."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from inline_snapshot import snapshot

from bot.chat.command import Command, parse_command
from bot.chat.incoming import Address, IncomingMessage, MediaItem, MediaKind, Person, Quote
from bot.chat.memory import MemoryPlace, MemoryReader, RecallingCharacter
from bot.chat.session import Consent, Turn
from bot.commands.handlers import COMMANDS, has_private_reply
from bot.commands.memories import command_for_choice
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import UserError
from bot.storage.database import Database
from tests.commands.test_handlers import HERE, Setup
from tests.samples import ALICE, BOB, make_incoming

PLACE = MemoryPlace.from_event(HERE.address, HERE.scopes, is_private=False)
PRIVATE = replace(make_incoming(chat="1", key="1:1"), is_private=True)


class MemorySetup(Setup):
    files: dict[str, bytes]

    def __init__(self, database: Database, **settings: bool) -> None:
        super().__init__(database, **settings)
        self.files = {}
        self.container.characters.download = self._download

    async def _download(self, _address: Address, item: MediaItem, max_bytes: int) -> bytes:
        return self.files[item.source][:max_bytes]

    async def run_as(
        self, said: IncomingMessage, line: str, *, quoted: Turn | None = None, page: int = 0
    ) -> CommandResult:
        command = parse_command(line)
        assert isinstance(command, Command)
        active = await self.resolver.resolve(said.scopes)
        request = CommandRequest(command, said, active, (), said.at, quoted_turn=quoted, page=page)
        return await self.handlers.handle(replace(request, part_name="telegram:5:1/0"))

    async def texts_of(self, said: IncomingMessage, what: str = "") -> list[str]:
        lines = (await self.run_as(said, f"/memory list {what}")).text.split("\n")
        return [line for line in lines if line.startswith("#")]

    async def import_file(
        self, said: IncomingMessage, content: bytes, name: str = "f.json"
    ) -> CommandResult:
        self.files[name] = content
        item = MediaItem(MediaKind.FILE, name, len(content), name)
        return await self.run_as(replace(said, attachments=(item,)), "/memory import")


@pytest.fixture
def setup(database: Database) -> MemorySetup:
    return MemorySetup(database)


def place_of(said: IncomingMessage) -> MemoryPlace:
    return MemoryPlace.from_event(said.address, said.scopes, is_private=said.is_private)


def written_by(person: Person, said: IncomingMessage = HERE) -> IncomingMessage:
    return replace(said, author=person)


async def test_people_see_their_own_memories_and_those_visible_in_this_chat(
    setup: MemorySetup,
) -> None:
    await setup.run_as(HERE, "/memory add I keep bees")
    await setup.run_as(written_by(BOB), "/memory add here: the pub is closed on Mondays")
    await setup.run_as(PRIVATE, "/memory add I am ill")
    ill, pub = "#3 I am ill (about you, {})", "#2 the pub is closed on Mondays ({})"
    pub = pub.format("about this chat, this channel")
    assert await setup.texts_of(HERE) == [
        ill.format("a private chat"),
        "#1 I keep bees (about you, this channel)",
    ]
    assert await setup.texts_of(written_by(BOB)) == [pub]
    assert await setup.texts_of(written_by(BOB), "here") == [
        pub,
        "#1 I keep bees (about Alice, this channel)",
    ]
    assert await setup.texts_of(PRIVATE, "here") == [ill.format("this private chat")]
    in_private = replace(PRIVATE, address=Address("telegram", "2"), scopes=("telegram:2",))
    assert await setup.texts_of(written_by(BOB, in_private)) == [
        "#2 the pub is closed on Mondays (another channel)"
    ]
    assert await setup.texts_of(written_by(BOB, in_private), "here") == []


async def test_every_reply_is_visible_only_to_the_asker() -> None:
    [spec] = [one for one in COMMANDS if one.name == "memory"]
    assert all(one.is_private and not one.changes_channel for one in (spec, *spec.actions))
    assert has_private_reply(Command("memory"))
    assert has_private_reply(Command("memory", "show nora"))


async def test_memory_can_be_about_its_author_this_place_or_a_character(setup: MemorySetup) -> None:
    await setup.use(HERE.scopes[0], "nova")
    for text in ("I like tea", "here: it rains", "Nova: she limps", "note: nova is no subject"):
        await setup.run_as(HERE, f"/memory add {text}")
    found = await setup.container.memories.list_visible(MemoryReader(ALICE.id, PLACE))
    assert [(one.subject.kind.value, one.subject.name, one.text) for one in found] == [
        ("person", "Alice", "note: nova is no subject"),
        ("character", "nova", "she limps"),
        ("place", "", "it rains"),
        ("person", "Alice", "I like tea"),
    ]
    assert {one.said_by for one in found} == {ALICE.id}
    assert not any(one.is_derived for one in found)
    shown = (await setup.run_as(HERE, "/memory show nova")).text
    assert "she limps" in shown
    assert shown.startswith("Memories of nova that you may see: 4")


async def test_memory_is_shown_corrected_pinned_and_forgotten(setup: MemorySetup) -> None:
    added = await setup.run_as(HERE, "/memory add I am  allergic\nto nuts")
    assert str(added.text) == snapshot("""\
I will remember:
#1 I am allergic to nuts
about you, this channel, by hand; since 2026-11-21
Who may know it: this channel; all characters.\
""")
    assert (await setup.run_as(HERE, "/memory add I am allergic to nuts")).text.startswith("I will")
    assert str((await setup.run_as(HERE, "/memory who 1")).text) == snapshot(
        "Who may know it: this channel; all characters."
    )
    corrected = await setup.run_as(HERE, "/memory correct 1 I am allergic to shrimp")
    assert corrected.text.startswith("Corrected.\n#2 I am allergic to shrimp")
    pinned = await setup.run_as(HERE, "/memory pin 2")
    assert pinned.text.startswith("#2 I am allergic to shrimp")
    assert await setup.texts_of(HERE) == ["#2 📌 I am allergic to shrimp (about you, this channel)"]
    assert "📌" not in (await setup.run_as(HERE, "/memory pin 2")).text
    gone = await setup.run_as(HERE, "/memory forget #2")
    assert gone.text == "I have forgotten: I am allergic to shrimp"
    assert await setup.texts_of(HERE) == []


@pytest.mark.parametrize("line", ["forget 1", "correct 1 Alice keeps wasps", "pin 1"])
async def test_people_cannot_change_memories_of_what_other_people_said(
    setup: MemorySetup, line: str
) -> None:
    await setup.run_as(HERE, "/memory add I keep bees")
    setup.admin = False
    with pytest.raises(UserError):
        await setup.run_as(written_by(BOB), f"/memory {line}")
    assert await setup.texts_of(HERE) == ["#1 I keep bees (about you, this channel)"]


async def test_admins_can_delete_only_memories_of_their_own_chat(
    setup: MemorySetup,
) -> None:
    await setup.run_as(written_by(BOB), "/memory add here: rubbish")
    await setup.run_as(PRIVATE, "/memory add I am ill")
    with pytest.raises(UserError, match="Only the person who said it"):
        await setup.run_as(HERE, "/memory correct 1 gold")
    await setup.run_as(HERE, "/memory forget 1")
    assert await setup.texts_of(HERE, "here") == []
    with pytest.raises(UserError, match="There is no memory with this number"):
        await setup.run_as(written_by(BOB), "/memory forget 2")


async def test_only_the_author_can_widen_a_memory_and_private_memories_stay_private(
    setup: MemorySetup,
) -> None:
    await setup.run_as(HERE, "/memory add I keep bees")
    next_door = written_by(
        BOB, replace(HERE, address=Address("telegram", "6"), scopes=HERE.scopes[2:])
    )
    assert await setup.texts_of(next_door, "here") == []
    assert "this server" in (await setup.run_as(HERE, "/memory widen 1")).text
    assert await setup.texts_of(next_door, "here") == ["#1 I keep bees (about Alice, this server)"]
    with pytest.raises(UserError, match="Only the person who said it can choose"):
        await setup.run_as(next_door, "/memory widen 1 everywhere")
    assert "this channel" in (await setup.run_as(HERE, "/memory widen 1 here")).text
    assert await setup.texts_of(next_door, "here") == []
    await setup.run_as(PRIVATE, "/memory add I am ill")
    for reach in ("server", "everywhere"):
        with pytest.raises(UserError, match="What was said in private stays"):
            await setup.run_as(PRIVATE, f"/memory widen 2 {reach}")


async def test_memory_of_a_message_belongs_to_the_messages_author(setup: MemorySetup) -> None:
    quote = Quote(BOB, "9", "I sail")
    asked = replace(HERE, quote=quote)
    sailing = Turn("user", "I sail", BOB, HERE.at)
    await setup.run_as(asked, "/memory add", quoted=sailing)
    [memory] = await setup.container.memories.list_visible(MemoryReader(BOB.id, PLACE))
    assert (memory.subject.key, memory.said_by, memory.text) == (BOB.id, BOB.id, "I sail")
    with pytest.raises(UserError, match="I don't know that message"):
        await setup.run_as(asked, "/memory add")
    with pytest.raises(UserError, match="What should I remember"):
        await setup.run_as(HERE, "/memory add")


async def test_remembering_an_observed_line_needs_the_consent_of_its_author(
    setup: MemorySetup,
) -> None:
    asked = replace(HERE, quote=Quote(BOB, "9", "I sail"))
    observed_turn = Turn("user", "I sail", BOB, HERE.at, is_observed=True)
    with pytest.raises(UserError, match="only its author can add it"):
        await setup.run_as(asked, "/memory add", quoted=observed_turn)
    await setup.run_as(written_by(BOB, asked), "/memory add", quoted=observed_turn)
    await setup.run_as(written_by(BOB), "/memory forget 1")
    await setup.history_scopes.set_consent(BOB.id, Consent.SERVER)
    await setup.run_as(asked, "/memory add", quoted=observed_turn)
    assert await setup.texts_of(written_by(BOB)) == ["#2 I sail (about you, this server)"]
    await setup.history_scopes.set_consent(BOB.id, Consent.OFF)
    told_to_us = replace(observed_turn, text="I swim", is_observed=False)  # before he was off
    with pytest.raises(UserError, match="somebody who opted out"):
        await setup.run_as(asked, "/memory add", quoted=told_to_us)


async def test_memories_of_a_place_wait_for_approval_if_approval_is_on(
    setup: MemorySetup,
) -> None:
    await setup.run_as(HERE, "/memory approve on")
    await setup.run_as(HERE, "/memory add here: it rains")
    setup.admin = False
    await setup.run_as(written_by(BOB), "/memory add here: the pub is closed")
    await setup.run_as(written_by(BOB), "/memory add I sail")
    waits = "#2 the pub is closed (about this chat, this channel, an admin has not approved it yet)"
    assert waits in await setup.texts_of(written_by(BOB))
    listener = RecallingCharacter(PLACE, "nova", BOB.id)
    recalled = await setup.container.memories.recall(listener)
    assert sorted(one.text for one in recalled.memories) == ["I sail", "it rains"]
    with pytest.raises(UserError, match="Only an admin"):
        await setup.run_as(written_by(BOB), "/memory approve 2")
    setup.admin = True
    await setup.run_as(HERE, "/memory approve 2")
    assert len((await setup.container.memories.recall(listener)).memories) == 3
    await setup.run_as(HERE, "/memory approve off")
    setup.admin = False
    told = await setup.run_as(written_by(BOB), "/memory add here: it snows")
    assert "approved" not in told.text


async def test_anonymous_admins_cannot_add_memories(setup: MemorySetup) -> None:
    group = Person(f"telegram:{HERE.address.chat}", "The group")
    with pytest.raises(UserError, match="Use your own name"):
        await setup.run_as(written_by(group), "/memory add I keep bees")


async def test_long_list_has_pages_and_a_menu_if_buttons_are_supported(setup: MemorySetup) -> None:
    for number in range(12):
        await setup.run_as(PRIVATE, f"/memory add fact {'abcdefghijkl'[number] * 9}")
    first = await setup.run_as(PRIVATE, "/memory")
    assert first.text.startswith("Memories that come from you or are about you: 12")
    assert [one.label for one in first.buttons] == ["1/2", "›"]
    second = await setup.run_as(PRIVATE, "/memory", page=2)
    assert [one.label for one in second.buttons] == ["‹", "2/2"]
    [menu] = second.menus
    assert [command_for_choice([one.value], "/memory") for one in menu.options] == [
        "/memory show 2",
        "/memory show 1",
    ]
    in_group = await setup.run_as(HERE, "/memory")  # its reply goes to a private chat
    assert (in_group.menus, in_group.buttons) == ((), ())
    assert in_group.text.count("fact") == 12


@pytest.mark.parametrize(
    ("values", "asked", "line"),
    [
        (["s1"], "/memory", "/memory show 1"),
        (["p1295"], "/memory list here", "/memory pin 1295"),
        (["l5"], "/memory lore nora", "/memory lore nora 5"),
        (["l5"], "/memory lore nora 7", "/memory lore nora 5"),
        ([], "/memory list here", "/memory list here"),
        ([], "/memory show nora", "/memory show nora"),
        ([], "/memory show 12", "/memory list"),
        ([], "/memory add secret", "/memory list"),
        ([], "/memory lore nora all", "/memory lore nora"),
        (["x1"], "/memory", "/memory"),
        (["s"], "/memory", "/memory"),
        (["s-1"], "/memory forget 1", "/memory list"),
    ],
)
def test_choice_from_a_menu_runs_a_command(values: list[str], asked: str, line: str) -> None:
    assert command_for_choice(values, asked) == line


# --- files ---------------------------------------------------------------------------------------

CHAT = """\
{"user_name":"Byron","character_name":"Mira","create_date":"2024-7-12@01h31m37s","chat_metadata":{}}
{"name":"Mira","is_user":false,"is_system":false,"send_date":"July 12, 2024 1:31am","mes":"Hello."}
{"name":"Byron","is_user":true,"is_system":false,"send_date":1720741897000,"mes":"I fear water."}
{"name":"System","is_user":false,"is_system":true,"mes":"Hidden"}
{"name":"Mira","is_user":false,"is_system":false,"mes":"Then we take the bridge.","swipe_id":0}
"""


@pytest.mark.parametrize("kind", ["json", "lorebook"])
async def test_exported_memories_can_be_imported_by_another_account(
    setup: MemorySetup, kind: str
) -> None:
    await setup.use(PRIVATE.scopes[0], "nova")
    for line in ("add I keep bees", "add nova: she limps", "add here: it rains", "pin 1"):
        await setup.run_as(PRIVATE, f"/memory {line}")
    sent = await setup.run_as(PRIVATE, f"/memory export {kind}")
    assert sent.text == "Your memories: 3"
    assert sent.file is not None
    assert ALICE.id not in sent.file.text
    there = written_by(
        BOB, replace(PRIVATE, address=Address("discord", "77"), scopes=("discord:77",))
    )
    told = await setup.import_file(there, sent.file.text.encode())
    assert told.text == "Memories read: 3"
    assert await setup.texts_of(there) == [
        "#6 📌 I keep bees (about you, this private chat)",
        "#5 it rains (about this chat, this private chat)",
        "#4 she limps (about nova, this private chat)",
    ]


async def test_imported_file_cannot_add_memories_of_other_people(setup: MemorySetup) -> None:
    rows: list[object] = [
        {"text": "Bob is ill", "about": {"person": "Bob"}, "said_by": BOB.id},
        {"text": "He lies", "about": {"character": "telegram:2/Nora"}},
        {"text": 7, "about": "me"},
        {"text": "x" * 501, "about": "me"},
        "nonsense",
        {"text": "I sail", "about": "me", "kind": "no kind", "since": "never", "pinned": "yes"},
    ]
    file = {"format": "troupe memories", "version": 1, "memories": rows}
    told = await setup.import_file(HERE, json.dumps(file).encode())
    assert told.text.split("\n") == snapshot(
        [
            "Memories read: 1",
            "Left out because they are about other people: Bob, telegram2Nora",
            "Left out because they have no usable text: 3",
        ]
    )
    assert await setup.texts_of(HERE) == snapshot(["#1 I sail (about you, this channel)"])
    assert await setup.texts_of(written_by(BOB)) == []


async def test_character_is_exported_with_its_lore_memories_and_chat(setup: MemorySetup) -> None:
    card = {
        "spec": "chara_card_v2",
        "data": {
            "name": "Mira",
            "description": "Mira keeps bees.",
            "first_mes": "Mira waves.",
            "character_book": {"entries": [{"keys": ["bridge"], "content": "It is old."}]},
            "extensions": {"troupe": {"chat": [{"name": "Mira", "mes": "Hi.", "is_user": False}]}},
        },
    }
    made = await setup.import_file(PRIVATE, json.dumps(card).encode(), "mira.json")
    assert made.text.startswith("Mira is ready.\nThe chat with Mira continues here")
    assert await setup.active(PRIVATE.scopes) == [f"{ALICE.id}/Mira"]
    assert [one.preset for one in made.turns] == [f"{ALICE.id}/Mira"]
    await setup.run_as(PRIVATE, "/memory add Mira: she fears the River")
    sent = await setup.run_as(PRIVATE, "/memory export mira")
    assert sent.text.startswith("Memories of Mira: 1.")
    assert sent.file is not None
    data = json.loads(sent.file.text)["data"]
    contents = [one["content"] for one in data["character_book"]["entries"]]
    assert contents == ["It is old.", "she fears the River"]
    assert data["description"] == "Mira keeps bees."

    there = written_by(
        BOB, replace(PRIVATE, address=Address("discord", "77"), scopes=("discord:77",))
    )
    told = await setup.import_file(there, sent.file.text.encode())
    assert told.text == "Mira is ready.\nMemories read: 1"
    [memory] = await setup.container.memories.list_visible(MemoryReader(BOB.id, place_of(there)))
    assert (memory.subject.key, memory.witnesses) == (f"{BOB.id}/Mira", (f"{BOB.id}/Mira",))
    [found] = (await setup.resolver.resolve(there.scopes)).presets
    assert found.parsed_lorebook is not None
    assert [one.content for one in found.parsed_lorebook.entries] == ["It is old."]


async def test_only_operators_can_export_instructions_of_their_presets(
    database: Database,
) -> None:
    setup = MemorySetup(database, private_prompts=False, group_prompts=False)
    for said in (PRIVATE, HERE):
        with pytest.raises(UserError, match="TROUPE_ADMINS"):
            await setup.run_as(said, "/memory export nova")


async def test_memories_can_be_added_to_the_lorebook_of_the_servers_character(
    setup: MemorySetup,
) -> None:
    card = {"spec": "chara_card_v2", "data": {"name": "Mira", "description": "Mira keeps bees."}}
    await setup.import_file(HERE, json.dumps(card).encode(), "mira.json")
    for text in ("here: the Rhine froze", "here: a secret of this channel", "I like tea"):
        await setup.run_as(HERE, f"/memory add {text}")
    await setup.run_as(HERE, "/memory widen 1")
    await setup.run_as(HERE, "/memory widen 3")
    listed = await setup.run_as(HERE, "/memory lore mira")
    assert "#1 the Rhine froze" in listed.text
    assert "secret" not in listed.text
    assert "tea" not in listed.text
    name = f"{HERE.scopes[-1]}/Mira"
    [before] = await setup.container.preset_versions.history(name, 1)
    added = await setup.run_as(HERE, "/memory lore mira 1")
    assert added.text.startswith("New entries in the lorebook: 1.")
    stored = await setup.container.preset_versions.newest(name)
    assert stored is not None
    assert stored.version == before[0] + 1
    preset = await setup.container.characters.load_newest_version(name)
    assert preset.parsed_lorebook is not None
    [entry] = preset.parsed_lorebook.entries
    assert (entry.content, entry.keys) == ("the Rhine froze", ("Rhine",))
    again = await setup.run_as(HERE, "/memory lore mira all")
    assert again.text.startswith("New entries in the lorebook: 0.")
    with pytest.raises(UserError, match="There is no memory with this number"):
        await setup.run_as(HERE, "/memory lore mira 2")
    setup.admin = False
    with pytest.raises(UserError, match="Only an admin"):
        await setup.run_as(written_by(BOB), "/memory lore mira all")
    with pytest.raises(UserError, match="Send this command in the server"):
        await setup.run_as(PRIVATE, "/memory lore mira")


async def test_imported_chat_continues_in_the_private_chat(setup: MemorySetup) -> None:
    told = await setup.import_file(PRIVATE, CHAT.encode(), "chat.jsonl")
    assert told.text == "The chat with Mira continues here. Messages read: 3"
    assert told.starts_session
    assert [(one.role, one.text, one.preset) for one in told.turns] == [
        ("assistant", "Hello.", "assistant"),
        ("user", "I fear water.", None),
        ("assistant", "Then we take the bridge.", "assistant"),
    ]
    assert told.turns[1].speaker == Person(ALICE.id, "Byron")
    assert all(one.at < two.at <= PRIVATE.at for one, two in pairwise(told.turns))
    with pytest.raises(UserError, match="in a private chat"):
        await setup.import_file(HERE, CHAT.encode())


HOSTILE: dict[str, tuple[bytes, str]] = {
    "not text": (b"\xff\xfe\x00", "This is not a chat"),
    "not JSON": (b'{"name": "x"\n', "is not valid JSON"),
    "broken line": (CHAT.encode() + b'{"mes": ', "Line 6 of the file is not valid JSON"),
    "no chat": (b'{"a": 1}', "This is not a chat"),
    "a list": (b"[1, 2]", "This is not a chat"),
    "empty": (b"", "This is not a chat"),
    "nobody speaks": (CHAT.encode().split(b"\n")[0], "This file contains no messages"),
    "wrong types": (b'{"user_name":1,"mes":["x"]}\n{"mes":5}', "This file contains no messages"),
    "deep": (b'{"a":' * 200 + b"1" + b"}" * 200, "nested more than"),
    "many messages": (CHAT.encode().split(b"\n")[1].join([b"\n"] * 5_002), "A chat may have up to"),
    "long message": (
        json.dumps({"name": "M", "mes": "x" * 20_001, "is_user": False}).encode(),
        "A chat may have up to",
    ),
    "many memories": (
        json.dumps({"entries": [{"content": "x", "key": []}] * 1_001}).encode(),
        "1001 memories; at most 1000 are allowed",
    ),
    "too large": (b" " * 5_000_000, "A file can be up to"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_unusable_file_is_refused_with_the_reason(setup: MemorySetup, name: str) -> None:
    content, problem = HOSTILE[name]
    with pytest.raises(UserError, match=problem):
        await setup.import_file(PRIVATE, content)
