"""Test that only current admins can change what other people see, even with forged events."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.attacks import skip_for, with_ours
from tests.support.chats import TELEGRAM_PEOPLE, Chat, Platforms, TelegramChat
from tests.support.features import ON_THE_WIRES
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service

pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(TESTER, TROUPE_LOG_FORMAT="json")]

ADMIN = TELEGRAM_PEOPLE[1]
COMMANDS = (
    "/preset use nova",
    "/preset add nova",
    "/preset remove tester",
    "/preset reset",
    "/forget",
    "/context prompt",
)
ONLY_ADMINS = "⚠ Only an admin can"
PRIVATE = "My reply is for you alone."
ANONYMOUS_ADMIN = 1087968824
"""The bot that Telegram reports as the author of admins' anonymous messages."""


@dataclass
class Deployment:
    """Both platforms and the service; `state` returns everything that admins can change."""

    platforms: Platforms
    model: Model
    service: Service

    def state(self) -> tuple[list[tuple[str, str]], int]:
        """Return all chat settings, and the number of stored turns."""
        choices = self.service.query(
            "SELECT scope, value FROM choice WHERE key <> 'title' ORDER BY scope"
        )
        return choices, self.service.query("SELECT count(*) FROM turn")[0][0]

    async def wait_for_text(self, where: Chat, beginning: str, count: int = 1) -> None:
        await where.wait_until(
            lambda: sum(text.startswith(beginning) for text in where.texts()) >= count
        )

    async def wait_for_refusals(self, where: Chat, count: int, who: int = 0) -> None:
        """Wait for a number of refusals to a person, in private or as a hint in the chat."""
        await where.wait_until(
            lambda: (
                sum(text.startswith(ONLY_ADMINS) for text in where.private_texts(who))
                + sum(text.startswith(PRIVATE) for text in where.texts())
                >= count
            )
        )
        assert not any(text.startswith(ONLY_ADMINS) for text in where.texts())

    async def ask(self, where: Chat) -> None:
        """Ask, and wait for the answer; then all earlier messages have been handled."""
        await where.ask_and_wait()
        assert self.model.requests[-1]["messages"][0]["content"] == "You are a tester."

    def decisions(self) -> list[bool]:
        lines = [line for line in self.service.output().splitlines() if "admin_asked_for" in line]
        return [json.loads(line)["allowed"] for line in lines]

    async def check_all_refused(self, where: Chat, who: int = 0) -> None:
        """Check that every command is refused, changes nothing, and is logged."""
        await self.ask(where)
        before, decided = self.state(), len(self.decisions())
        earlier = len(where.private_texts(who))
        for count, command in enumerate(COMMANDS, 1):
            where.say(command if where.is_telegram else where.mention + command, who)
            await self.wait_for_refusals(where, earlier + count, who)
        assert self.state() == before
        assert self.decisions()[decided:] == [False] * len(COMMANDS)
        await self.ask(where)

    async def check_ignored(self, where: Chat, act: Callable[[], Any]) -> None:
        """Check that an action that is not a command changes nothing and is not answered."""
        await self.ask(where)
        before, said = self.state()[0], len(where.texts())
        act()
        await self.ask(where)
        assert self.state()[0] == before
        assert len(where.texts()) == said + 1

    def group_with_admin(self) -> TelegramChat:
        """Create a Telegram group with the admin `ADMIN`."""
        group = self.platforms.telegram_group()
        group.say("hello everybody", 1)
        group.make_admins(ADMIN)
        return group


Scenario = Callable[[Deployment], Awaitable[None]]


@pytest.fixture
def deployment(platforms: Platforms, model: Model, running: Service) -> Deployment:
    return Deployment(platforms, model, running)


# --- Discord ---------------------------------------------------------------------------------


