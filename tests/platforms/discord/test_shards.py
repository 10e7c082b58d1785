"""Test that a new process resumes the sessions of shards, and that IDENTIFYs stay within limits."""

from dataclasses import replace
from typing import Any

import pytest
from simcord.builders import ChannelHandle
from simcord.results import ResponseMessage

from bot.chat.incoming import ButtonPress, IncomingMessage, MessageEdit
from bot.platforms.discord.shards import GatewaySession, Shard
from tests.platforms.discord.conftest import platform_for, running, wait_until
from tests.rigs.simwire import SimWire
from tests.support.intake import FakeIntake

pytestmark = pytest.mark.service


def count(wire: SimWire, name: str) -> int:
    return sum(event == name for _, event, _ in wire.events)


def callbacks(wire: SimWire) -> list[dict[str, Any]]:
    return [one for one in wire.log if one["path"].endswith("/callback")]


def session_name(intake: FakeIntake) -> str | None:
    return next((name for name in intake.stored if name.endswith(" session")), None)


class Guilds:
    """Two guilds on different shards, each with a channel and a member."""

    def __init__(self, wire: SimWire) -> None:
        self.wire = wire
        self.guilds: dict[int, Any] = {}
        while len(self.guilds) < 2:
            guild = wire.guild(f"Guild {len(wire.b.guilds)}")
            self.guilds.setdefault((guild.id >> 22) % 2, guild)
        self.channels = {
            shard: guild.create_text_channel("general").id for shard, guild in self.guilds.items()
        }
        self.people = {
            shard: wire.member(guild, f"person-{shard}") for shard, guild in self.guilds.items()
        }

    def say(self, shard: int, text: str) -> Any:
        return self.wire.say(self.people[shard], self.channels[shard], text)


@pytest.fixture
def guilds(wire: SimWire) -> Guilds:
    return Guilds(wire)


@pytest.fixture
def intake() -> FakeIntake:
    return FakeIntake()


async def test_restart_misses_nothing(wire: SimWire, guilds: Guilds, intake: FakeIntake) -> None:
    async with running(platform_for(wire), intake):
        guilds.say(0, "before")
        await wait_until(lambda: intake.received)
        await wait_until(lambda: any(" session" in name for name in intake.stored))
    thread = wire.b.create_thread(guilds.channels[0], "plans", owner_id=wire.b.bot_user.id)
    missed = guilds.say(0, "missed")
    wire.say(guilds.people[0], thread.id, "missed in a thread")
    wire.edit(guilds.channels[0], missed.id, "missed, then edited")
    async with running(platform_for(wire), intake):
        guilds.say(0, "live")
        await wait_until(lambda: "live" in intake.texts)
    assert [type(one) for one in intake.events] == [
        IncomingMessage,
        IncomingMessage,
        IncomingMessage,
        MessageEdit,
        IncomingMessage,
    ]
    assert intake.texts == ["before", "missed", "missed in a thread", "live"]
    assert (count(wire, "<op2"), count(wire, "<op6")) == (1, 1)
    in_thread = intake.received[2]
    assert in_thread.scopes == (
        f"discord:{thread.id}",
        f"discord:{guilds.channels[0]}",
        f"discord:guild:{guilds.guilds[0].id}",
    )
    assert not [one for one in wire.log if "/messages" in one["path"]]


async def test_session_is_stored_within_seconds(
    wire: SimWire, guilds: Guilds, intake: FakeIntake
) -> None:
    async with running(platform_for(wire), intake):
        guilds.say(0, "first")
        await wait_until(lambda: intake.received)
        guilds.say(0, "last")
        [session] = wire.sessions.values()
        await wait_until(lambda: f'"sequence":{session.seq}' in str(intake.stored))


def _without_what_guilds_add(intake: FakeIntake) -> list[str]:
    """Return commands and presses without the names and roles from guilds, which load later."""
    asked = [one for one in intake.events if isinstance(one, IncomingMessage | ButtonPress)]
    asked = [replace(one, author_roles=None) for one in asked]
    commands = [replace(one, channel_title="") for one in asked if isinstance(one, IncomingMessage)]
    return sorted(map(repr, [*commands, *(one for one in asked if isinstance(one, ButtonPress))]))


