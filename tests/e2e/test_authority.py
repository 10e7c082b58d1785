"""Nobody changes what others see but who may at that moment, whatever is said, sent or edited."""

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
from tests.e2e.checker import right_answer
from tests.e2e.model import Model
from tests.e2e.service import Service
from tests.e2e.world import TELEGRAM_PEOPLE, Place, World
from tests.waiting import wait_until

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
_names = (f"{number:04x}" for number in itertools.count())


@dataclass
class Hall:
    """Both platforms and the service on them; `state` is what an admin could have changed."""

    world: World
    model: Model
    service: Service

    def state(self) -> tuple[list[tuple[str, str]], int]:
        """All choices, and the number of things remembered."""
        path = self.service.data / "troupe.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            choices = database.execute("SELECT scope, value FROM choice ORDER BY scope").fetchall()
            return choices, database.execute("SELECT count(*) FROM turn").fetchone()[0]

    async def until_said(self, place: Place, beginning: str, count: int = 1) -> None:
        def says() -> bool:
            return sum(one.startswith(beginning) for one in self.world.said_in(place)) >= count

        await wait_until(says)

    async def caught_up(self, place: Place) -> None:
        """Ask something, and wait until it is answered: what came before it is done, too."""
        name = next(_names)
        place.ask(name, 3)
        await self.until_said(place, right_answer(f"T{name}:3"))
        assert self.model.requests[-1]["messages"][0]["content"] == "You are a tester."

    def decisions(self) -> list[dict[str, Any]]:
        lines = [line for line in self.service.said().splitlines() if "admin_asked_for" in line]
        return [json.loads(line) for line in lines]

    async def refused(self, place: Place, who: int = 0, *, call: str = "") -> None:
        """Let somebody try each command: each is refused, changes nothing and is noted."""
        await self.caught_up(place)
        before, noted = self.state(), len(self.decisions())
        for count, command in enumerate(COMMANDS, 1):
            place.say(call + command, who)
            await self.until_said(place, "⚠ Only an admin can", count)
        assert self.state() == before
        decisions = self.decisions()[noted:]
        assert [one["allowed"] for one in decisions] == [False] * len(COMMANDS)
        await self.caught_up(place)

    async def unheard(self, place: Place, act: Callable[[], Any]) -> None:
        """Let something happen that is no command to us: nobody is told anything."""
        await self.caught_up(place)
        before, said = self.state()[0], len(self.world.said_in(place))
        act()
        await self.caught_up(place)
        assert self.state()[0] == before
        assert len(self.world.said_in(place)) == said + 1

    def ruled_group(self) -> tuple[Place, int]:
        """A group of Telegram that `ADMIN` rules."""
        place = self.world.group()
        chat = int(place.name.removeprefix("telegram:"))
        place.say("hello everybody", 1)
        self.world.telegram.chats[chat]["_admins"] = {ADMIN}
        return place, chat


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hall(world: World, model: Model, service: Service) -> AsyncIterator[Hall]:
    service.settings["TROUPE_LOG_FORMAT"] = "json"
    await service.begin()
    yield Hall(world, model, service)
    if service.running:
        await service.stop()


# --- Discord ---------------------------------------------------------------------------------


async def member_uses_native_commands(hall: Hall) -> None:
    """Whatever the server's settings offer them: what their member data say counts."""
    channel = hall.world.guild.create_text_channel(f"open-{next(_names)}")
    before = hall.state()
    for words, options in (
        ("preset use", {"name": "nova"}),
        ("preset add", {"name": "nova"}),
        ("preset remove", {"name": "tester"}),
        ("preset reset", {}),
        ("forget", {}),
        ("context", {"show": "prompt"}),
    ):
        result = await hall.world.people[0].slash(channel, words, **options)
        await wait_until(lambda seen=result: bool(seen.response and seen.response.content))  # type: ignore[misc]
        assert result.response.content.startswith("⚠ Only an admin can")
    assert hall.state() == before