async def member_uses_native_commands(deployment: Deployment) -> None:
    """A command is refused without admin permissions, even if settings make it visible."""
    where, member = deployment.platforms.channel(), deployment.platforms.people[0]
    deployment.platforms.offer_to_everybody("preset")
    before = deployment.state()
    for words, options in (
        ("preset use", {"name": "nova"}),
        ("preset add", {"name": "nova"}),
        ("preset remove", {"name": "tester"}),
        ("preset reset", {}),
        ("forget", {}),
        ("context", {"show": "prompt"}),
    ):
        assert (await where.slash(member, words, **options)).content.startswith(ONLY_ADMINS)
    assert deployment.state() == before


async def owner_of_another_server(deployment: Deployment) -> None:
    owner = deployment.platforms.discord.guild("Elsewhere").owner
    deployment.platforms.guild.add_member(owner)
    where = deployment.platforms.channel()
    where.people = [owner]
    await deployment.check_all_refused(where)


async def former_owner_of_the_server(deployment: Deployment) -> None:
    platforms, where = deployment.platforms, deployment.platforms.channel()
    old, guild = platforms.people[1], platforms.guild
    first = guild.owner.id
    try:
        platforms.discord.b.edit_guild(guild.id, {"owner_id": old.id})
        where.tell("/preset use tester", 1)
        await where.shows_new("tester answers here")
    finally:
        platforms.discord.b.edit_guild(guild.id, {"owner_id": first})
    await deployment.check_all_refused(where, 1)


async def private_chat_changes_only_itself(deployment: Deployment) -> None:
    """Everybody is an admin in their private chat, without effect elsewhere."""
    public, private = deployment.platforms.channel(), deployment.platforms.discord_dm()
    await deployment.ask(public)
    private.say("/admin reset")
    await private.shows_new("⚠ There is no command /admin")
    before = deployment.state()[0]
    private.say("/preset use nova")
    await private.shows_new("nova answers here")
    assert set(deployment.state()[0]) - set(before) == {(private.name, "nova")}
    await deployment.ask(public)


async def edit_on_discord(deployment: Deployment) -> None:
    where = deployment.platforms.channel()
    said = where.say("hi")
    await deployment.check_ignored(
        where, lambda: where.edit(said, f"{where.mention}/preset use nova")
    )


# --- Telegram --------------------------------------------------------------------------------


async def private_chat_claims_admin(deployment: Deployment) -> None:
    where = deployment.platforms.telegram_dm()
    before = deployment.state()[0]
    where.say("/set_model x")
    await where.shows_new("⚠ There is no command /set_model")
    assert deployment.state()[0] == before
    await deployment.ask(where)


def sender_chat(user: int, sender: int, **more: Any) -> Scenario:
    """Commands sent in the name of a chat have no known author, and are refused."""

    async def scenario(deployment: Deployment) -> None:
        group, wire = deployment.group_with_admin(), deployment.platforms.telegram
        wire.user(user, is_bot=user != 777000)
        group.make_admins(ADMIN, user, sender)
        await deployment.ask(group)
        before = deployment.state()
        shown = {"id": sender or group.chat, "type": "channel", "title": "Admins"}
        for count, command in enumerate(COMMANDS, 1):
            wire.say(user, command, chat=group.chat, sender_chat=shown, **more)
            await deployment.wait_for_text(group, PRIVATE, count)
        assert deployment.state() == before

    return scenario


async def demoted_admin(deployment: Deployment) -> None:
    group = deployment.group_with_admin()
    group.say("/preset use tester", 1)
    await group.shows_new("tester answers here")
    group.make_admins()
    await deployment.check_all_refused(group, 1)


def admin_lookup_fails(**fault: Any) -> Scenario:
    async def scenario(deployment: Deployment) -> None:
        group = deployment.group_with_admin()
        deployment.platforms.telegram.fault("getChatMember", times=len(COMMANDS), **fault)
        await deployment.check_all_refused(group, 1)

    return scenario


async def command_for_another_bot(deployment: Deployment) -> None:
    group, wire = deployment.group_with_admin(), deployment.platforms.telegram
    wire.me["can_read_all_group_messages"] = True
    try:
        for command in ("/preset@otherbot use nova", "/forget@sim_bot2"):
            await deployment.check_ignored(group, lambda: group.say(command, 1))  # noqa: B023
    finally:
        wire.me["can_read_all_group_messages"] = False


