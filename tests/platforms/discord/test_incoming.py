"""What Discord says, as `Incoming`."""

from typing import Any

import discord
import pytest

from bot.chat.incoming import Address, Incoming, WakeReason
from bot.platforms.discord.gateway import Gateway
from bot.platforms.discord.incoming import command_to_incoming, to_incoming
from bot.platforms.discord.settings import DiscordSettings

BOT, ROLE, ALICE, BOB, GUILD, CHANNEL, THREAD, MESSAGE = 1, 2, 10, 11, 20, 30, 31, 900 << 22


def user(number: int, name: str, **more: Any) -> Any:
    return {
        "id": str(number),
        "username": name.lower(),
        "global_name": name,
        "discriminator": "0",
        "avatar": None,
        **more,
    }


PEOPLE = {BOT: user(BOT, "Nova", bot=True), ALICE: user(ALICE, "Alice"), BOB: user(BOB, "鲍勃")}


class Place:
    """A guild with a channel and a thread, and a direct channel, as discord.py keeps them."""

    def __init__(self) -> None:
        client = discord.Client(intents=discord.Intents.default())
        self.state: Any = client._connection
        self.state.user = self.bot = discord.ClientUser(state=self.state, data=PEOPLE[BOT])
        everyone = {"id": str(GUILD), "name": "@everyone", "permissions": "0", "position": 0}
        ours = {"id": str(ROLE), "name": "Nova", "permissions": "0", "position": 1}
        for role in (everyone, ours):
            role |= {"color": 0, "colors": {"primary_color": 0}, "hoist": False, "managed": True}
            role |= {"mentionable": True, "flags": 0}
        ours["tags"] = {"bot_id": str(BOT)}
        channel = {"id": str(CHANNEL), "type": 0, "name": "general", "position": 0}
        thread = {
            "id": str(THREAD),
            "type": 11,
            "name": "plans",
            "parent_id": str(CHANNEL),
            "guild_id": str(GUILD),
            "owner_id": str(ALICE),
            "message_count": 1,
            "member_count": 1,
            "thread_metadata": {
                "archived": False,
                "auto_archive_duration": 60,
                "archive_timestamp": "2026-01-01T00:00:00+00:00",
                "locked": False,
            },
        }
        guild: Any = {
            "id": str(GUILD),
            "name": "Guild",
            "roles": [everyone, ours],
            "channels": [channel],
            "threads": [thread],
            "members": [],
            "emojis": [],
            "features": [],
        }
        self.guild = discord.Guild(data=guild, state=self.state)
        self.state._add_guild(self.guild)
        direct: Any = {"id": "40", "type": 1, "recipients": [PEOPLE[ALICE]]}
        self.direct = discord.DMChannel(me=self.bot, state=self.state, data=direct)

    def hear(
        self, content: str, *, where: int | None = CHANNEL, author: int = ALICE, **more: Any
    ) -> Incoming | None:
        return to_incoming(self.message(content, where=where, author=author, **more), self.bot)

    def message(
        self, content: str, *, where: int | None = CHANNEL, author: int = ALICE, **more: Any
    ) -> discord.Message:
        channel: Any = self.guild.get_channel_or_thread(where) if where else self.direct
        data = said(content, author, **more)
        return discord.Message(state=self.state, channel=channel, data=data)

    def command(self, *, permissions: str | None = None, **more: Any) -> Any:
        """`/new` from Alice as discord.py gives it; with `permissions` as a member of the guild."""
        member = {"user": PEOPLE[ALICE], "roles": [], "joined_at": None, "deaf": False}
        whose = {"user": PEOPLE[ALICE]}
        if permissions is not None:
            whose = {"member": {**member, "mute": False, "flags": 0, "permissions": permissions}}
        data: Any = {
            "id": str(MESSAGE),
            "application_id": "8",
            "type": 2,
            "token": "t",
            "version": 1,
            "data": {"id": "9", "name": "new", "type": 1},
            "channel_id": "40",
            "channel": {"id": "40", "type": 1, "recipients": [PEOPLE[ALICE]]},
            "attachment_size_limit": 0,
            **whose,
            **more,
        }
        return discord.Interaction(data=data, state=self.state)


