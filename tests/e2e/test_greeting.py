"""Greetings of a group and after /new, with the service as a process that is killed."""

import pytest
from simcord.backend import serializers

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]
GREETING = "Well met, all."


async def test_group_is_greeted_once_also_after_a_restart(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> None:
    model.gate.set()
    (service.presets / "tester.json").write_text(
        preset_json("tester", greeting=GREETING, role_name="Nora")
    )
    await service.start_and_wait()
    group, later = platforms.telegram_group(), platforms.telegram_group()
    guild, later_guild = open_guild(platforms, "Friends"), open_guild(platforms, "Neighbours")
    in_system_channel = [("welcome", "Nora", GREETING)]
    join(platforms, guild)
    platforms.telegram.invite(1, int(group.name.removeprefix("telegram:")))
    await wait_until(lambda: platforms.bot_texts(group) == [GREETING])
    await wait_until(lambda: greeted_in(platforms, guild) == in_system_channel)
    await service.kill()
    platforms.telegram.invite(1, int(later.name.removeprefix("telegram:")))  # while it is down
    join(platforms, later_guild)
    await service.start_and_wait()
    await wait_until(lambda: platforms.bot_texts(later) == [GREETING])
    await wait_until(lambda: greeted_in(platforms, later_guild) == in_system_channel)
    send_guild(platforms, guild, was_unavailable=True)  # after an outage of Discord
    group.ask("a1")
    await wait_until(
        lambda: platforms.bot_texts(group) == [GREETING, expected_answer("Ta1:12")], 30
    )
    channel = platforms.channel()
    number = int(channel.name.removeprefix("discord:"))
    channel.say(f"{channel.mention}/new", 0)
    said = await wait_until(lambda: spoken_by_webhooks(platforms, number))
    assert said == [("Nora", GREETING)]
    assert greeted_in(platforms, guild) == greeted_in(platforms, later_guild) == in_system_channel


def open_guild(platforms: LoopbackPlatforms, name: str) -> int:
    """Create a Discord server with a system channel, of which the bot is told nothing yet."""
    wire = platforms.discord
    wire.b.subscribers.remove(wire._on_event)
    try:
        guild = wire.guild(name)
        guild.create_text_channel("general")
        wire.b.get_guild(guild.id).system_channel_id = guild.create_text_channel("welcome").id
    finally:
        wire.b.subscribers.append(wire._on_event)
    return int(guild.id)


def join(platforms: LoopbackPlatforms, guild: int) -> None:
    """Tell the bot of a server as Discord does when somebody has added it."""
    send_guild(platforms, guild, was_unavailable=False)


def send_guild(platforms: LoopbackPlatforms, guild: int, *, was_unavailable: bool) -> None:
    backend = platforms.discord.b
    whole = dict(serializers.guild_create_payload(backend, backend.get_guild(guild)))
    if not was_unavailable:
        del whole["unavailable"]
    backend.emit("GUILD_CREATE", whole)


def greeted_in(platforms: LoopbackPlatforms, guild: int) -> list[tuple[str, str, str]]:
    """Return where webhooks have let speak in a server, whom, and what."""
    channels = [one for one in platforms.discord.b.channels.values() if one.guild_id == guild]
    return [
        (channel.name, *said)
        for channel in channels
        for said in spoken_by_webhooks(platforms, channel.id)
    ]


def spoken_by_webhooks(platforms: LoopbackPlatforms, channel: int) -> list[tuple[str, str]]:
    """Return whom webhooks have let speak in a Discord channel, and what."""
    messages = platforms.discord.messages(channel)
    return [(one["author"]["username"], one["content"]) for one in messages if "webhook_id" in one]