async def edit_on_telegram(deployment: Deployment) -> None:
    group = deployment.group_with_admin()
    said = group.say("hi", 1)
    await deployment.check_ignored(group, lambda: group.edit(said, "/preset use nova", 1))


async def names_that_look_like_ids(deployment: Deployment) -> None:
    """Ids and SQL in a command are treated as unknown preset names."""
    group = deployment.group_with_admin()
    await deployment.ask(group)
    before = deployment.state()[0]
    for count, name in enumerate(("123 OR 1=1", "nova' OR '1'='1", "telegram:2", "%", "*"), 1):
        group.say(f"/preset use {name}", 1)
        await deployment.wait_for_text(group, "⚠ ", count)
    assert deployment.state()[0] == before


async def group_that_moved(deployment: Deployment) -> None:
    """An admin of a group is an admin of the new supergroup only if Telegram says so."""
    old, new = deployment.group_with_admin(), deployment.platforms.telegram_group()
    wire = deployment.platforms.telegram
    await deployment.ask(old)
    new.say("here we are", 1)
    moved = wire._new(old.chat, wire.user(ADMIN), migrate_to_chat_id=new.chat)
    wire.push({"message": wire._out(moved)})
    await deployment.check_all_refused(new, 1)


async def namesake_of_the_admin(deployment: Deployment) -> None:
    group, wire = deployment.group_with_admin(), deployment.platforms.telegram
    admin = wire.user(ADMIN)
    wire.user(666, admin["first_name"], username=admin.get("username", "u2"))
    before = deployment.state()
    wire.say(666, "/preset use nova", chat=group.chat)
    await group.shows_new(PRIVATE)
    assert deployment.state() == before


SCENARIOS: Mapping[str, Scenario] = {
    "member runs admin slash command after default_member_permissions was widened in server "
    "settings": member_uses_native_commands,
    "subcommand without decorator": lambda one: one.check_all_refused(one.platforms.channel()),
    "admin command in DM": private_chat_changes_only_itself,
    "user-installed app in foreign guild": owner_of_another_server,
    "Telegram user in private chat claims admin": private_chat_claims_admin,
    "linked channel post 777000": sender_chat(777000, -100222, is_automatic_forward=True),
    "send-as-channel impostor": sender_chat(136817688, -100333),
    "demoted admin within cache TTL": demoted_admin,
    "getChatMember fails (429/timeout)": admin_lookup_fails(retry_after=9),
    "command addressed to other bot": command_for_another_bot,
    "edited message turns into a command": edit_on_telegram,
    "id type confusion": names_that_look_like_ids,
    "group migrated to supergroup": group_that_moved,
    "guild owner transferred": former_owner_of_the_server,
}
OURS: Mapping[str, Scenario] = {
    "member of a group": lambda one: one.check_all_refused(one.group_with_admin()),
    "anonymous admin": sender_chat(ANONYMOUS_ADMIN, 0),
    "getChatMember is cut off": admin_lookup_fails(drop=True),
    "getChatMember is refused": admin_lookup_fails(error_code=400, description="Bad Request"),
    "getChatMember fails": admin_lookup_fails(error_code=500, description="Internal"),
    "edited message on Discord": edit_on_discord,
    "somebody called like the admin": namesake_of_the_admin,
}
ELSEWHERE = {
    "button pressed by another user": (
        "tests/turn/test_pressed_buttons.py::test_press_by_another_person_is_refused_with_a_notice"
    )
}


@pytest.mark.parametrize(("title", "given"), with_ours("admin_authz", OURS))
async def test_only_admins_can_change_anything(
    deployment: Deployment, title: str, given: Any
) -> None:
    scenario = OURS.get(title) or SCENARIOS.get(title)
    if scenario is None:
        skip_for(ELSEWHERE[title])
    await scenario(deployment)
