"""Test characters created in chats, over the APIs of both platforms."""

import json
from pathlib import Path
from typing import Any

import discord
import pytest

from bot.importers.png import blank_image, encode_png
from tests.support.chats import Chat, DiscordChat, Platforms, TelegramChat, running_platforms
from tests.support.child_launcher import ChildLauncher
from tests.support.features import ALONE_AND_IN_PAIRS, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service
from tests.support.shapes import Installer, write_tester
from tests.waiting import wait_until

pytestmark = [
    *ON_THE_WIRES,
    pytest.mark.runs_with(TESTER, TROUPE_LIMITS__CHARACTERS_PER_PERSON="2"),
]

FACE = "https://cards.example/mira.png"


def card(name: str = "Mira", **fields: object) -> bytes:
    """Return a PNG card that also tries to choose a model and tools."""
    data = {
        "name": name,
        "description": f"{name} keeps bees.",
        "first_mes": f"{name} waves.",
        "avatar": FACE,
        "extensions": {"provider": "other", "tools": ["roll_dice"]},
        **fields,
    }
    text = json.dumps({"spec": "chara_card_v2", "data": data}).encode()
    return encode_png(blank_image(), v2_json=text, v3_json=None)


async def attach(where: Chat, data: bytes, text: str = "/character add") -> None:
    """Send a card with a command, as a document that the platform does not recompress."""
    if isinstance(where, TelegramChat):
        who, wire = where.people[-1], where.platforms.telegram
        wire.photo(who, data, chat=where.chat, caption=where.mention + text, document="mira.png")
    else:
        wire, who = where.platforms.discord, where.people[0]
        wire.say(who, where.chat, where.mention + text, files=[("mira.png", data)])


def as_admin(where: Chat) -> Chat:
    if isinstance(where, TelegramChat) and where.chat < 0:
        where.make_admins(where.people[1])
        where.people = [where.people[1]] * 2
    elif isinstance(where, DiscordChat) and where.mention:
        where.people = [where.platforms.admin] * 2
    return where


async def ask_mira(where: Chat, model: Model) -> dict[str, Any]:
    await where.ask_and_wait()
    request = model.requests[-1]
    assert "Mira keeps bees." in str(request["messages"])
    return request


@ALONE_AND_IN_PAIRS
@at("channel", "telegram_group", "discord_dm", "telegram_dm")
async def test_character_from_an_attached_card_answers_after_a_restart(
    where: Chat, running: Service, model: Model
) -> None:
    as_admin(where)
    await attach(where, card())
    await where.shows_new("Mira is ready.")
    where.tell("/character use mira")
    await where.wait_until(lambda: any("Mira waves." in one for one in where.texts()))

    request = await ask_mira(where, model)
    assert (request["model"], request.get("tools")) == ("m", None)
    if isinstance(where, DiscordChat) and where.mention:
        assert {name for name, _ in where.webhook_texts()} == {"Mira"}
        calls = [one for one in where.platforms.discord.log if "/webhooks/" in one["path"]]
        assert any((one["json"] or {}).get("avatar_url") == FACE for one in calls)
    await running.restart()
    await ask_mira(where, model)

    elsewhere = as_admin(where.another()) if "dm" in where.kind else None
    if elsewhere is not None:  # somebody else's private chat
        elsewhere.tell("/character use mira")
        await elsewhere.shows_new("⚠ There is no character mira")
        elsewhere.tell("/preset list")
        assert "Mira" not in await elsewhere.shows_new("· nova")
    where.tell("/character remove mira")
    await where.shows_new("Mira was deleted.")
    await where.ask_and_wait()
    assert "bees" not in str(model.requests[-1])


async def test_admin_who_invited_the_bot_can_set_up_a_card_on_telegram(
    running: Service, platforms: Platforms, model: Model
) -> None:
    group = platforms.telegram_group()
    group.people = [1, 1]
    group.make_admins(1)
    platforms.telegram.invite(1, group.chat)
    notice = await group.shows_new("I am tester. Write to me here")
    await attach(group, card())
    added = await group.shows_new("Mira is ready.")
    group.tell("/character use Mira")
    await group.shows_new("Mira waves.")
    await ask_mira(group, model)
    print(notice, added, *group.texts()[-3:], sep="\n")  # noqa: T201 # the record, shown by -s


