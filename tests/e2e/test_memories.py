"""Test /memory on both platforms: private replies, menus, reactions, and files."""

import json
from collections import Counter

import pytest
from simcord.builders import UserHandle
from simcord.enums import ComponentType
from simcord.results import ResponseMessage

from tests.commands.test_memories import CHAT as EXPORTED
from tests.e2e.test_characters import attach
from tests.support.chats import Chat, DiscordChat, TelegramChat
from tests.support.features import GROUPS, ON_THE_WIRES, PRIVATE, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service
from tests.waiting import wait_until

pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(TESTER)]


async def choose(where: Chat, beginning: str) -> None:
    """Choose from the menu of the newest message in a private chat."""
    if not isinstance(where, DiscordChat):
        [label] = [one for one in where.buttons()[-1] if one.startswith(beginning)]
        await where.press(label)
        return
    wire, message = where.platforms.discord, where.bot_messages()[-1]
    shown = next(one for one in wire.messages(where.chat) if one["id"] == str(message.id))
    menus = [
        one
        for row in shown["components"]
        for one in row["components"]
        if one["type"] == ComponentType.STRING_SELECT
    ]
    [(menu, value)] = [
        (one, option["value"])
        for one in menus
        for option in one["options"]
        if option["label"].startswith(beginning)
    ]
    person = UserHandle(wire.env, wire.b.get_user(where.people[0].id))
    response = ResponseMessage(wire.env, message)
    await person.select(response, [value], custom_id=menu["custom_id"])


async def run_native_command(where: Chat, line: str) -> str:
    """Use a native command in a group; return the reply that only its author can see."""
    if isinstance(where, TelegramChat):
        wire, before = where.platforms.telegram, len(where.private_texts())
        wire.whisper(where.people[0], line, where.chat)
        await where.wait_until(
            lambda: (
                len(where.private_texts()) > before
                and not where.private_texts()[-1].startswith("🔒")
            )
        )
        return where.private_texts()[-1]
    assert isinstance(where, DiscordChat)
    _, name, *rest = line.split(" ", 2)
    options = {"text": rest[0]} if rest else {}
    response = await where.slash(where.people[0], f"memory {name}", **options)
    assert response.ephemeral
    return str(response.content)


@at(*PRIVATE)
async def test_memories_are_changed_from_a_menu_after_a_restart(
    where: Chat, running: Service
) -> None:
    where.tell("/memory add I keep bees")
    await where.shows_new("I will remember:\n")
    await running.restart()
    where.tell("/memory")
    listed = await where.shows_new("Memories that come from you or are about you: 1")
    number = listed.splitlines()[1].partition(" ")[0]
    await choose(where, f"{number} I keep bees")
    await where.shows_new(f"{number} I keep bees\nabout you, this private chat, by hand")
    await running.restart()
    await choose(where, "📌")
    await where.press("‹ Back")
    await where.shows_new(f"{listed.splitlines()[0]}\n{number} 📌 I keep bees")
    await choose(where, f"{number} I keep bees")
    await where.wait_until(lambda: "‹ Back" in where.buttons()[-1])
    await choose(where, "🗑")
    await where.shows_new("I have forgotten: I keep bees")
    where.tell("/memory list")
    await where.shows_new("Memories that come from you or are about you: 0")


@at(*GROUPS)
async def test_replies_never_appear_in_the_group(where: Chat, running: Service) -> None:
    if isinstance(where, TelegramChat):
        where.platforms.telegram.chat(where.people[0])  # a private chat with the bot
    told = await run_native_command(where, "/memory add I hide a key")
    assert told.startswith("I will remember:\n")
    await running.restart()
    assert "I hide a key" in await run_native_command(where, "/memory list")
    before = Counter(where.private_texts())
    where.tell("/memory list here")
    await where.wait_until(
        lambda: any("I hide a key" in one for one in Counter(where.private_texts()) - before)
    )
    where.tell("/memory show 999999")
    await where.wait_until(
        lambda: any(one.startswith("⚠ There is no memory") for one in where.private_texts())
    )
    assert not [one for one in where.texts() if "key" in one or "memory" in one]