async def test_replayed_events_are_answered_once(
    wire: SimWire, guilds: Guilds, intake: FakeIntake
) -> None:
    alice, channel = guilds.people[0], guilds.channels[0]
    button = {"type": 2, "style": 2, "label": "Retry", "custom_id": "retry:1"}
    shown = wire.b.create_message(
        channel, wire.b.bot_user.id, "x", components=[{"type": 1, "components": [button]}]
    )
    async with running(platform_for(wire), intake):
        await wait_until(lambda: wire.b.commands and session_name(intake))
        before = dict(intake.stored)
        where = ChannelHandle(wire.env, guilds.guilds[0], wire.b.get_channel(channel))
        called = await alice.slash(where, "new")
        pressed = await alice.click(ResponseMessage(wire.env, shown), label="Retry")
        await wait_until(lambda: called.acknowledged and pressed.acknowledged)
        await wait_until(lambda: len(intake.events) == 2)
    # As after a kill before the session was stored again.
    at_once = FakeIntake(stored=dict(before))
    async with running(platform_for(wire), at_once):
        await wait_until(lambda: len(at_once.events) == 2)
    titles = [one.channel_title for one in at_once.events if isinstance(one, IncomingMessage)]
    assert not titles[0].startswith("#")  # it would replace a stored title that names the server
    assert _without_what_guilds_add(at_once) == _without_what_guilds_add(intake)
    accepted = [one for one in callbacks(wire) if one["status"] in (200, 204)]
    assert len(accepted) == 2


async def test_rejected_token_at_resume_uses_no_identify(wire: SimWire, intake: FakeIntake) -> None:
    async with running(platform_for(wire), intake):
        await wait_until(lambda: session_name(intake))
    wire.gw_faults["refuse_identify"] = 4004
    platform = platform_for(wire)
    async with running(platform, intake, connects=False):
        await wait_until(lambda: "TROUPE_DISCORD__TOKEN" in (platform.connection_error or ""))
    assert (count(wire, "<op2"), count(wire, "<op6")) == (1, 1)


async def test_session_is_not_resumed_before_the_catch_up_ends(
    wire: SimWire, guilds: Guilds, intake: FakeIntake
) -> None:
    async with running(platform_for(wire), intake):
        guilds.say(0, "before")
        await wait_until(lambda: any(" session" in name for name in intake.stored))
    guilds.say(0, "missed")
    await wire.forget()
    wire.fault("GET", "/channels/*/messages", delay=3)
    async with running(platform_for(wire), intake, connects=False):
        await wait_until(lambda: any("/messages" in one["path"] for one in wire.log))
    async with running(platform_for(wire), intake):
        await wait_until(lambda: "missed" in intake.texts)


async def test_every_shard_waits_between_identifies(wire: SimWire, intake: FakeIntake) -> None:
    wire.shards = 2
    guilds = Guilds(wire)
    async with running(platform_for(wire), intake):
        guilds.say(0, "in the first")
        guilds.say(1, "in the second")
        direct = wire.b.get_dm_channel(guilds.people[1].id)
        wire.b.create_message(direct.id, guilds.people[1].id, "in private")
        await wait_until(lambda: len(intake.received) == 3)
    assert sorted(intake.texts) == ["in private", "in the first", "in the second"]
    shards = sorted(one.shard for one in wire.sessions.values())
    assert shards == [(0, 2), (1, 2)]
    assert count(wire, "<op2 too early") == 0


async def test_shard_reads_only_its_own_channels(
    wire: SimWire, guilds: Guilds, intake: FakeIntake
) -> None:
    async with running(platform_for(wire, shards=2), intake):
        guilds.say(0, "before in the first")
        guilds.say(1, "before in the second")
        await wait_until(lambda: len(intake.received) == 2)
    await wire.forget()
    guilds.say(0, "missed in the first")
    guilds.say(1, "missed in the second")
    for shard, text in ((1, "missed in the second"), (0, "missed in the first")):
        wire.identified_at.clear()
        wire.log.clear()
        async with running(platform_for(wire, shards=2), intake, f"{shard}/2", connects=False):
            await wait_until(lambda: text in intake.texts)  # noqa: B023 # within this round
        read = {one["path"] for one in wire.log if one["path"].endswith("/messages")}
        assert read == {f"/channels/{guilds.channels[shard]}/messages"}


async def test_identify_waits_while_the_budget_is_used_up(
    wire: SimWire, intake: FakeIntake
) -> None:
    wire.identifies_left = 100
    platform = platform_for(wire)
    async with running(platform, intake, connects=False):
        await wait_until(lambda: sum("/gateway/bot" in one["path"] for one in wire.log) >= 3)
        assert count(wire, "<op2") == 0
        assert platform.connection_error is not None
        wire.identifies_left = 101
        await wait_until(lambda: platform.connection_error is None)
    assert count(wire, "<op2") == 1


def test_guilds_belong_to_one_shard_and_direct_messages_to_the_first() -> None:
    shards = [Shard(number, 3) for number in range(3)]
    for guild in range(0, 50 << 22, 1 << 22):
        assert sum(shard.has_guild(guild) for shard in shards) == 1
    assert [shard.has_guild(0) for shard in shards] == [True, False, False]
    assert Shard.from_name(shards[1].name) == shards[1]


def test_stored_session_is_parsed_and_malformed_text_is_none() -> None:
    session = GatewaySession("a", 7, "wss://resume")
    assert GatewaySession.from_stored_text(session.to_stored_text()) == session
    assert GatewaySession.from_stored_text("{}") is None
