"""Test access rules for the bot, over the APIs of both platforms."""

import re
from typing import Any

import pytest

from tests.support.chats import Chat, DiscordChat, Platforms, TelegramChat
from tests.support.features import ALONE_AND_IN_PAIRS, GROUPS, ON_THE_WIRES, PRIVATE, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service, preset_json
from tests.support.shapes import Installer

pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(TESTER)]

INSTEAD = "I'd rather not say that here. Let's talk about something else."
REFUSED = "You may not use me where you just wrote to me."


def id_of_person(where: Chat) -> str:
    who = where.people[0]
    return f"telegram:{who}" if isinstance(where, TelegramChat) else f"discord:{who.id}"


async def send_admin_command(where: Chat, line: str, reply: str = "Saved: ") -> None:
    """Send an admin's command, and wait for the reply."""
    where.tell_as_admin(line)
    await where.shows_new(reply)


async def ask_while_blocked(where: Chat, who: int) -> None:
    """Ask as a blocked person; check that only another person is answered."""
    said = where.texts()
    where.ask(who=who)
    answer = (await where.ask_and_wait(who=1 - who)).answer
    assert where.texts() == [*said, answer]


@ALONE_AND_IN_PAIRS
async def test_blocked_person_on_telegram_is_notified_once_in_private(
    running: Service, platforms: Platforms
) -> None:
    group = platforms.telegram_group()
    private = TelegramChat(platforms, "telegram_dm", 2, [2, 2])
    private.say("/help")
    await private.shows_new("I am tester")
    before = sum(text.startswith(REFUSED) for text in private.texts())
    await send_admin_command(group, "/access block telegram:2")
    await ask_while_blocked(group, 1)
    await private.shows_new(REFUSED)
    await running.restart()
    await ask_while_blocked(group, 1)
    assert sum(text.startswith(REFUSED) for text in private.texts()) == before + 1
    await send_admin_command(group, "/access reset telegram:2", "Deleted: ")
    await group.ask_and_wait(who=1)


@ALONE_AND_IN_PAIRS
async def test_person_with_a_blocked_role_is_refused_on_discord(
    running: Service, platforms: Platforms
) -> None:
    where, role = platforms.channel(), platforms.guild.create_role("spammers")
    bob = platforms.people[1]
    platforms.discord.b.add_member_role(platforms.guild.id, bob.id, role.id)
    reply = await where.slash(platforms.admin, "access block", target=f"<@&{role.id}>")
    assert reply.content == f"Saved: block role discord:{role.id}."
    await running.restart()
    await ask_while_blocked(where, 1)
    said = where.texts()
    for command in ("context", "new"):  # the second one is answered in public
        refused = await where.slash(bob, command)
        assert refused.content.startswith(f"{REFUSED} One of your roles is blocked there.")
    assert where.texts() == said
    shown = await where.slash(platforms.admin, "access show")
    assert f"here: block role discord:{role.id}" in shown.content
    why = await where.slash(platforms.admin, "settings why")
    assert f"bob may not use me here: block role discord:{role.id}" in why.content


@at("channel")
@pytest.mark.runs_with(preset_json("tester", context="all"))
@pytest.mark.parametrize("fault", [{}, {"status": 404, "code": 10007}])
async def test_roles_of_missed_messages_are_not_requested_if_no_rule_needs_them(
    where: DiscordChat, running: Service, model: Model, fault: dict[str, Any]
) -> None:
    platforms, wire = where.platforms, where.platforms.discord
    bob, other = platforms.people[1], platforms.channel()
    await where.ask_and_wait()
    wire.log.clear()
    await wire.forget()
    await other.ask_and_wait(who=1)  # what is missed has no roles, and no rule needs them
    asked_for_members = f"/guilds/{platforms.guild.id}/members/{bob.id}"
    assert not [one for one in wire.log if one["path"] == asked_for_members]

    role = platforms.guild.create_role("spammers")
    wire.b.add_member_role(platforms.guild.id, bob.id, role.id)
    target = {"target": f"<@&{role.id}>", "where": "server"}
    await where.slash(platforms.admin, "access block", **target)
    said, asked = where.texts(), where.platforms.channel()
    if fault:
        wire.fault("GET", asked_for_members, times=None, **fault)
    await running.kill()
    await wire.forget()
    missed, among_people = where.ask(who=1), asked.say("among us", 1)
    await running.start_and_wait()
    answer = (await where.ask_and_wait()).answer
    assert where.texts() == [*said, answer]
    await asked.ask_and_wait()  # the channel's earlier messages are listed for it
    assert missed.token not in str(model.requests)
    assert among_people.content not in str(model.requests)
    wire.faults.clear()
    await where.slash(platforms.admin, "access reset", **target)


