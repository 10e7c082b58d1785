"""Fixtures of the Telegram tests: a Bot API server on loopback, and an in-memory intake."""

import asyncio
import math
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr
from typing_extensions import override

from bot.chat.command import CommandSpec
from bot.chat.incoming import ButtonPress
from bot.platforms.spec import PlatformContext
from bot.platforms.telegram.platform import TelegramPlatform
from bot.platforms.telegram.settings import TelegramSettings
from bot.ports import Platform
from bot.runtime.clock import SystemClock
from tests.rigs.tgwire import TgWire
from tests.support.intake import FakeIntake
from tests.waiting import wait_until

COMMANDS = (
    CommandSpec(
        "preset",
        "Who answers here",
        actions=(CommandSpec("use", ""), CommandSpec("list", "")),
        is_listed_for_admins=True,
    ),
    CommandSpec("help", "What I can do"),
    CommandSpec("export", "What you said", is_private=True),
)


class RecordingClock(SystemClock):
    """A clock that records each sleep and returns immediately."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    @override
    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0.01)


class Rig:
    """A Bot API server, an intake, and platforms that poll the server one after the other."""

    def __init__(self, telegram: TgWire) -> None:
        self.telegram = telegram
        self.intake = FakeIntake()
        self.clock = RecordingClock()
        self.answerable_seconds = math.inf
        self.command_names: Set[str] = {"start", *(one.name for one in COMMANDS)}
        self.refusal: str | None = None
        self.pressed: list[ButtonPress] = []
        """The presses for which a refusal was requested."""
        self.asked_at_once = 1
        """The number of presses that must be requested before the first one gets a reply."""

    async def press_refusal(self, pressed: ButtonPress) -> str | None:
        self.pressed.append(pressed)
        await wait_until(lambda: len(self.pressed) >= self.asked_at_once)
        return self.refusal

    def bot(self, **settings: object) -> TelegramPlatform:
        given = {
            "token": SecretStr(self.telegram.token),
            "api_base": self.telegram.base,
            "poll_seconds": 1,
            **settings,
        }
        return TelegramPlatform(
            TelegramSettings.model_validate(given),
            PlatformContext(
                commands=COMMANDS,
                command_names=self.command_names,
                clock=self.clock,
                answerable_seconds=self.answerable_seconds,
                find_press_refusal=self.press_refusal,
            ),
        )

    @asynccontextmanager
    async def running(self, **settings: object) -> AsyncIterator[TelegramPlatform]:
        """Run a platform during the block, then cancel it as if its process was killed."""
        bot = self.bot(**settings)
        platform: Platform = bot
        run = asyncio.create_task(platform.run(self.intake))
        try:
            yield bot
        finally:
            run.cancel()
            await asyncio.wait({run})
            await bot.close()

    async def wait_for_texts(self, *texts: str) -> None:
        await self.telegram.wait(lambda: self.intake.texts[-len(texts) :] == list(texts))

    async def wait_for_poll(self) -> None:
        """Wait until a platform waits for updates."""
        await self.telegram.wait(lambda: self.telegram.waiter)

    def calls(self, method: str) -> list[dict[str, Any]]:
        return [call["params"] for call in self.telegram.log if call["method"] == method]


@pytest.fixture
async def telegram() -> AsyncIterator[TgWire]:
    wire = await TgWire().start()
    yield wire
    await wire.stop()


@pytest.fixture
def rig(telegram: TgWire) -> Rig:
    return Rig(telegram)
