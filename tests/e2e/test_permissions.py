"""Only current admins change what others see, whatever is sent, edited or forged."""

import itertools
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.attacks import with_ours
from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

MEMBER, ADMIN = TELEGRAM_PEOPLE
COMMANDS = (
    "/preset use nova",
    "/preset add nova",
    "/preset remove tester",
    "/preset reset",
    "/forget",
    "/context prompt",
)
ANONYMOUS_ADMIN = 1087968824
"""The bot that Telegram names as the author of what admins write as their group."""
_names = (f"{number:04x}" for number in itertools.count())


@dataclass
class Deployment:
    """Both platforms and the service on them; `state` is what an admin can change."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess

    def state(self) -> tuple[list[tuple[str, str]], int]:
        """Return all settings of chats, and the number of stored turns."""
        path = self.service.data / "troupe.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            choices = database.execute("SELECT scope, value FROM choice ORDER BY scope").fetchall()
            return choices, database.execute("SELECT count(*) FROM turn").fetchone()[0]

    def audited(self, channel: str) -> list[str]:
        """Return what the audit log says was done in a channel."""
        path = self.service.data / "troupe.db"
        query = "SELECT action FROM audit WHERE subject = ? ORDER BY id"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return [action for (action,) in database.execute(query, (channel,))]

    async def wait_for_text(
        self, conversation: Conversation, beginning: str, count: int = 1
    ) -> None:
        def has_text() -> bool:
            return (
                sum(one.startswith(beginning) for one in self.platforms.bot_texts(conversation))
                >= count
            )

        await wait_until(has_text)

    async def ask_and_wait(self, conversation: Conversation) -> None:
        """Ask, and wait for the answer: then everything before it was handled, too."""
        name = next(_names)
        conversation.ask(name, 3)
        await self.wait_for_text(conversation, expected_answer(f"T{name}:3"))
        assert self.model.requests[-1]["messages"][0]["content"] == "You are a tester."

    def decisions(self) -> list[dict[str, Any]]:
        lines = [line for line in self.service.output().splitlines() if "admin_asked_for" in line]
        return [json.loads(line) for line in lines]

    async def check_all_refused(
        self, conversation: Conversation, who: int = 0, *, mention: str = ""
    ) -> None:
        """Send each command: each is refused, changes nothing and is logged."""
        await self.ask_and_wait(conversation)
        before, noted = self.state(), len(self.decisions())
        for count, command in enumerate(COMMANDS, 1):
            conversation.say(mention + command, who)
            await self.wait_for_text(conversation, "⚠ Only an admin can", count)
        assert self.state() == before
        decisions = self.decisions()[noted:]
        assert [one["allowed"] for one in decisions] == [False] * len(COMMANDS)
        await self.ask_and_wait(conversation)

    async def check_ignored(self, conversation: Conversation, act: Callable[[], Any]) -> None:
        """Do something that is not a command to us: it changes nothing and is not answered."""
        await self.ask_and_wait(conversation)
        before, said = self.state()[0], len(self.platforms.bot_texts(conversation))
        act()
        await self.ask_and_wait(conversation)
        assert self.state()[0] == before
        assert len(self.platforms.bot_texts(conversation)) == said + 1

    def group_with_admin(self) -> tuple[Conversation, int]:
        """Create a Telegram group with the admin `ADMIN`."""
        conversation = self.platforms.telegram_group()
        chat = int(conversation.name.removeprefix("telegram:"))
        conversation.say("hello everybody", 1)
        self.platforms.telegram.chats[chat]["_admins"] = {ADMIN}
        return conversation, chat


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> AsyncIterator[Deployment]:
    service.settings["TROUPE_LOG_FORMAT"] = "json"
    await service.start_and_wait()
    yield Deployment(platforms, model, service)
    if service.is_running:
        await service.stop()


# --- Discord ---------------------------------------------------------------------------------


async def member_uses_native_commands(deployment: Deployment) -> None:
    """The permissions in the member data count, not what the server's settings offer."""
    channel = deployment.platforms.guild.create_text_channel(f"open-{next(_names)}")
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
        result = await deployment.platforms.people[0].slash(channel, words, **options)
        await wait_until(lambda seen=result: bool(seen.response and seen.response.content))  # type: ignore[misc]
        assert result.response.content.startswith("⚠ Only an admin can")
    assert deployment.state() == before


async def member_writes_commands(deployment: Deployment) -> None:
    conversation = deployment.platforms.channel()
    await deployment.check_all_refused(conversation, mention=conversation.mention)