async def test_admin_who_invited_the_bot_can_set_up_a_card_on_discord(
    running: Service, platforms: Platforms, model: Model
) -> None:
    guild, wire = platforms.open_guild("Friends"), platforms.discord
    owners = guild.create_role("owners", permissions=discord.Permissions(manage_guild=True))
    admin = wire.member(guild, "owner", roles=[owners])
    platforms.send_guild(guild, was_unavailable=False)
    welcome = wire.b.get_guild(guild.id).system_channel_id
    where = DiscordChat(platforms, "channel", welcome, [admin, admin])
    notice = await where.shows_new("I am tester. Write to me here")
    added = await where.slash(admin, "character add", card=("mira.png", card()))
    assert added.content.startswith("Mira is ready.")
    used = await where.slash(admin, "character use", name="Mira")
    assert used.content == "Mira answers here from now on."
    await ask_mira(where, model)
    assert {name for name, _ in where.webhook_texts()} == {"Mira"}
    print(notice, added.content, used.content, *where.texts()[1:], sep="\n")  # noqa: T201 # as above


@at("channel", "telegram_group")
async def test_members_cannot_change_the_characters_of_a_server(
    where: Chat, running: Service
) -> None:
    if isinstance(where, TelegramChat):
        where.people = [where.people[0]] * 2
    await attach(where, card("Vera"))
    await where.ask_and_wait()
    assert b"Vera keeps bees." not in running.stored()


@at("discord_dm", "telegram_dm")
async def test_private_characters_have_unique_names_and_a_quota(
    where: Chat, running: Service
) -> None:
    await attach(where, card("Nova"))
    await where.shows_new("Nova 2 is ready.")
    where.tell("/character add Ida | Ida paints. | Ida nods.")
    await where.shows_new("Ida is ready.")
    where.tell("/character add Otto | Otto sings.")
    await where.shows_new("⚠ There are 2 characters here already")
    where.tell("/character list")
    await where.shows_new("· Ida\n· Nova 2")
    where.tell("/preset use nova")
    await where.shows_new("nova answers here")
    where.tell("/character use Nova 2")
    await where.shows_new("Nova waves.")


@at("discord_dm", "telegram_dm")
async def test_export_contains_characters_and_forget_me_deletes_them(
    where: Chat, running: Service, model: Model
) -> None:
    where.tell("/character add Ida | Ida paints secret-ida-words. | Ida nods.")
    await where.shows_new("Ida is ready.")
    where.tell("/character use Ida")
    await where.wait_until(lambda: "Ida nods." in where.texts()[-1])
    number = where.chat if isinstance(where, TelegramChat) else where.people[0].id
    person = f"{where.name.partition(':')[0]}:{number}"
    exported = json.loads(await running.run_command("export", "--user", person))
    assert "secret-ida-words" in exported["characters"]["Ida"]["persona"]
    where.tell("/forget me")
    await where.shows_new("Delete everything that you said")
    await where.press("Forget everything I said")
    await wait_until(lambda: b"secret-ida-words" not in running.stored())
    listed = "SELECT scope FROM choice WHERE key LIKE 'character %'"
    await wait_until(lambda: (person,) not in running.query(listed))
    await wait_until(lambda: f"{person}/Ida".encode() not in running.stored())
    await where.ask_and_wait()
    assert "ida" not in str(model.requests[-1])


@at("channel")
async def test_discord_command_accepts_a_file_or_opens_a_form(
    where: DiscordChat, model: Model
) -> None:
    admin = where.platforms.admin
    done = await where.slash(admin, "character add", card=("mira.png", card()))
    assert done.content.startswith("Mira is ready.")
    shown = await admin.slash(where.handle, "character add")
    await wait_until(lambda: shown.modal)
    sent = await admin.submit_modal(
        shown, {"name": "Ida", "persona": "Ida\npaints | draws.", "greeting": "Hi.", "picture": ""}
    )
    await wait_until(lambda: sent.response and sent.response.content)
    assert sent.response.content.startswith("Ida is ready.")

    shown = await admin.slash(where.handle, "character edit", name="Ida")
    await wait_until(lambda: shown.modal)
    sent = await admin.submit_modal(
        shown, {"persona": "Ida sculpts.", "greeting": "", "picture": ""}
    )
    await wait_until(lambda: sent.response and sent.response.content)
    assert sent.response.content == "Ida was changed."
    used = await where.slash(admin, "character use", name="Ida")
    assert used.content == "Ida answers here from now on."
    await where.ask_and_wait()
    assert "Ida sculpts." in str(model.requests[-1]["messages"])
    refused = await where.platforms.people[0].slash(where.handle, "character add")
    await wait_until(lambda: refused.response)
    assert "Only an admin" in refused.response.content

    known = set(where.platforms.discord.b.interactions)
    await admin.autocomplete(where.handle, "character use", "name", "i")
    [asked] = set(where.platforms.discord.b.interactions) - known
    interaction = where.platforms.discord.b.interactions[asked]
    choices = await wait_until(lambda: interaction.autocomplete_choices)
    assert [one["name"] for one in choices] == ["Ida", "Mira"]


