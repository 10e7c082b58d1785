"""Platforms are kept listening, and stay connected until the last answer is out."""

import asyncio
import os
import signal

from typing_extensions import override

from bot.chat.incoming import Incoming
from bot.clock import SystemClock
from bot.listening import Listening
from bot.ports import Intake, Platform, Surface
from tests.platforms.telegram.conftest import FakeIntake


class FakePlatform(Platform):
    """Hears nothing, for as long as it may."""

    def __init__(self) -> None:
        self.connected = False

    @property
    @override
    def name(self) -> str:
        return "fake"

    @property
    @override
    def surface(self) -> Surface:
        raise NotImplementedError

    @property
    @override
    def trouble(self) -> str | None:
        return None if self.connected else "not connected"

    @override
    async def run(self, intake: Intake) -> None:
        self.connected = True
        try:
            await asyncio.Event().wait()
        finally:
            self.connected = False

    @override
    async def check(self) -> str:
        return "here"

    @override
    async def close(self) -> None:
        self.connected = False

    @override
    async def is_admin(self, incoming: Incoming) -> bool:
        return False


async def test_after_a_signal_answers_can_still_go_out() -> None:
    platform = FakePlatform()
    listening = Listening([platform], FakeIntake(), SystemClock(), lambda _: None)
    stopped = asyncio.create_task(listening.until_stopped())
    await asyncio.sleep(0.05)

    os.kill(os.getpid(), signal.SIGTERM)
    await stopped
    assert platform.connected

    await listening.close()
    assert not platform.connected


async def test_it_says_where_it_can_be_found_once_it_can() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    listening = Listening([FakePlatform()], FakeIntake(), SystemClock(), told.put_nowait)
    stopped = asyncio.create_task(listening.until_stopped())

    async with asyncio.timeout(5):
        assert await told.get() == "on fake as here"

    os.kill(os.getpid(), signal.SIGTERM)
    await stopped
    await listening.close()