@at("channel")
async def test_menu_on_discord_is_visible_only_to_its_owner(
    where: DiscordChat, running: Service
) -> None:
    alice = where.people[0]
    await where.slash(alice, "memory add", text="I climb")
    menu = await alice.slash(where.handle, "memory list")
    await wait_until(lambda: menu.response and menu.response.components)
    assert menu.ephemeral
    await running.restart()
    lists = [one for row in menu.response.components for one in row["components"]]
    options = [one for each in lists for one in each.get("options", ())]
    [value] = [one["value"] for one in options if one["label"].endswith("I climb")]
    await alice.select(menu.response, [value], custom_id=lists[0]["custom_id"])
    await wait_until(lambda: "about you, this channel, by hand" in menu.response.content)
    assert where.texts() == []


@at("telegram_group")
async def test_menu_on_telegram_is_usable_only_by_its_owner(
    where: TelegramChat, running: Service
) -> None:
    wire, person = where.platforms.telegram, where.people[0]
    await run_native_command(where, "/memory add I climb")
    await run_native_command(where, "/memory list")
    await running.restart()
    number, shown = list(wire.ephemeral[where.chat, person].items())[-1]
    buttons = where.buttons_of(shown)
    [data] = [data for label, data in buttons if label.endswith("I climb")]
    wire.click(person, where.chat, number, data, ephemeral=True)
    await where.wait_until(lambda: "about you, this channel, by hand" in where.private_texts()[-1])
    assert where.texts() == []


@at(*GROUPS)
async def test_message_is_remembered_by_a_reaction_or_a_reply(
    where: Chat, running: Service, model: Model
) -> None:
    is_discord = isinstance(where, DiscordChat)

    def stored_memories() -> list[str]:
        return [text for (text,) in running.query("SELECT text FROM memory ORDER BY id")]

    if isinstance(where, TelegramChat):
        where.make_admins(where.platforms.telegram.me["id"])
        where.platforms.telegram.chat(where.people[0])
    question = await where.ask_and_wait(text="I sail")
    await wait_until(running.queues_are_empty)  # nobody reacts before the answer counts as sent
    await where.react("📌" if is_discord else "✍️")
    await where.wait_until(lambda: question.answer in stored_memories())
    said = where.id_of(question.message) if not is_discord else question.message.id
    where.say(f"{where.mention}remember this", reply_to=said)
    await where.wait_until(lambda: any("I will remember" in one for one in where.private_texts()))
    await running.restart()
    [answer, message] = stored_memories()[-2:]
    assert answer == question.answer
    assert message.startswith("I sail T")
    assert len(where.texts()) == 1


@at(*PRIVATE)
async def test_chat_from_another_program_is_imported_continued_and_exported(
    where: Chat, running: Service, model: Model
) -> None:
    await attach(where, EXPORTED.encode(), "/memory import")
    await where.shows_new("The chat with Mira continues here")
    await running.restart()
    await where.ask_and_wait(text="Go on")
    sent = str(model.requests[-1]["messages"])
    assert "Then we take the bridge." in sent
    assert "I fear water." in sent
    where.tell("/memory export chat")
    header, *lines = map(json.loads, (await wait_for_file(where)).splitlines())
    assert header["character_name"] == "tester"
    assert [one["mes"] for one in lines[:3]] == [
        "Hello.",
        "I fear water.",
        "Then we take the bridge.",
    ]
    assert [one["is_user"] for one in lines] == [False, True, False, True, False]


@at(*PRIVATE)
async def test_unusable_file_is_refused(where: Chat) -> None:
    await attach(where, b'{"entries": 7}', "/memory import")
    await where.shows_new("⚠ This is not a chat.")


async def wait_for_file(where: Chat) -> str:
    """Wait for a file from the bot in a private chat; return its text."""
    if isinstance(where, TelegramChat):
        await wait_until(lambda: len(where.documents()) == 2)
        _, document = where.documents()
        _, data = where.platforms.telegram.files[document["document"]["file_id"]]
        return str(data, "utf-8")
    assert isinstance(where, DiscordChat)
    await where.shows_new("Your chat with me.")
    [file] = where.bot_messages()[-1].attachments
    return str(where.platforms.discord.b.cdn.get(file["url"]), "utf-8")
