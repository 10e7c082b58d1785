"""Test the conversion of Discord's messages and commands to `IncomingMessage`."""

import json
from pathlib import Path
from typing import Any

import discord
import pytest

from bot.chat.incoming import (
    Address,
    IncomingMessage,
    MediaItem,
    MediaKind,
    Person,
    Quote,
    ThreadTitle,
    WakeReason,
)
from bot.platforms.discord.gateway import Gateway
from bot.platforms.discord.incoming import (
    to_button_press,
    to_command_message,
    to_incoming_message,
    to_message_edit,
)
from bot.platforms.discord.rest import RestClient
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.discord.shards import IdentifyLimits, Shard
from bot.platforms.spec import PlatformContext
from bot.platforms.tokens import BotToken
from bot.runtime.clock import SystemClock

BOT, ROLE, ALICE, BOB, GUILD, CHANNEL, THREAD, MESSAGE = 1, 2, 10, 11, 20, 30, 31, 900 << 22


DATA = json.loads(Path(__file__).with_name("objects.json").read_text("utf-8"))
"""Discord's objects: a guild with a channel and a thread, people, messages, commands, sessions."""
PEOPLE = {int(one["id"]): one for one in DATA["people"]}


class CachedGuild:
    """A guild with a channel and a thread, and a private channel, in discord.py's cache."""

    def __init__(self) -> None:
        client = discord.Client(intents=discord.Intents.default())
        self.state: Any = client._connection
        self.state.user = self.bot = discord.ClientUser(state=self.state, data=PEOPLE[BOT])
        self.guild = discord.Guild(data=DATA["guild"], state=self.state)
        self.state._add_guild(self.guild)
        direct = DATA["direct"]
        self.direct = discord.DMChannel(me=self.bot, state=self.state, data=direct)

    def receive(
        self, content: str, *, where: int | None = CHANNEL, author: int = ALICE, **more: Any
    ) -> IncomingMessage | None:
        return to_incoming_message(
            self.message(content, where=where, author=author, **more), self.bot
        )

    def said(self, content: str, **fields: Any) -> IncomingMessage:
        said = self.receive(content, **fields)
        assert said is not None
        return said

    def message(
        self, content: str, *, where: int | None = CHANNEL, author: int = ALICE, **more: Any
    ) -> discord.Message:
        channel: Any = self.guild.get_channel_or_thread(where) if where else self.direct
        data = message_data(content, author, **more)
        return discord.Message(state=self.state, channel=channel, data=data)

    def command(self, *, permissions: str | None = None, **more: Any) -> Any:
        """Return `/new` from Alice, who is a member of the guild if `permissions` are given."""
        whose = {"user": PEOPLE[ALICE]}
        if permissions is not None:
            whose = {"member": {**DATA["member"], "permissions": permissions}}
        data: Any = {**DATA["command"], **whose, **more}
        return discord.Interaction(data=data, state=self.state)


@pytest.mark.parametrize("is_nsfw", [False, True])
async def test_age_restriction_of_a_channel_is_inherited_by_its_threads(*, is_nsfw: bool) -> None:
    cache = CachedGuild()
    channel = cache.guild.get_channel(CHANNEL)
    assert isinstance(channel, discord.TextChannel)
    channel.nsfw = is_nsfw
    assert cache.said("hello").is_age_restricted is is_nsfw
    assert cache.said("hello", where=THREAD).is_age_restricted is is_nsfw
    assert cache.said("hello", where=None).is_age_restricted is None
    called = cache.command(
        guild_id=str(GUILD), channel={"id": str(THREAD), "type": 11}, permissions="0"
    )
    assert to_button_press(called).is_age_restricted is is_nsfw


def message_data(content: str, author: int, *, mentions: tuple[int, ...] = (), **more: Any) -> Any:
    return {
        **DATA["message"],
        "author": PEOPLE[author],
        "content": content,
        "mentions": [PEOPLE[number] for number in mentions if number != ROLE],
        "mention_roles": [str(ROLE)] if ROLE in mentions else [],
        **more,
    }


def reply_to(author: int, content: str) -> dict[str, Any]:
    return {
        "type": 19,
        "message_reference": {"message_id": "5", "channel_id": str(CHANNEL)},
        "referenced_message": {**message_data(content, author), "id": "5"},
    }


@pytest.fixture
async def cache() -> CachedGuild:
    return CachedGuild()


async def test_second_bot_has_different_keys(cache: CachedGuild) -> None:
    message = cache.message("hello")
    incoming = to_incoming_message(message, cache.bot, "77")
    command = to_command_message(cache.command(), PlatformContext(bot_id="77"), is_deferred=True)
    assert incoming is not None
    assert incoming.address.conversation.startswith("discord@77:")
    assert command.address.source == "discord@77"
    assert all(scope.startswith("discord@77:") for scope in (*incoming.scopes, *command.scopes))


