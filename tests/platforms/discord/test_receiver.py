"""Discord on loopback: what is said is stored once and in order, whatever breaks in between."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import discord
import pytest

from bot.chat.incoming import Incoming, WakeReason
from bot.errors import PlatformFatal, Unreachable
from bot.platforms.discord.gateway import Gateway
from bot.platforms.discord.platform import DiscordPlatform
from tests.platforms.discord.conftest import FakeIntake, platform_for, running, until
from tests.rigs.simwire import SimWire

pytestmark = pytest.mark.service


@dataclass
class Room:
    """A guild with one channel and Alice in it."""

    wire: SimWire

    def __post_init__(self) -> None:
        self.guild = self.wire.guild("Guild")
        self.channel = self.guild.create_text_channel("general")
        self.alice = self.wire.member(self.guild, "alice")
        self.bot = self.wire.b.bot_user

    def say(self, text: str, **more: Any) -> Any:
        return self.wire.say(self.alice, self.channel.id, text, **more)

    def write(self, text: str) -> Any:
        """Say something in the bot's direct messages."""
        direct = self.wire.b.get_dm_channel(self.alice.id)
        return self.wire.b.create_message(direct.id, self.alice.id, text)


@pytest.fixture
def room(wire: SimWire) -> Room:
    return Room(wire)


@pytest.fixture
def intake() -> FakeIntake:
    return FakeIntake()


@pytest.fixture
def platform(wire: SimWire) -> DiscordPlatform:
    return platform_for(wire)


def by_text(intake: FakeIntake) -> dict[str, Incoming]:
    return {incoming.text: incoming for incoming in intake.heard}


def identifies(wire: SimWire) -> int:
    return sum(name == "<op2" for _, name, _ in wire.events)