@ALONE_AND_IN_PAIRS
async def test_admin_command_can_be_allowed_for_a_discord_role(
    running: Service, platforms: Platforms
) -> None:
    where, role = platforms.channel(), platforms.guild.create_role("directors")
    alice, bob = platforms.people
    platforms.discord.b.add_member_role(platforms.guild.id, alice.id, role.id)
    platforms.offer_to_everybody("preset")

    async def use(who: Any) -> str:
        return str((await where.slash(who, "preset use", name="nova")).content)

    assert (await use(alice)).startswith("⚠ Only an admin can")
    given = {"name": "preset use", "target": f"<@&{role.id}>"}
    reply = await where.slash(platforms.admin, "access command", **given)
    assert reply.content == f"Saved: command preset use role discord:{role.id}."
    await running.restart()
    await where.ask_and_wait()  # a command would not wait for the next process that receives
    assert (await use(alice)).startswith("nova answers here")
    assert (await use(bob)).startswith("⚠ Only an admin can")


@ALONE_AND_IN_PAIRS
@pytest.mark.runs_with(TESTER, TROUPE_ADMINS="telegram:77")
@at(*PRIVATE)
async def test_pairing_code_lets_a_person_write_in_private(
    where: Chat, running: Service, platforms: Platforms
) -> None:
    operator, private = TelegramChat(platforms, "telegram_dm", 77, [77, 77]), where
    operator.say("/access dm pairing")
    await operator.shows_new("Anybody who writes to me in private gets a code")
    private.say("hello")
    told = await private.shows_new("In private chats, I answer only people")
    await running.restart()
    private.say("hello?")
    operator.say(f"/access approve {told.rpartition(': ')[2]}")
    await operator.shows_new(f"{id_of_person(private)} may write to me in private.")
    await private.shows_new("I am tester.")
    await private.ask_and_wait()
    assert [text for text in private.texts() if "code" in text] == [told]
    operator.say("/access dm open")
    await operator.shows_new("Everybody may write to me in private.")


@ALONE_AND_IN_PAIRS
@at(*GROUPS)
async def test_privacy_commands_work_in_a_channel_that_is_off(
    where: Chat, running: Service
) -> None:
    await where.ask_and_wait()
    await send_admin_command(where, "/access off", "I'm switched off here")
    await running.restart()
    said = where.texts()
    where.ask()
    where.tell("/forget me")
    await where.shows_new("Delete everything that you said")
    await send_admin_command(where, "/access on", "I am switched on here.")
    assert len(where.texts()) == len(said) + 2
    await where.ask_and_wait()


@pytest.mark.runs_with(preset_json("tester", system="You are a tester.", tools=["time"]))
@ALONE_AND_IN_PAIRS
@at(*GROUPS)
async def test_only_people_with_the_permission_have_tools(
    where: Chat, running: Service, model: Model
) -> None:
    await send_admin_command(where, f"/access tools person {id_of_person(where).partition(':')[2]}")
    await running.restart()
    for who in (1, 0):
        await where.ask_and_wait(who=who)
        assert ("tools" in model.requests[-1]) == (who == 0)


async def test_server_that_is_off_is_off_in_every_process(
    installer: Installer, platforms: Platforms, database_url: str
) -> None:
    names = ("gateway", "worker", "worker-2", "sender")
    installed = installer.processes(*names, database_url=database_url, with_valkey=True)
    async with installed as services:
        for name, service in zip(names, services, strict=True):
            service.options = ("--role", name.partition("-")[0])
            await service.start_and_wait()
        channels = [platforms.channel() for _ in range(6)]
        for where in channels:  # every worker has read the settings before
            await where.ask_and_wait()
        await send_admin_command(channels[0], "/access off server", "I'm switched off here")
        for where in channels:
            while await is_answered(where):  # until its process has been told, within a second
                pass
        for where in channels:
            assert not await is_answered(where)
        await send_admin_command(channels[0], "/access on server", "I am switched on here.")
        for where in channels[1:]:
            await where.ask_and_wait()


async def is_answered(where: Chat) -> bool:
    """Ask, and then use a command; return whether an answer came before the command's reply."""
    before = where.texts()
    where.ask()
    where.tell("/forget me")
    await where.shows_new("Delete everything that you said", len(before))
    return len(where.texts()) > len(before) + 1


@ALONE_AND_IN_PAIRS
@at("channel", "telegram_group")
async def test_banned_word_is_never_sent_while_streaming(
    where: Chat, running: Service, platforms: Platforms, model: Model
) -> None:
    list(platforms.new_texts())
    model.grow_slowly()
    where.tell_as_admin("/access words 55, fiftyfive")
    question = where.ask(words=60)
    await where.wait_until(lambda: where.texts().count(INSTEAD) == 1)
    sent = [text for _, text in platforms.new_texts() if f"RS{question.name}" in text]
    assert sent, "it was shown while it grew"
    assert not [text for text in sent if re.search(r"\b55?$|\b55\b", text)]
    await running.restart()
    where.ask(words=60)
    await where.wait_until(lambda: where.texts().count(INSTEAD) == 2)
    where.tell_as_admin("/access words none")
    await where.ask_and_wait(words=60)
