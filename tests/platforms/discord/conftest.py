"""What the Discord tests share: an intake in memory, and how to run against a loopback Discord."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import discord
import pytest
from pydantic import SecretStr
from typing_extensions import override

from bot.chat.command import CommandOption, CommandSpec
from bot.chat.incoming import Incoming
from bot.errors import StoreError
from bot.platforms.discord.platform import DiscordPlatform
from bot.platforms.discord.settings import DiscordSettings
from bot.ports import Clock, Intake
from tests.rigs.simwire import SimWire

COMMANDS = (
    CommandSpec(
        "preset",
        "Choose who answers here",
        actions=(
            CommandSpec(
                "use", "Choose a preset", (CommandOption("name", "The preset", completes=True),)
            ),
            CommandSpec("list", "Show all presets"),
        ),
    ),
    CommandSpec("new", "Begin a new conversation"),
)


def complete(partial: str) -> Sequence[str]:
    return [name for name in ("nova", "nora", "coder") if name.startswith(partial)]


@dataclass
class FakeIntake(Intake):
    """Keeps what it hears, each message once, and the cursors; is away for `away` calls."""

    heard: list[Incoming] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    away: int = 0

    @override
    async def receive(self, heard: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        if self.away:
            self.away -= 1
            raise StoreError("the database is away")
        known = {incoming.external_key for incoming in self.heard}
        self.heard += [incoming for incoming in heard if incoming.external_key not in known]
        self.stored.update(cursors)

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        return {name: value for name, value in self.stored.items() if name.startswith(prefix)}

    @property
    def texts(self) -> list[str]:
        return [incoming.text for incoming in self.heard]


class ImpatientClock(Clock):
    """Waits a moment, however long it should."""

    @override
    def now(self) -> float:
        return discord.utils.utcnow().timestamp()

    @override
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.05))


async def until(what: Callable[[], Any], seconds: float = 15) -> Any:
    """Wait until `what()` is true, and give it."""
    async with asyncio.timeout(seconds):
        while not (found := what()):  # noqa: ASYNC110  # nothing would set an event
            await asyncio.sleep(0.01)
    return found


def platform_for(wire: SimWire, *, token: str | None = None) -> DiscordPlatform:
    settings = DiscordSettings(
        token=SecretStr(token or wire.token),
        api_base=f"{wire.base}/api/v10",
        gateway_url=wire.base.replace("http", "ws") + "/",
    )
    return DiscordPlatform(settings, commands=COMMANDS, complete=complete, clock=ImpatientClock())


@asynccontextmanager
async def running(platform: DiscordPlatform, intake: Intake) -> AsyncIterator[None]:
    """Run the platform until the block ends; it must not have ended before."""
    task = asyncio.create_task(platform.run(intake))
    try:
        await until(lambda: platform.connection_error is None or task.done())
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
        await platform.close()
        if not task.cancelled():
            task.result()


@pytest.fixture
async def wire() -> AsyncIterator[SimWire]:
    async with SimWire(port=0) as server:
        yield server