async def owner_of_another_server(deployment: Deployment) -> None:
    owner = deployment.platforms.discord.guild("Elsewhere").owner
    deployment.platforms.guild.add_member(owner)
    people = deployment.platforms.people
    deployment.platforms.people = [owner, owner]
    try:
        conversation = deployment.platforms.channel()
        await deployment.check_all_refused(conversation, mention=conversation.mention)
    finally:
        deployment.platforms.people = people


async def former_owner_of_the_server(deployment: Deployment) -> None:
    platforms = deployment.platforms
    old, guild = platforms.people[1], platforms.guild
    first = guild.owner.id
    conversation = platforms.channel()
    try:
        platforms.discord.b.edit_guild(guild.id, {"owner_id": old.id})
        conversation.say(f"{conversation.mention}/preset use tester", 1)
        await deployment.wait_for_text(conversation, "tester answers here")
    finally:
        platforms.discord.b.edit_guild(guild.id, {"owner_id": first})
    await deployment.check_all_refused(conversation, 1, mention=conversation.mention)


async def private_chat_changes_only_itself(deployment: Deployment) -> None:
    """In a private chat everybody is admin, with no effect elsewhere."""
    public, private = deployment.platforms.channel(), deployment.platforms.discord_dm()
    await deployment.ask_and_wait(public)
    private.say("/admin reset", 0)
    await deployment.wait_for_text(private, "⚠ There is no command /admin")
    before = deployment.state()[0]
    private.say("/preset use nova", 0)
    await deployment.wait_for_text(private, "nova answers here")
    assert set(deployment.state()[0]) - set(before) == {(private.name, "nova")}
    await deployment.ask_and_wait(public)


async def edit_on_discord(deployment: Deployment) -> None:
    conversation = deployment.platforms.channel()
    channel = int(conversation.name.removeprefix("discord:"))
    said = conversation.say("hi", 0)
    await deployment.check_ignored(
        conversation,
        lambda: deployment.platforms.discord.b.edit_message(
            channel, said.id, {"content": f"{conversation.mention}/preset use nova"}
        ),
    )


# --- Telegram --------------------------------------------------------------------------------


async def private_chat_claims_admin(deployment: Deployment) -> None:
    conversation = deployment.platforms.telegram_dm()
    before = deployment.state()[0]
    conversation.say("/set_model x", 0)
    await deployment.wait_for_text(conversation, "⚠ There is no command /set_model")
    assert deployment.state()[0] == before
    await deployment.ask_and_wait(conversation)


async def member_of_a_group(deployment: Deployment) -> None:
    conversation, _ = deployment.group_with_admin()
    await deployment.check_all_refused(conversation)


def sender_chat(user: int, sender: int, **more: Any) -> Callable[[Deployment], Awaitable[None]]:
    """Commands sent in the name of a chat, whose author is not known."""

    async def scenario(deployment: Deployment) -> None:
        conversation, chat = deployment.group_with_admin()
        wire = deployment.platforms.telegram
        wire.user(user, is_bot=user != 777000)
        wire.chats[chat]["_admins"] = {ADMIN, user, sender}
        await deployment.ask_and_wait(conversation)
        before = deployment.state()
        shown = {"id": sender or chat, "type": "channel", "title": "Admins"}
        for count, command in enumerate(COMMANDS, 1):
            wire.say(user, command, chat=chat, sender_chat=shown, **more)
            await deployment.wait_for_text(conversation, "⚠ Only an admin can", count)
        assert deployment.state() == before

    return scenario


async def anonymous_admin(deployment: Deployment) -> None:
    """Who writes as the group counts as an admin where one with a name has allowed it."""
    conversation, chat = deployment.group_with_admin()
    wire = deployment.platforms.telegram
    wire.user(ANONYMOUS_ADMIN, is_bot=True)
    group = {"id": chat, "type": "supergroup", "title": "G"}
    conversation.say("/settings anonymous on", 1)
    await deployment.wait_for_text(conversation, "Admins who write anonymously now count")
    wire.say(ANONYMOUS_ADMIN, "/forget", chat=chat, sender_chat=group)
    await deployment.wait_for_text(conversation, "⚠ Only an admin who writes under their own name")
    wire.say(ANONYMOUS_ADMIN, "/preset use nova", chat=chat, sender_chat=group)
    await deployment.wait_for_text(conversation, "nova answers here")
    assert (conversation.name, "nova") in deployment.state()[0]
    wire.say(ANONYMOUS_ADMIN, "/preset reset", chat=chat, sender_chat={**group, "id": chat - 1})
    await deployment.wait_for_text(conversation, "⚠ Only an admin can")
    assert (conversation.name, "nova") in deployment.state()[0]
    conversation.say("/forget", 1)
    acts = ["set anonymous_admins", "set preset", "forget channel"]
    await wait_until(lambda: deployment.audited(conversation.name) == acts)


