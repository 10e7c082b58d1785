"""Memories made by hand in a conversation: by command, by reply, by reaction, and from a menu."""

from dataclasses import replace

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    IncomingMessage,
    MediaItem,
    MediaKind,
    Person,
    Reaction,
    ReactionChange,
    WakeReason,
)
from bot.chat.memory import MemoryPlace, MemoryReader
from bot.chat.session import Consent
from bot.storage.database import Database
from tests.commands.test_memories import CHAT as EXPORTED
from tests.fakes import LIMITS
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup, on, pressed

SHOWN = replace(LIMITS, has_buttons=True)
PLACE = MemoryPlace("telegram:5", "telegram:5", is_private=False)


async def remembered(setup: Setup, person: Person = ALICE) -> list[tuple[str, str, str]]:
    """Return the subject, author and text of each memory that a person can see."""
    found = await setup.container.memories.list_visible(MemoryReader(person.id, PLACE))
    return [(one.subject.key, one.said_by, one.text) for one in found]


async def react(
    setup: Setup, message: str, reaction: Reaction, by: Person = ALICE, *, removed: bool = False
) -> None:
    said = make_incoming()
    key = f"r{await setup._count_received()}"
    await setup.say(
        ReactionChange(said.address, key, message, by, reaction, said.at, said.scopes, removed)
    )


@pytest.mark.parametrize("reaction", [Reaction.PIN, Reaction.WRITE_DOWN])
async def test_reaction_saves_a_message_or_answer_as_a_memory(
    database: Database, reaction: Reaction
) -> None:
    setup = Setup(database, ["I fear water."])
    await setup.say(make_incoming("I keep bees", key="5:77"))
    await react(setup, "77", reaction)
    await react(setup, "1", reaction, BOB)
    assert await remembered(setup) == [
        ("nora", "nora", "I fear water."),
        (ALICE.id, ALICE.id, "I keep bees"),
    ]
    assert setup.texts == ["I fear water."], "nobody is told"


async def test_removed_or_unauthorized_reaction_saves_no_memory(database: Database) -> None:
    setup = Setup(database, ["Yes."], preset={"context": "all"})
    await setup.say(make_incoming("I keep bees", key="5:77"))
    observed = make_incoming("I sail", key="5:78", author=BOB, wake=None)
    await setup.say(observed)
    await react(setup, "77", Reaction.PIN, removed=True)
    await react(setup, "78", Reaction.PIN)
    assert await remembered(setup) == [], "its author has not agreed to that"
    await setup.history_scopes.set_consent(ALICE.id, Consent.OFF)
    await react(setup, "77", Reaction.PIN, BOB)
    await react(setup, "77", Reaction.PIN)
    assert await remembered(setup) == []
    await react(setup, "78", Reaction.PIN, BOB)
    assert await remembered(setup, BOB) == [(BOB.id, BOB.id, "I sail")]


@pytest.mark.parametrize("words", ["Remember this!", "please remember that", "请记住这句话。"])
async def test_reply_with_remember_this_saves_a_memory(database: Database, words: str) -> None:
    setup = Setup(database, ["Yes.", "Fine."], ["What?"])
    await setup.say(make_incoming("I keep bees", key="5:77"))
    await setup.say(replace(on("77", words, key="5:78"), wake=WakeReason.MENTION))
    assert await remembered(setup) == [(ALICE.id, ALICE.id, "I keep bees")]
    assert setup.texts[-1].startswith("I will remember:\n#1 I keep bees")
    await setup.say(make_incoming(words, key="5:79"))
    assert len(await remembered(setup)) == 1, "it is no reply, so the character answers"


async def test_message_is_remembered_only_if_it_is_in_the_history(database: Database) -> None:
    setup = Setup(database)
    await setup.say(on("404", "/memory add", key="5:1"))
    assert setup.texts == ["⚠ I don't know that message, so I can't remember it."]


async def test_memory_menu_works_after_a_restart(database: Database) -> None:
    setup = Setup(database, limits=SHOWN)
    private = replace(make_incoming("/memory add I keep bees", key="5:1"), is_private=True)
    await setup.say(private)
    await setup.say(replace(private, text="/memory", external_key="5:2", message_id="2"))
    [*_, shown] = setup.surface.shown.values()
    assert "#1 I keep bees" in shown.text
    [menu] = shown.menus
    again = Setup(database, limits=SHOWN, surface=setup.surface)

    async def choose(label: str, key: str) -> str:
        content = list(setup.surface.shown.values())[-1]
        values = {one.label: one.value for each in content.menus for one in each.options}
        press = pressed(ButtonAction.MEMORY, "telegram:5:2/0", key=key)
        chosen = (values[label],) if label else ()
        await again.say(replace(press, values=chosen, is_private=True))
        return list(setup.surface.messages.values())[-1]

    assert menu.options[0].label == "#1 I keep bees"
    assert "by hand; since 2026-11-21" in await choose("#1 I keep bees", "1")
    await choose("📌 Pin it", "2")
    assert "#1 📌 I keep bees" in await choose("", "3")
    await choose("#1 I keep bees", "4")
    assert "I have forgotten: I keep bees" in await choose("🗑 Forget it", "5")
    assert await choose("", "6") == ("Memories that come from you or are about you: 0")


async def test_memory_menu_works_only_for_its_owner(database: Database) -> None:
    setup = Setup(database, limits=SHOWN)
    private = replace(make_incoming("/memory add I keep bees", key="5:1"), is_private=True)
    await setup.say(private)
    by_bob = replace(pressed(ButtonAction.MEMORY, by=BOB), values=("f1",), is_private=True)
    await setup.say(by_bob)
    assert len(await remembered(setup)) == 1


def import_of(name: str, said: IncomingMessage) -> IncomingMessage:
    item = MediaItem(MediaKind.FILE, name, 1, name)
    return replace(said, text="/memory import", attachments=(item,), is_private=True)


async def test_imported_chat_continues_and_can_be_exported(database: Database) -> None:
    setup = Setup(database, ["Mind the third plank."])
    files = {"chat.jsonl": EXPORTED.encode()}

    async def download(_address: object, item: MediaItem, most: int) -> bytes:
        return files[item.source][:most]

    setup.container.characters.download = download
    await setup.say(make_incoming("an older conversation", key="5:1"))
    setup.backend.prompts.clear()
    await setup.say(import_of("chat.jsonl", make_incoming(key="5:2")))
    await setup.say(replace(make_incoming("Which one?", key="5:3"), is_private=True))
    [prompt] = setup.backend.prompts
    sent = [str(one.content) for one in prompt.messages]
    assert [one for one in sent if "bridge" in one]
    assert not [one for one in sent if "older" in one]
    await setup.say(replace(make_incoming("/memory export chat", key="5:4"), is_private=True))
    [file] = setup.surface.files.values()
    lines = file.text.splitlines()
    assert len(lines) == 1 + 3 + 2
    assert '"mes": "Then we take the bridge."' in lines[3]