async def member_writes_commands(hall: Hall) -> None:
    place = hall.world.channel()
    await hall.refused(place, call=place.call)


async def owner_of_another_server(hall: Hall) -> None:
    owner = hall.world.discord.guild("Elsewhere").owner
    hall.world.guild.add_member(owner)
    people = hall.world.people
    hall.world.people = [owner, owner]
    try:
        place = hall.world.channel()
        await hall.refused(place, call=place.call)
    finally:
        hall.world.people = people


async def owner_gave_the_server_away(hall: Hall) -> None:
    world = hall.world
    old, guild = world.people[1], world.guild
    first = guild.owner.id
    place = world.channel()
    try:
        world.discord.b.edit_guild(guild.id, {"owner_id": old.id})
        place.say(f"{place.call}/preset use tester", 1)
        await hall.until_said(place, "tester answers here")
    finally:
        world.discord.b.edit_guild(guild.id, {"owner_id": first})
    await hall.refused(place, 1, call=place.call)


async def private_chat_rules_itself_only(hall: Hall) -> None:
    """In a private chat everybody may; nothing of it shows anywhere else."""
    public, private = hall.world.channel(), hall.world.discord_private()
    await hall.caught_up(public)
    private.say("/admin reset", 0)
    await hall.until_said(private, "⚠ There is no command /admin")
    before = hall.state()[0]
    private.say("/preset use nova", 0)
    await hall.until_said(private, "nova answers here")
    assert set(hall.state()[0]) - set(before) == {(private.name, "nova")}
    await hall.caught_up(public)


async def edit_on_discord(hall: Hall) -> None:
    place = hall.world.channel()
    channel = int(place.name.removeprefix("discord:"))
    said = place.say("hi", 0)
    await hall.unheard(
        place,
        lambda: hall.world.discord.b.edit_message(
            channel, said.id, {"content": f"{place.call}/preset use nova"}
        ),
    )


# --- Telegram --------------------------------------------------------------------------------


async def private_chat_claims_admin(hall: Hall) -> None:
    place = hall.world.telegram_private()
    before = hall.state()[0]
    place.say("/set_model x", 0)
    await hall.until_said(place, "⚠ There is no command /set_model")
    assert hall.state()[0] == before
    await hall.caught_up(place)


async def member_of_a_group(hall: Hall) -> None:
    place, _ = hall.ruled_group()
    await hall.refused(place)


def as_a_chat(user: int, sender: int, **more: Any) -> Callable[[Hall], Awaitable[None]]:
    """Somebody writes commands in a group as a chat; who it really is nobody knows."""

    async def scene(hall: Hall) -> None:
        place, chat = hall.ruled_group()
        wire = hall.world.telegram
        wire.user(user, is_bot=user != 777000)
        wire.chats[chat]["_admins"] = {ADMIN, user, sender}
        await hall.caught_up(place)
        before = hall.state()
        shown = {"id": sender or chat, "type": "channel", "title": "Admins"}
        for count, command in enumerate(COMMANDS, 1):
            wire.say(user, command, chat=chat, sender_chat=shown, **more)
            await hall.until_said(place, "⚠ Only an admin can", count)
        assert hall.state() == before

    return scene


async def admin_no_more(hall: Hall) -> None:
    place, chat = hall.ruled_group()
    place.say("/preset use tester", 1)
    await hall.until_said(place, "tester answers here")
    hall.world.telegram.chats[chat]["_admins"] = set()
    await hall.refused(place, 1)


def telegram_does_not_say(**fault: Any) -> Callable[[Hall], Awaitable[None]]:
    async def scene(hall: Hall) -> None:
        place, _ = hall.ruled_group()
        hall.world.telegram.fault("getChatMember", times=len(COMMANDS), **fault)
        await hall.refused(place, 1)

    return scene


