"""Test that a new token in the file is used without a restart and without missed messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from bot.errors import Unreachable
from bot.platforms.discord.platform import DiscordPlatform
from tests.platforms.discord.conftest import ShortSleepClock, platform_for, wait_until
from tests.rigs.simwire import SimWire
from tests.support.intake import FakeIntake

_OLD, _NEW = "sim-token", "sim-token-2"


class FastClock(ShortSleepClock):
    """A clock that runs a hundred times as fast."""

    @override
    def monotonic(self) -> float:
        return super().monotonic() * 100


def write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    write(file, _OLD)
    return file


@asynccontextmanager
async def kept_running(
    wire: SimWire, token: Path | str, intake: FakeIntake
) -> AsyncIterator[DiscordPlatform]:
    """Run the platform, and restart it after failures that a retry may fix.

    `token` is the token itself or the path of its file.
    """
    is_file = isinstance(token, Path)
    given: dict[str, Any] = {"token": None, "token_file": token} if is_file else {"token": token}
    platform = platform_for(wire, clock=FastClock(), **given)

    async def run() -> None:
        while True:
            with contextlib.suppress(Unreachable):
                await platform.run(intake)

    running = asyncio.create_task(run())
    try:
        yield platform
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])
        await platform.close()


async def test_new_token_in_the_file_replaces_a_revoked_token(wire: SimWire, file: Path) -> None:
    intake = FakeIntake()
    guild = wire.guild("Guild")
    channel, alice = guild.create_text_channel("general"), wire.member(guild, "alice")
    async with kept_running(wire, file, intake) as platform:
        await wait_until(lambda: platform.connection_error is None)
        wire.say(alice, channel.id, "before")
        await wait_until(lambda: intake.texts == ["before"])
        wire.token = _NEW  # the other one was reset in the developer portal
        await wire.cut(4004)
        await wait_until(lambda: "token" in (platform.connection_error or ""))
        wire.say(alice, channel.id, "meanwhile")
        write(file, _NEW)
        await wait_until(lambda: intake.texts == ["before", "meanwhile"])
        await wait_until(lambda: platform.connection_error is None)
        assert await platform.check()


@pytest.mark.parametrize("is_refused_by_gateway", [True, False])
async def test_rejected_token_is_tried_again(wire: SimWire, *, is_refused_by_gateway: bool) -> None:
    if is_refused_by_gateway:
        wire.gw_faults["refuse_identify"] = 4004
    else:
        wire.token = _NEW
    async with kept_running(wire, _OLD, FakeIntake()) as platform:
        await wait_until(lambda: "TROUPE_DISCORD__TOKEN" in (platform.connection_error or ""))
        wire.gw_faults.pop("refuse_identify", None)
        wire.token = _OLD
        await wait_until(lambda: platform.connection_error is None)