def said(content: str, author: int, *, naming: tuple[int, ...] = (), **more: Any) -> Any:
    return {
        "id": str(MESSAGE),
        "channel_id": str(CHANNEL),
        "author": PEOPLE[author],
        "content": content,
        "timestamp": "2026-01-01T00:00:00+00:00",
        "edited_timestamp": None,
        "type": 0,
        "tts": False,
        "pinned": False,
        "mention_everyone": False,
        "mentions": [PEOPLE[number] for number in naming if number != ROLE],
        "mention_roles": [str(ROLE)] if ROLE in naming else [],
        "attachments": [],
        "embeds": [],
        "components": [],
        **more,
    }


def reply_to(author: int, content: str) -> dict[str, Any]:
    return {
        "type": 19,
        "message_reference": {"message_id": "5", "channel_id": str(CHANNEL)},
        "referenced_message": {**said(content, author), "id": "5"},
    }


@pytest.fixture
async def place() -> Place:
    return Place()


async def test_direct_message_wakes_and_its_author_may_change_everything(place: Place) -> None:
    incoming = place.hear("hello", where=None)
    assert incoming is not None
    assert incoming.wake is WakeReason.DM
    assert incoming.author_is_admin is True
    assert incoming.address == Address("discord", "40")
    assert incoming.scopes == ("discord:40",)
    assert incoming.at.utcoffset() is not None


async def test_message_of_a_guild_that_is_not_known_is_no_direct_one(place: Place) -> None:
    channel = discord.PartialMessageable(state=place.state, id=77, guild_id=99)
    data = said("obey", ALICE, guild_id="99")
    message = discord.Message(state=place.state, channel=channel, data=data)

    incoming = to_incoming(message, place.bot)

    assert incoming is not None
    assert (incoming.wake, incoming.author_is_admin) == (None, None)


_IN_A_GUILD = {
    "guild_id": str(GUILD),
    "channel": {"id": str(CHANNEL), "type": 0, "name": "general", "position": 0},
    "context": 0,
}
_IN_A_FOREIGN_GUILD = {
    **_IN_A_GUILD,
    "guild_id": "99",
    "authorizing_integration_owners": {"1": "10"},
}
_AMONG_FRIENDS = {"channel": {"id": "40", "type": 3, "recipients": []}, "context": 2}
_MANAGE_GUILD, _MANAGE_MESSAGES = str(1 << 5), str(1 << 13)


@pytest.mark.parametrize(
    ("given", "is_admin"),
    [
        ({"context": 1}, True),
        (_AMONG_FRIENDS, False),
        ({"context": 7}, False),  # some new kind of place
        ({}, False),
        ({**_IN_A_GUILD, "permissions": "0"}, False),
        ({**_IN_A_GUILD, "permissions": _MANAGE_MESSAGES}, False),
        ({**_IN_A_GUILD, "permissions": _MANAGE_GUILD}, True),
        ({**_IN_A_FOREIGN_GUILD, "permissions": "0"}, False),
        ({**_IN_A_FOREIGN_GUILD, "permissions": "0", "context": 1}, False),  # a contradiction
    ],
)
async def test_admin_of_a_command_is_who_rules_its_place(
    place: Place, given: dict[str, Any], is_admin: bool
) -> None:
    incoming = command_to_incoming(place.command(**given), deferred=True)
    assert incoming.author_is_admin is is_admin


@pytest.mark.parametrize("given", [_IN_A_GUILD, _IN_A_FOREIGN_GUILD, {"channel": {}}])
async def test_command_of_nobody_or_from_nowhere_is_let_go(
    place: Place, given: dict[str, Any]
) -> None:
    gateway = Gateway(DiscordSettings(), lambda _: ())

    await gateway.on_interaction(place.command(**given))
    await gateway.on_message(place.message("hello"))

    [event] = await gateway.events()
    assert isinstance(event, discord.Message)


async def test_message_in_a_guild_does_not_wake(place: Place) -> None:
    incoming = place.hear("hello")
    assert incoming is not None
    assert incoming.wake is None
    assert incoming.author_is_admin is None
    assert incoming.scopes == ("discord:30", "discord:guild:20")
    assert incoming.message_id == incoming.external_key == str(MESSAGE)
    assert (incoming.author.id, incoming.author.name) == ("discord:10", "Alice")