async def test_direct_message_is_for_the_bot_and_its_author_is_admin(cache: CachedGuild) -> None:
    incoming = cache.said("hello", where=None)
    assert (incoming.wake, incoming.author_is_admin) == (WakeReason.DM, True)
    assert (incoming.address, incoming.scopes) == (Address("discord", "40"), ("discord:40",))
    assert incoming.at.utcoffset() is not None


async def test_message_of_an_unknown_guild_is_not_a_direct_message(cache: CachedGuild) -> None:
    channel = discord.PartialMessageable(state=cache.state, id=77, guild_id=99)
    data = message_data("obey", ALICE, guild_id="99")
    message = discord.Message(state=cache.state, channel=channel, data=data)

    incoming = to_incoming_message(message, cache.bot)

    assert incoming is not None
    assert (incoming.wake, incoming.author_is_admin) == (None, None)


_IN_A_GUILD, _IN_A_FOREIGN_GUILD = DATA["in a guild"], DATA["in a foreign guild"]
_MANAGE_GUILD, _MANAGE_MESSAGES = str(1 << 5), str(1 << 13)


@pytest.mark.parametrize(
    ("given", "is_admin"),
    [
        ({"context": 1}, True),
        (DATA["among friends"], False),
        ({"context": 7}, False),  # a context that is not known
        ({}, False),
        ({**_IN_A_GUILD, "permissions": "0"}, False),
        ({**_IN_A_GUILD, "permissions": _MANAGE_MESSAGES}, False),
        ({**_IN_A_GUILD, "permissions": _MANAGE_GUILD}, True),
        ({**_IN_A_FOREIGN_GUILD, "permissions": "0"}, False),
        ({**_IN_A_FOREIGN_GUILD, "permissions": "0", "context": 1}, False),  # a contradiction
    ],
)
async def test_command_author_is_admin_in_private_or_with_manage_guild(
    cache: CachedGuild, given: dict[str, Any], is_admin: bool
) -> None:
    incoming = to_command_message(cache.command(**given), PlatformContext(), is_deferred=True)
    assert incoming.author_is_admin is is_admin


def make_gateway() -> Gateway:
    settings, clock = DiscordSettings(), SystemClock()
    rest = RestClient(BotToken(settings, clock))
    limits = IdentifyLimits(rest, None, "discord", clock)
    return Gateway(settings, rest, PlatformContext(), discord.Object(BOT), Shard(), limits)


@pytest.mark.parametrize("given", [_IN_A_GUILD, _IN_A_FOREIGN_GUILD, {"channel": {}}])
async def test_incomplete_command_is_ignored(cache: CachedGuild, given: dict[str, Any]) -> None:
    gateway = make_gateway()
    gateway.on_ready()

    await gateway.respond(cache.command(**given), None)
    gateway.on_guild_available(cache.guild)  # which tells nothing of the bot: no arrival
    gateway.on_message(cache.message("hello"))

    event = gateway.event_queue.get_nowait()
    assert gateway.event_queue.empty()
    assert isinstance(event, IncomingMessage)


async def test_message_in_a_guild_is_not_for_the_bot_by_default(cache: CachedGuild) -> None:
    incoming = cache.said("hello")
    assert (incoming.wake, incoming.author_is_admin) == (None, None)
    assert incoming.scopes == ("discord:30", "discord:guild:20")
    assert incoming.message_id == incoming.external_key == str(MESSAGE)
    assert incoming.author == Person("discord:10", "Alice")
    assert incoming.channel_title == f"{cache.guild.name} › #{cache.guild.get_channel(30)}"
    in_thread = cache.said("hello", where=THREAD)
    assert in_thread.address == Address("discord", str(THREAD))
    assert in_thread.scopes == ("discord:31", "discord:30", "discord:guild:20")


def test_thread_title_includes_channel_and_server_even_in_commands(cache: CachedGuild) -> None:
    channel = f"{cache.guild.name} › #{cache.guild.get_channel(CHANNEL)}"
    for where, kind, title in ((CHANNEL, 0, channel), (THREAD, 11, f"{channel} › plans")):
        assert cache.said("hello", where=where).channel_title == title
        place = {"id": str(where), "type": kind, "name": "plans"}
        called = cache.command(guild_id=str(GUILD), channel=place, permissions="0")
        command = to_command_message(called, PlatformContext(), is_deferred=True)
        assert command.channel_title == title
    place = {"id": "78", "type": 0, "name": "far", "position": 0}
    called = cache.command(guild_id="77", channel=place, permissions="0")
    assert to_command_message(called, PlatformContext(), is_deferred=True).channel_title == ""