async def test_every_way_to_speak_is_heard(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    thread = room.wire.b.create_thread(room.channel.id, "plans", owner_id=room.bot.id)
    async with running(platform, intake):
        asked = room.write("in private")
        room.say("near the bot")
        room.say(f"<@{room.bot.id}> to the bot")
        answer = room.wire.b.create_message(room.channel.id, room.bot.id, "an answer")
        reference = {"message_id": str(answer.id), "channel_id": str(room.channel.id)}
        room.say("a reply", reference=reference)
        room.wire.say(room.alice, thread.id, "in a thread")
        await until(lambda: len(intake.heard) >= 5)

    heard = by_text(intake)
    assert intake.texts == ["in private", "near the bot", "to the bot", "a reply", "in a thread"]
    assert [incoming.wake for incoming in intake.heard] == [
        WakeReason.DM,
        None,
        WakeReason.MENTION,
        WakeReason.REPLY,
        None,
    ]
    assert heard["a reply"].quote == "an answer"
    assert heard["in a thread"].scopes == (
        f"discord:{thread.id}",
        f"discord:{room.channel.id}",
        f"discord:guild:{room.guild.id}",
    )
    assert intake.stored[f"discord:{asked.channel_id}"] == str(asked.id)


async def test_other_bots_are_neither_heard_nor_kept_track_of(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    other = room.wire.member(room.guild, "other", bot=True)
    bots = room.guild.create_text_channel("bots")
    async with running(platform, intake):
        room.wire.say(other, bots.id, f"<@{room.bot.id}> hello")
        room.say("a person")
        await until(lambda: intake.heard)
    assert intake.texts == ["a person"]
    assert f"discord:{bots.id}" not in intake.stored


async def test_first_start_answers_nothing_that_was_said_before(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    room.say("long ago")
    async with running(platform, intake):
        room.say("now")
        await until(lambda: intake.heard)
    assert intake.texts == ["now"]
    assert "discord:connected" in intake.stored


async def test_what_was_missed_is_heard_before_what_is_said_now(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    new = room.guild.create_text_channel("new")
    async with running(platform, intake):
        room.say("before")
        room.write("before, in private")
        await until(lambda: len(intake.heard) == 2)
    missed = [f"missed {number}" for number in range(230)]
    for text in missed:
        room.say(text)
    room.write("missed, in private")
    room.wire.say(room.alice, new.id, "missed, in a channel never heard before")

    async with running(platform_for(room.wire), intake):
        room.say("after")
        await until(lambda: "after" in intake.texts)

    here = f"discord:{room.channel.id}"
    assert [one.text for one in intake.heard if one.scopes[0] == here] == [
        "before",
        *missed,
        "after",
    ]
    assert {"missed, in private", "missed, in a channel never heard before"} <= set(intake.texts)
    assert len(intake.heard) == 2 + 230 + 2 + 1


async def test_known_channel_without_news_is_not_asked(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        room.say("before")
        await until(lambda: intake.heard)
    room.wire.log.clear()
    async with running(platform_for(room.wire), intake):
        room.say("after")
        await until(lambda: len(intake.heard) == 2)
    assert not [entry for entry in room.wire.log if "/messages" in entry["path"]]


async def test_channel_that_is_closed_to_us_does_not_hinder_the_others(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        room.write("before, in private")
        room.say("before")
        await until(lambda: len(intake.heard) == 2)
    room.write("unreadable")
    room.say("missed")
    direct = room.wire.b.get_dm_channel(room.alice.id).id
    room.wire.fault("GET", f"/channels/{direct}*", times=None, status=403, code=50001)
    async with running(platform_for(room.wire), intake):
        await until(lambda: "missed" in intake.texts)
    assert "unreadable" not in intake.texts


async def test_failing_history_is_asked_again(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        room.say("before")
        await until(lambda: intake.heard)
    room.say("missed")
    room.wire.fault("GET", "/channels/*/messages", drop=True, times=2)
    room.wire.fault("GET", "/channels/*/messages", status=503, times=2)
    async with running(platform_for(room.wire), intake):
        room.say("after")
        await until(lambda: "after" in intake.texts)
    assert intake.texts == ["before", "missed", "after"]


async def test_cut_connection_is_resumed_without_a_gap(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        room.say("before")
        await until(lambda: intake.heard)
        await room.wire.cut()
        room.say("meanwhile")
        await until(lambda: "meanwhile" in intake.texts)
        room.say("after")
        await until(lambda: "after" in intake.texts)
        await until(lambda: platform.connection_error is None)
    assert intake.texts == ["before", "meanwhile", "after"]
    assert identifies(room.wire) == 1


async def test_lost_session_is_caught_up_with(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        room.say("before")
        await until(lambda: intake.heard)
        await room.wire.forget()
        room.say("meanwhile")
        await until(lambda: platform.connection_error is not None)
        await until(lambda: "meanwhile" in intake.texts, 25)
        room.say("after")
        await until(lambda: "after" in intake.texts)
    assert intake.texts == ["before", "meanwhile", "after"]
    assert identifies(room.wire) == 2


async def test_nothing_is_dropped_while_the_store_is_away(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        intake.away = 3
        for number in range(20):
            room.say(f"{number}")
        await until(lambda: platform.connection_error == "messages from Discord cannot be stored")
        await until(lambda: len(intake.heard) == 20)
        await until(lambda: platform.connection_error is None)
    assert intake.texts == [f"{number}" for number in range(20)]


async def test_what_could_not_be_stored_is_heard_by_the_next_run(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        room.say("before")
        await until(lambda: intake.heard)
        intake.away = 1_000_000
        room.say("lost with the process")
        await until(lambda: platform.connection_error)
    intake.away = 0
    async with running(platform, intake):
        await until(lambda: len(intake.heard) == 2)
    assert intake.texts == ["before", "lost with the process"]


async def test_live_messages_wait_for_those_that_were_missed(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    async with running(platform, intake):
        room.say("before")
        await until(lambda: intake.heard)
    room.say("missed")
    room.wire.fault("GET", "/channels/*/messages", delay=1.0)
    speaking = asyncio.create_task(say_during_backfill(room))
    async with running(platform, intake):
        await speaking
        await until(lambda: "live" in intake.texts)
    assert intake.texts == ["before", "missed", "live"]


async def say_during_backfill(room: Room) -> None:
    asked = len(room.wire.log)
    await until(lambda: any("/messages" in entry["path"] for entry in room.wire.log[asked:]))
    await asyncio.sleep(0.2)
    room.say("live")


async def test_wrong_token_is_said_with_its_remedy(wire: SimWire, intake: FakeIntake) -> None:
    with pytest.raises(PlatformFatal, match="TROUPE_DISCORD__TOKEN"):
        await platform_for(wire, token="wrong").run(intake)


@pytest.mark.parametrize(
    ("code", "remedy"), [(4004, "TROUPE_DISCORD__TOKEN"), (4014, "Message Content Intent")]
)
async def test_refusal_of_the_gateway_is_final(
    wire: SimWire, intake: FakeIntake, code: int, remedy: str
) -> None:
    wire.gw_faults["refuse_identify"] = code
    with pytest.raises(PlatformFatal, match=remedy):
        await platform_for(wire).run(intake)


async def test_gateway_that_is_away_lets_us_be_run_again(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    room.wire.gw_faults["accept"] = False
    with pytest.raises(Unreachable):
        await platform.run(intake)
    assert platform.connection_error == "not connected to Discord"
    room.wire.gw_faults["accept"] = True
    async with running(platform, intake):
        room.say("hello")
        await until(lambda: intake.heard)
    assert intake.texts == ["hello"]


async def test_permissions_are_asked_when_they_matter(
    room: Room, platform: DiscordPlatform, intake: FakeIntake
) -> None:
    mods = room.guild.create_role("mods", permissions=discord.Permissions(manage_guild=True))
    mod = room.wire.member(room.guild, "mod", roles=[mods])
    async with running(platform, intake):
        room.say("by alice")
        room.wire.say(mod, room.channel.id, "by mod")
        room.write("in private")
        await until(lambda: len(intake.heard) == 3)
        by_alice, by_mod, private = intake.heard
        assert not await platform.is_admin(by_alice)
        assert await platform.is_admin(by_mod)
        assert await platform.is_admin(private)
        room.wire.fault("GET", "/guilds/*/members/*", status=503)
        assert not await platform.is_admin(by_mod)
    assert not await platform.is_admin(by_mod)


async def test_a_stop_ends_a_connection_that_overlooks_being_cancelled(
    platform: DiscordPlatform, intake: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As discord.py's does when it is cancelled just as it has connected (Python 3.11)."""
    connecting = asyncio.Event()

    async def connect(self: Gateway, *, reconnect: bool = True) -> None:
        connecting.set()
        while not self.is_closed():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    monkeypatch.setattr(Gateway, "connect", connect)
    run = asyncio.create_task(platform.run(intake))
    await connecting.wait()
    run.cancel()
    await asyncio.wait([run], timeout=20)
    assert run.cancelled()