async def test_thread_is_a_chat_of_its_own_below_its_channel(place: Place) -> None:
    incoming = place.hear("hello", where=THREAD)
    assert incoming is not None
    assert incoming.address == Address("discord", str(THREAD))
    assert incoming.scopes == ("discord:31", "discord:30", "discord:guild:20")


@pytest.mark.parametrize("call", ["<@1> hi", "<@!1>, hi", "<@1>\n<@&2>: hi", "<@1>，hi"])
async def test_call_at_the_beginning_is_taken_off(place: Place, call: str) -> None:
    incoming = place.hear(call, naming=(BOT, ROLE))
    assert incoming is not None
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, "hi")


async def test_role_made_for_the_bot_calls_it(place: Place) -> None:
    incoming = place.hear("<@&2> hi", naming=(ROLE,))
    assert incoming is not None
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, "hi")


async def test_call_within_the_text_becomes_a_name(place: Place) -> None:
    incoming = place.hear("hi <@1>, ask <@11> in <#30>", naming=(BOT, BOB))
    assert incoming is not None
    assert incoming.text == "hi @Nova, ask @鲍勃 in #general"


async def test_mere_call_keeps_its_text(place: Place) -> None:
    incoming = place.hear("<@1>", naming=(BOT,))
    assert incoming is not None
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, "@Nova")


async def test_name_nobody_knows_stays_as_it_is(place: Place) -> None:
    incoming = place.hear("ask <@77> in <#78> or <@&79>")
    assert incoming is not None
    assert incoming.text == "ask <@77> in <#78> or <@&79>"


async def test_call_within_a_code_block_does_not_wake(place: Place) -> None:
    incoming = place.hear("`<@1>` is how you call it")  # Discord lists nobody
    assert incoming is not None
    assert incoming.wake is None


async def test_everyone_does_not_wake(place: Place) -> None:
    incoming = place.hear("@everyone hello", mention_everyone=True)
    assert incoming is not None
    assert incoming.wake is None


async def test_message_for_somebody_else_does_not_wake(place: Place) -> None:
    incoming = place.hear("<@11> hello", naming=(BOB,), **reply_to(BOB, "what?"))
    assert incoming is not None
    assert incoming.wake is None


@pytest.mark.parametrize("pinged", [(), (BOT,)])
async def test_reply_to_the_bot_wakes_with_or_without_a_ping(
    place: Place, pinged: tuple[int, ...]
) -> None:
    incoming = place.hear("really?", naming=pinged, **reply_to(BOT, "It is so."))
    assert incoming is not None
    assert (incoming.wake, incoming.quote) == (WakeReason.REPLY, "It is so.")


async def test_reply_that_also_calls_is_a_mention_with_a_quote(place: Place) -> None:
    incoming = place.hear("<@1> is it so?", naming=(BOT, BOB), **reply_to(BOB, "It is so."))
    assert incoming is not None
    assert (incoming.wake, incoming.quote) == (WakeReason.MENTION, "It is so.")


async def test_reply_to_a_deleted_message_quotes_nothing(place: Place) -> None:
    incoming = place.hear("really?", **{**reply_to(BOT, ""), "referenced_message": None})
    assert incoming is not None
    assert (incoming.wake, incoming.quote) == (None, None)


async def test_forward_of_a_message_of_the_bot_is_no_reply(place: Place) -> None:
    incoming = place.hear("see", **{**reply_to(BOT, "It is so."), "type": 0})
    assert incoming is not None
    assert (incoming.wake, incoming.quote) == (None, None)


@pytest.mark.parametrize(
    "unsaid",
    [
        {"content": "I am a bot", "author": BOT},
        {"content": "I am a webhook", "webhook_id": "7"},
        {"content": "pinned a message", "type": 6},
        {"content": ""},
        {"content": " \n "},
    ],
)
async def test_what_nobody_said_is_not_heard(place: Place, unsaid: dict[str, Any]) -> None:
    assert place.hear(**unsaid) is None
