"""Test that a private reply never appears in a channel, whatever Discord refuses or loses."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import discord
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bot.chat.incoming import Request
from bot.commands.handlers import COMMANDS
from bot.platforms.discord.platform import DiscordPlatform
from bot.storage.database import Database
from bot.turn.signals import CONVERSATIONS_TOPIC
from tests.platforms.discord.conftest import platform_for, running, wait_until
from tests.rigs.simwire import SimWire
from tests.turn.setup import Setup

ADMIN, MEMBER = "admin", "member"
HINT = "My reply is for you alone"
EPHEMERAL_FLAG = 64
LINES: dict[str, tuple[str, dict[str, str]]] = {
    "/context": ("context", {}),
    "/context prompt": ("context", {"show": "prompt"}),
    "/settings why": ("settings why", {}),
    "/settings me": ("settings me", {}),
    "/settings usage": ("settings usage", {}),
    "/privacy": ("privacy show", {}),
    "/export": ("export", {}),
    "/me": ("me", {}),
    "/recap 1h": ("recap", {"since": "1h"}),
    "/recap monday": ("recap", {"since": "monday"}),
    "/forget channel": ("forget", {"what": "channel"}),
}
"""Commands with private replies: the typed line, and the native command with its options."""
FAULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a send is lost": ("POST", "/channels/*/messages", {"drop": True}),
    "the response to a send is lost": (
        "POST",
        "/channels/*/messages",
        {"drop": True, "after": True},
    ),
    "private messages are refused": ("POST", "/users/@me/channels", {"status": 403, "code": 50007}),
    "a private chat is not opened": ("POST", "/users/@me/channels", {"drop": True}),
    "a response is lost": ("PATCH", "/webhooks/*", {"drop": True}),
    "a response expired": ("PATCH", "/webhooks/*", {"status": 404, "code": 10015}),
    "a response is refused": ("PATCH", "/webhooks/*", {"status": 403, "code": 50013}),
}


class Server:
    """A guild with an admin and a member, and a service that answers there."""

    def __init__(self, database: Database, wire: SimWire, platform: DiscordPlatform) -> None:
        self.wire, self.guild = wire, wire.guild("Guild")
        manage = discord.Permissions(manage_guild=True)
        mods = self.guild.create_role("mods", permissions=manage)
        self.people = {
            ADMIN: wire.member(self.guild, ADMIN, roles=[mods]),
            MEMBER: wire.member(self.guild, MEMBER),
        }
        surfaces = {"discord": platform.surface}
        self.setup = Setup(
            database,
            platforms={"discord": platform},
            rate_limited_surfaces=lambda **_: surfaces,
            is_platform_admin=self._is_admin,
        )
        self._woken: set[str] = set()
        self.setup.signals.subscribe(CONVERSATIONS_TOPIC, self._woken.update)
        self.channel = self.guild.create_text_channel("talk")

    async def _is_admin(self, asked: Request) -> bool:
        return asked.author.id == f"discord:{self.people[ADMIN].id}"

    async def open_channel(self) -> None:
        """Create a channel and have the bot answer a first message there."""
        self.wire.faults.clear()
        self.channel = self.guild.create_text_channel("talk")
        await self.use("hello", MEMBER, is_native=False)
        assert self.shown()[-1] == "Hello."

    async def use(self, line: str, person: str, *, is_native: bool) -> None:
        """Use a command, and let time pass until the bot has replied, including retries."""
        self._woken.clear()
        who = self.people[person]
        if is_native:
            words, options = LINES[line]
            await who.slash(self.channel, words, **options)
        else:
            mention = f"<@{self.wire.b.bot_user.id}>"
            self.wire.say(who, self.channel.id, f"{mention} {line}")
        await wait_until(lambda: self._woken)
        for _ in range(2 + len(self.wire.faults)):
            for key in [*self._woken]:
                await self._pass_time_until_done(self.setup.work(key))
            await self.setup.clock.advance(30)
            private = [self.wire.b.get_dm_channel(one.id).id for one in self.people.values()]
            lanes = [f"discord:{one}" for one in (self.channel.id, *private)]
            self.setup._deliver_lanes(lanes)
            await self._pass_time_until_done(self.setup.finish_sending())

    async def _pass_time_until_done(self, work: Coroutine[None, None, None]) -> None:
        """Run `work`, and advance the clock while it waits to retry a failed request."""
        task = asyncio.create_task(work)
        while not (await asyncio.wait([task], timeout=0.05))[0]:
            await self.setup.clock.advance(1)
        await task

    def shown(self) -> list[str]:
        """Return all texts that the bot ever showed to everybody in the channel."""
        ours = str(self.wire.b.bot_user.id)
        return [
            str(message["content"])
            for _, event, message in self.wire.history(self.channel.id)
            if event != "MESSAGE_DELETE"
            and message["author"]["id"] == ours
            and not message.get("flags", 0) & EPHEMERAL_FLAG
        ]

    def told(self) -> int:
        """Return the number of the bot's messages that only one person can read."""
        messages, ours = self.wire.b.messages, self.wire.b.bot_user.id
        private = [self.wire.b.get_dm_channel(one.id).id for one in self.people.values()]
        alone = [one for chat in private for one in messages.get(chat, {}).values()]
        shown = messages[self.channel.id].values()
        whispers = [one for one in shown if one.flags & EPHEMERAL_FLAG and one.content]
        return len(whispers) + sum(bool(one.author_id == ours) for one in alone)


@pytest.fixture
async def server(database: Database, wire: SimWire) -> AsyncIterator[Server]:
    platform = platform_for(wire, commands=COMMANDS)
    server = Server(database, wire, platform)
    async with running(platform, server.setup.intake):
        yield server


uses = st.tuples(
    st.sampled_from(list(LINES)), st.sampled_from([ADMIN, MEMBER]), st.booleans()
).filter(lambda use: use[:2] != ("/forget channel", ADMIN))  # its reply is for everybody


@settings(
    max_examples=settings().max_examples // 4,  # each takes a tenth of a second
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    asked=st.lists(uses, min_size=1, max_size=4),
    faults=st.lists(st.sampled_from(list(FAULTS)), max_size=3),
)
async def test_private_reply_is_never_in_the_channel(
    server: Server, asked: Sequence[tuple[str, str, bool]], faults: Sequence[str]
) -> None:
    await server.open_channel()
    before, told = len(server.shown()), server.told()
    for name in faults:
        method, path, how = FAULTS[name]
        server.wire.fault(method, path, **how)
    for line, person, is_native in asked:
        await server.use(line, person, is_native=is_native)
    for text in server.shown()[before:]:
        assert not text or text.startswith(HINT)
    assert faults or server.told() - told >= len(asked)
