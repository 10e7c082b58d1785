"""Fixtures of the Discord tests: an in-memory intake, and a Discord server on loopback."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import discord
import pytest
from pydantic import SecretStr
from typing_extensions import override

from bot.chat.command import CommandOption, CommandSpec
from bot.chat.incoming import Address, IncomingMessage
from bot.platforms.discord.platform import DiscordPlatform
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.spec import PlatformContext
from bot.ports import Clock, Intake
from bot.runtime.clock import SystemClock
from tests import waiting
from tests.rigs.simwire import SimWire

COMMANDS = (
    CommandSpec(
        "preset",
        "Choose who answers here",
        actions=(
            CommandSpec(
                "use",
                "Choose a preset",
                (CommandOption("name", "The preset", autocompletes=True),),
                changes_channel=True,
                needs_admin=True,
            ),
            CommandSpec("list", "Show all presets"),
        ),
    ),
    CommandSpec("new", "Begin a new conversation"),
)


async def suggest(_said: IncomingMessage, partial: str) -> Sequence[str]:
    return [name for name in ("nova", "nora", "coder") if name.startswith(partial)]


class ShortSleepClock(SystemClock):
    """A clock whose sleeps take at most 0.05 s."""

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.05))


wait_until = partial(waiting.wait_until, seconds=60)


def platform_for(
    wire: SimWire,
    *,
    clock: Clock | None = None,
    answerable_seconds: float = math.inf,
    commands: Sequence[CommandSpec] = COMMANDS,
    **settings: object,
) -> DiscordPlatform:
    given = {
        "token": SecretStr(wire.token),
        "api_base": f"{wire.base}/api/v10",
        "gateway_url": wire.base.replace("http", "ws") + "/",
        **settings,
    }
    context = PlatformContext(
        commands=commands,
        suggest=suggest,
        clock=clock or ShortSleepClock(),
        answerable_seconds=answerable_seconds,
    )
    return DiscordPlatform(DiscordSettings.model_validate(given), context)


@asynccontextmanager
async def closed_at_the_end(platform: DiscordPlatform) -> AsyncIterator[DiscordPlatform]:
    try:
        yield platform
    finally:
        await platform.close()


@asynccontextmanager
async def running(
    platform: DiscordPlatform, intake: Intake, shard: str | None = None, *, connects: bool = True
) -> AsyncIterator[None]:
    """Run the platform until the block ends, and check that it did not end before."""
    run = platform.run(intake) if shard is None else platform.run_shard(shard, intake)
    task = asyncio.create_task(run)
    try:
        if connects:
            await wait_until(lambda: platform.connection_error is None or task.done())
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
        await platform.close()
        if not task.cancelled():
            task.result()


class Stage:
    """A guild channel with one member, Alice, and a platform that sends messages there."""

    def __init__(self, wire: SimWire, platform: DiscordPlatform) -> None:
        self.wire, self.platform, self.surface = wire, platform, platform.surface
        self.guild = wire.guild("Guild")
        self.channel = self.guild.create_text_channel("stage")
        self.alice = wire.member(self.guild, "alice")
        self.address = Address("discord", str(self.channel.id))

    def requests(self, method: str, ending: str = "/messages") -> list[dict[str, Any]]:
        log = self.wire.log
        return [one for one in log if one["method"] == method and one["path"].endswith(ending)]

    def set_permissions(self, **missing: bool) -> None:
        """Give the bot all permissions except those that are False."""
        roles = self.wire.b.get_guild(self.guild.id).roles
        [ours] = [one for one in roles.values() if one.managed]
        may = discord.Permissions.all_channel()
        may.update(administrator=False, **missing)
        ours.permissions = may.value
        everybody = roles[self.guild.id]
        held = discord.Permissions(everybody.permissions)
        held.update(**missing)
        everybody.permissions = held.value


@pytest.fixture
async def wire() -> AsyncIterator[SimWire]:
    async with SimWire(port=0) as server:
        yield server