async def test_characters_are_not_visible_on_other_servers(
    running: Service, platforms: Platforms, model: Model
) -> None:
    group, other = platforms.telegram_group(), platforms.telegram_group()
    for where in (group, other):
        where.say("hello")
        as_admin(where)
    await attach(group, card("Zora"))
    await group.shows_new("Zora is ready.")
    group.tell("/preset list")
    assert "· Zora" in await group.shows_new("· nova")
    other.tell("/preset list")
    assert "Zora" not in await other.shows_new("· nova")
    other.tell("/preset use Zora")
    other.tell("/character use Zora")
    await other.ask_and_wait()
    assert model.requests[-1]["messages"][0]["content"] == "You are a tester."


@ALONE_AND_IN_PAIRS
async def test_shared_character_stays_in_the_group_after_its_author_is_forgotten(
    running: Service, platforms: Platforms, model: Model
) -> None:
    private, group = platforms.telegram_dm(), platforms.telegram_group()
    group.say("hello")
    group.people = [private.chat] * 2
    group.make_admins(private.chat)
    await attach(private, card())
    await private.shows_new("Mira is ready.")
    group.tell("/character share mira")
    await group.shows_new("Mira is ready.")
    private.tell("/forget me")
    await private.shows_new("Delete everything that you said")
    await private.press("Forget everything I said")
    await private.shows_new("I'm now deleting")
    group.tell("/character use mira")
    await group.wait_until(lambda: any("Mira waves." in one for one in group.texts()))
    await ask_mira(group, model)
    private.tell("/character list")
    await private.shows_new("There are no characters here yet.")


async def test_uploaded_picture_is_shown_by_every_process(
    model: Model, database_url: str, launcher: ChildLauncher, tmp_path: Path
) -> None:
    async with (
        running_platforms() as platforms,
        Installer(platforms, model, launcher, tmp_path).processes(
            "first", "second", database_url=database_url
        ) as services,
    ):
        where = as_admin(platforms.channel())
        other = as_admin(where.another())

        async def ask_until_read(words: str) -> None:
            """Ask in both channels until both prompts contain the words three times in a row."""
            in_a_row = 0
            while in_a_row < 3:
                await where.ask_and_wait()
                await other.ask_and_wait()
                is_read = all(words in str(one["messages"]) for one in model.requests[-2:])
                in_a_row = in_a_row + 1 if is_read else 0

        first, second = services
        write_tester(first)
        write_tester(second)
        await first.start_and_wait()
        await attach(where, card(avatar="none"))
        await where.shows_new("Mira is ready.")
        for place in (where, other):
            place.tell("/character use mira")
            await place.shows_new("Mira waves.")
        await ask_until_read("Mira keeps bees.")
        [picture] = platforms.discord.b.application_emojis
        spoken = [one["json"] for one in platforms.discord.log if "/webhooks/" in one["path"]]
        address = f"https://cdn.discordapp.com/emojis/{picture}.png"
        assert {one["avatar_url"] for one in spoken if one and "username" in one} == {address}

        await second.start_and_wait()
        await ask_until_read("Mira keeps bees.")
        where.tell("/character edit Mira | Mira keeps goats. | Mira nods.")
        await where.shows_new("Mira was changed.")
        await ask_until_read("Mira keeps goats.")
        await first.kill()
        await ask_until_read("Mira keeps goats.")
        where.tell("/character remove Mira")
        await where.shows_new("Mira was deleted.")
        await first.start_and_wait()
        assert await second.stop() == 0
        await ask_until_read("You are a tester.")