async def test_thread_title_is_included_unless_the_bot_opened_the_thread(
    cache: CachedGuild,
) -> None:
    for owner, title in ((ALICE, ThreadTitle("plans", f"discord:{ALICE}")), (BOT, None)):
        thread = cache.guild.get_thread(THREAD)
        assert thread is not None
        thread.owner_id = owner
        incoming = cache.said("hello", where=THREAD)
        assert incoming.thread_title == title
        called = cache.command(
            guild_id=str(GUILD), channel={"id": str(THREAD), "type": 11}, permissions="0"
        )
        command = to_command_message(called, PlatformContext(), is_deferred=True)
        for asked in (command, to_button_press(called)):
            assert (asked.in_thread, asked.thread_title) == (True, title)


@pytest.mark.parametrize(
    ("content", "fields", "wake", "text"),
    [
        *(
            (call, {"mentions": (BOT, ROLE)}, WakeReason.MENTION, "hi")
            for call in ("<@1> hi", "<@!1>, hi", "<@1>\n<@&2>: hi", "<@1>，hi")
        ),
        ("<@&2> hi", {"mentions": (ROLE,)}, WakeReason.MENTION, "hi"),
        ("<@1>", {"mentions": (BOT,)}, WakeReason.MENTION, "@Nova"),
        ("<@1> ask <@11>", {"mentions": (BOT, BOB)}, WakeReason.MENTION, "ask @鲍勃"),
        ("<#30> <@1>", {"mentions": (BOT,)}, WakeReason.MENTION, "#general @Nova"),
        ("ask <@77> in <#78> or <@&79>", {}, None, "ask <@77> in <#78> or <@&79>"),
        ("`<@1>` calls it", {}, None, "`<@1>` calls it"),  # Discord lists nobody
        ("@everyone hello", {"mention_everyone": True}, None, "@everyone hello"),
        ("<@11> hi", {"mentions": (BOB,), **reply_to(BOB, "what?")}, None, "@鲍勃 hi"),
        # a forward and a reply to a deleted message
        ("see", {**reply_to(BOT, "It is so."), "type": 0}, None, "see"),
        ("really?", {**reply_to(BOT, ""), "referenced_message": None}, None, "really?"),
    ],
)
async def test_message_with_a_mention_is_for_the_bot_and_contains_names(
    cache: CachedGuild, content: str, fields: dict[str, Any], wake: WakeReason | None, text: str
) -> None:
    said = cache.said(content, **fields)
    assert (said.wake, said.text) == (wake, text)
    assert said.quote is None or fields["type"] == 19


@pytest.mark.parametrize("pinged", [(), (BOT,)])
async def test_reply_to_the_bot_is_for_the_bot(cache: CachedGuild, pinged: tuple[int, ...]) -> None:
    incoming = cache.said("really?", mentions=pinged, **reply_to(BOT, "It is so."))
    assert incoming.wake is WakeReason.REPLY
    assert incoming.quote == Quote(Person(f"discord:{BOT}", "Nova"), "5", "It is so.", is_ours=True)


async def test_reply_with_a_mention_counts_as_a_mention(cache: CachedGuild) -> None:
    text = "<@1> is it so, <@11> <@&5> <#30>?"
    incoming = cache.said(text, mentions=(BOT, BOB), **reply_to(BOB, "It is so."))
    assert incoming.wake is WakeReason.MENTION
    assert incoming.mentions == ("discord:11", "discord:&5")
    assert incoming.quote is not None
    assert (incoming.quote.text, incoming.quote.is_ours) == ("It is so.", False)


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "I am a bot", "author": BOT},
        {"content": "I am a webhook", "webhook_id": "7"},
        {"content": "pinned a message", "type": 6},
        {"content": ""},
        {"content": " \n "},
    ],
)
async def test_messages_of_bots_and_system_messages_are_dropped(
    cache: CachedGuild, fields: dict[str, Any]
) -> None:
    assert cache.receive(**fields) is None


async def test_message_without_text_keeps_its_attachments(cache: CachedGuild) -> None:
    notes = {"id": "2", "filename": "notes.txt", "size": 8, "url": "u2", "proxy_url": "p"}
    cat = {**notes, "filename": "cat.png", "size": 9, "url": "u1", "content_type": "image/png"}
    files = [cat, notes]
    incoming = cache.said("", attachments=files)
    assert incoming.text == ""
    assert incoming.attachments == (
        MediaItem(MediaKind.IMAGE, "cat.png", 9, "u1"),
        MediaItem(MediaKind.FILE, "notes.txt", 8, "u2"),
    )


async def test_each_edit_is_a_separate_event(cache: CachedGuild) -> None:
    times = ("2026-11-22T10:00:00.100000+00:00", "2026-11-22T10:00:00.200000+00:00")
    first, second = (
        to_message_edit(cache.message("new", edited_timestamp=time), cache.bot) for time in times
    )
    assert first is not None
    assert second is not None
    assert (first.said.text, first.said.external_key) == ("new", str(MESSAGE))
    assert len({first.external_key, second.external_key, str(MESSAGE)}) == 3
    preview = cache.message("https://x.example")
    assert to_message_edit(preview, cache.bot) is None, "the preview of a link is none"