async def demoted_admin(deployment: Deployment) -> None:
    conversation, chat = deployment.group_with_admin()
    conversation.say("/preset use tester", 1)
    await deployment.wait_for_text(conversation, "tester answers here")
    deployment.platforms.telegram.chats[chat]["_admins"] = set()
    await deployment.check_all_refused(conversation, 1)


def admin_lookup_fails(**fault: Any) -> Callable[[Deployment], Awaitable[None]]:
    async def scenario(deployment: Deployment) -> None:
        conversation, _ = deployment.group_with_admin()
        deployment.platforms.telegram.fault("getChatMember", times=len(COMMANDS), **fault)
        await deployment.check_all_refused(conversation, 1)

    return scenario


async def command_for_another_bot(deployment: Deployment) -> None:
    conversation, chat = deployment.group_with_admin()
    wire = deployment.platforms.telegram
    wire.me["can_read_all_group_messages"] = True
    try:
        await deployment.check_ignored(
            conversation, lambda: wire.say(ADMIN, "/preset@otherbot use nova", chat=chat)
        )
        await deployment.check_ignored(
            conversation, lambda: wire.say(ADMIN, "/forget@sim_bot2", chat=chat)
        )
    finally:
        wire.me["can_read_all_group_messages"] = False


async def edit_on_telegram(deployment: Deployment) -> None:
    conversation, chat = deployment.group_with_admin()
    said = conversation.say("hi", 1)["message_id"]
    wire = deployment.platforms.telegram
    await deployment.check_ignored(
        conversation, lambda: wire.edit(ADMIN, chat, said, "/preset use nova")
    )


async def names_that_look_like_ids(deployment: Deployment) -> None:
    """An id or an SQL statement in a command is an unknown preset name."""
    conversation, _ = deployment.group_with_admin()
    await deployment.ask_and_wait(conversation)
    before = deployment.state()[0]
    for count, name in enumerate(("123 OR 1=1", "nova' OR '1'='1", "telegram:2", "%", "*"), 1):
        conversation.say(f"/preset use {name}", 1)
        await deployment.wait_for_text(conversation, "⚠ ", count)
    assert deployment.state()[0] == before


async def group_that_moved(deployment: Deployment) -> None:
    """An admin of the group is no admin of the supergroup, unless Telegram says so."""
    old, chat = deployment.group_with_admin()
    await deployment.ask_and_wait(old)
    conversation = deployment.platforms.telegram_group()
    wire = deployment.platforms.telegram
    new = int(conversation.name.removeprefix("telegram:"))
    conversation.say("here we are", 1)
    moved = wire._new(chat, wire.user(ADMIN), migrate_to_chat_id=new)
    wire.push({"message": wire._out(moved)})
    await deployment.check_all_refused(conversation, 1)


async def namesake_of_the_admin(deployment: Deployment) -> None:
    conversation, chat = deployment.group_with_admin()
    wire = deployment.platforms.telegram
    admin = wire.user(ADMIN)
    wire.user(666, admin["first_name"], username=admin.get("username", "u2"))
    before = deployment.state()
    wire.say(666, "/preset use nova", chat=chat)
    await deployment.wait_for_text(conversation, "⚠ Only an admin can")
    assert deployment.state() == before


SCENARIOS: Mapping[str, Callable[[Deployment], Awaitable[None]]] = {
    "member runs admin slash command after default_member_permissions was widened in server "
    "settings": member_uses_native_commands,
    "subcommand without decorator": member_writes_commands,
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
OURS: Mapping[str, Callable[[Deployment], Awaitable[None]]] = {
    "member of a group": member_of_a_group,
    "anonymous admin": sender_chat(ANONYMOUS_ADMIN, 0),
    "anonymous admin of a group that allows them": anonymous_admin,
    "getChatMember is cut off": admin_lookup_fails(drop=True),
    "getChatMember is refused": admin_lookup_fails(error_code=400, description="Bad Request"),
    "getChatMember fails": admin_lookup_fails(error_code=500, description="Internal"),
    "edited message on Discord": edit_on_discord,
    "somebody called like the admin": namesake_of_the_admin,
}
ELSEWHERE = {
    "button pressed by another user": (
        "tests/turn/test_pressed_buttons.py::"
        "test_press_of_others_is_refused_in_words_and_changes_nothing"
    )
}


@pytest.mark.parametrize(("title", "given"), with_ours("admin_authz", OURS))
async def test_only_admins_change_anything(deployment: Deployment, title: str, given: Any) -> None:
    scenario = OURS.get(title) or SCENARIOS.get(title)
    if scenario is None:
        pytest.skip(f"runs in {ELSEWHERE[title]}")
    await scenario(deployment)