async def command_for_another_bot(hall: Hall) -> None:
    place, chat = hall.ruled_group()
    wire = hall.world.telegram
    wire.me["can_read_all_group_messages"] = True
    try:
        await hall.unheard(place, lambda: wire.say(ADMIN, "/preset@otherbot use nova", chat=chat))
        await hall.unheard(place, lambda: wire.say(ADMIN, "/forget@sim_bot2", chat=chat))
    finally:
        wire.me["can_read_all_group_messages"] = False


async def edit_on_telegram(hall: Hall) -> None:
    place, chat = hall.ruled_group()
    said = place.say("hi", 1)["message_id"]
    wire = hall.world.telegram
    await hall.unheard(place, lambda: wire.edit(ADMIN, chat, said, "/preset use nova"))


async def odd_ids_and_names(hall: Hall) -> None:
    """What looks like an id or a statement in a command is a name that nobody has."""
    place, _ = hall.ruled_group()
    await hall.caught_up(place)
    before = hall.state()[0]
    for count, name in enumerate(("123 OR 1=1", "nova' OR '1'='1", "telegram:2", "%", "*"), 1):
        place.say(f"/preset use {name}", 1)
        await hall.until_said(place, "⚠ ", count)
    assert hall.state()[0] == before


async def group_that_moved(hall: Hall) -> None:
    """Who ruled the group does not rule the supergroup that it became, unless Telegram says so."""
    old, chat = hall.ruled_group()
    await hall.caught_up(old)
    place = hall.world.group()
    wire = hall.world.telegram
    new = int(place.name.removeprefix("telegram:"))
    place.say("here we are", 1)
    moved = wire._new(chat, wire.user(ADMIN), migrate_to_chat_id=new)
    wire.push({"message": wire._out(moved)})
    await hall.refused(place, 1)


async def namesake_of_the_admin(hall: Hall) -> None:
    place, chat = hall.ruled_group()
    wire = hall.world.telegram
    admin = wire.user(ADMIN)
    wire.user(666, admin["first_name"], username=admin.get("username", "u2"))
    before = hall.state()
    wire.say(666, "/preset use nova", chat=chat)
    await hall.until_said(place, "⚠ Only an admin can")
    assert hall.state() == before


SCENES: Mapping[str, Callable[[Hall], Awaitable[None]]] = {
    "member runs admin slash command after default_member_permissions was widened in server "
    "settings": member_uses_native_commands,
    "subcommand without decorator": member_writes_commands,
    "admin command in DM": private_chat_rules_itself_only,
    "user-installed app in foreign guild": owner_of_another_server,
    "Telegram user in private chat claims admin": private_chat_claims_admin,
    "linked channel post 777000": as_a_chat(777000, -100222, is_automatic_forward=True),
    "send-as-channel impostor": as_a_chat(136817688, -100333),
    "demoted admin within cache TTL": admin_no_more,
    "getChatMember fails (429/timeout)": telegram_does_not_say(retry_after=9),
    "command addressed to other bot": command_for_another_bot,
    "edited message turns into a command": edit_on_telegram,
    "id type confusion": odd_ids_and_names,
    "group migrated to supergroup": group_that_moved,
    "guild owner transferred": owner_gave_the_server_away,
}
OURS: Mapping[str, Callable[[Hall], Awaitable[None]]] = {
    "member of a group": member_of_a_group,
    "anonymous admin": as_a_chat(1087968824, 0),
    "getChatMember is cut off": telegram_does_not_say(drop=True),
    "getChatMember is refused": telegram_does_not_say(error_code=400, description="Bad Request"),
    "getChatMember fails": telegram_does_not_say(error_code=500, description="Internal"),
    "edited message on Discord": edit_on_discord,
    "somebody called like the admin": namesake_of_the_admin,
}
NOT_HERE = {"button pressed by another user": "there are no buttons"}


@pytest.mark.parametrize(("title", "given"), with_ours("admin_authz", OURS))
async def test_whoever_may_not_changes_nothing(hall: Hall, title: str, given: Any) -> None:
    scene = OURS.get(title) or SCENES.get(title)
    if scene is None:
        pytest.skip(NOT_HERE.get(title, "there is no scene for this"))
    await scene(hall)
