"""Test that platforms are restarted, and stay connected until the service closes."""

import asyncio
import os
import signal

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from bot.chat.incoming import Request
from bot.errors import PlatformFatal, StoreError, Unreachable
from bot.ports import Clock, Intake, Platform
from bot.runtime.clock import SystemClock
from bot.service.platform_supervisor import PlatformSupervisor
from tests.fakes import FakeClock, FakeSurface
from tests.support.intake import FakeIntake
from tests.waiting import PATIENCE_SECONDS, advance_in_steps, wait_until


class FakePlatform(Platform):
    surface = FakeSurface()

    def __init__(self) -> None:
        self.connected = False

    @property
    @override
    def name(self) -> str:
        return "fake"

    @property
    @override
    def connection_error(self) -> str | None:
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
    async def is_admin(self, incoming: Request) -> bool:
        return False


async def test_platform_stays_connected_after_a_stop_signal_until_close() -> None:
    platform, told = FakePlatform(), asyncio.Queue[str]()
    supervisor = PlatformSupervisor([platform], FakeIntake(), SystemClock(), told.put_nowait)
    stopped = asyncio.create_task(supervisor.run_until_stopped())
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await told.get() == "on fake as here"

    os.kill(os.getpid(), signal.SIGTERM)
    await stopped
    assert platform.connected

    await supervisor.close()
    assert not platform.connected


class FailingPlatform(FakePlatform):
    def __init__(self, name: str, *errors: BaseException) -> None:
        super().__init__()
        self.runs = 0
        self._name = name
        self._errors = list(errors)

    @property
    @override
    def name(self) -> str:
        return self._name

    @override
    async def run(self, intake: Intake) -> None:
        self.runs += 1
        if self._errors:
            raise self._errors.pop(0)


def supervise(*platforms: Platform, clock: Clock | None = None) -> PlatformSupervisor:
    return PlatformSupervisor(platforms, FakeIntake(), clock or SystemClock(), lambda _: None)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(), asyncio.CancelledError()])
async def test_failed_platform_is_restarted(error: BaseException) -> None:
    clock, platform = FakeClock(), FailingPlatform("fake", error)
    supervisor = supervise(platform, clock=clock)
    stopped = asyncio.create_task(supervisor.run_until_stopped())
    await wait_until(lambda: supervisor.find_problem(platform) not in {None, "not connected"})
    await advance_in_steps(clock, 3)
    await stopped
    assert platform.runs == 2
    assert supervisor.find_problem(platform) == "not connected"


@pytest.mark.parametrize(
    "error", [Unreachable("no connection to x:443"), StoreError("the database failed")]
)
async def test_unreachable_server_is_logged_without_a_traceback(error: Exception) -> None:
    clock, platform = FakeClock(), FailingPlatform("fake", error)
    supervisor = supervise(platform, clock=clock)
    with capture_logs() as logs:
        stopped = asyncio.create_task(supervisor.run_until_stopped())
        await wait_until(lambda: bool(logs))
        await advance_in_steps(clock, 3)
        await stopped
    [logged] = [one for one in logs if one["event"] == "platform_failed"]
    assert (logged["reason"], logged.get("exc_info")) == (str(error), None)


async def test_fatal_refusal_at_startup_ends_the_service() -> None:
    supervisor = supervise(FakePlatform(), FailingPlatform("b", PlatformFatal("no intent")))
    with pytest.raises(PlatformFatal, match="no intent"):
        await supervisor.run_until_stopped()
    await supervisor.close()


async def test_supervisor_returns_when_every_platform_has_ended() -> None:
    platforms = FailingPlatform("a"), FailingPlatform("b")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await supervise(*platforms).run_until_stopped()
    assert [one.runs for one in platforms] == [1, 1]


class ShortLivedPlatform(FailingPlatform):
    """A platform that works for a number of seconds per run, then loses its connection."""

    def __init__(self, clock: FakeClock, *seconds: float) -> None:
        super().__init__("short")
        self._clock = clock
        self._seconds = list(seconds)
        self.pauses: list[float] = []
        self._lost_at: float | None = None

    @override
    async def run(self, intake: Intake) -> None:
        if self._lost_at is not None:
            self.pauses.append(self._clock.now() - self._lost_at)
        if not self._seconds:
            return
        await self._clock.sleep(self._seconds.pop(0))
        self._lost_at = self._clock.now()
        raise ConnectionError("connection lost")


async def test_restart_delay_grows_only_with_consecutive_failures() -> None:
    clock = FakeClock()
    platform = ShortLivedPlatform(clock, 0, 0, 0, 61, 0)
    stopped = asyncio.create_task(supervise(platform, clock=clock).run_until_stopped())
    while not stopped.done():
        await advance_in_steps(clock, 2)
    await stopped
    first, second, third, after_a_good_run, next_one = platform.pauses
    assert 1 <= first <= 2.5 < 4 <= third <= 5.5
    assert second < third
    assert 1 <= after_a_good_run <= 2.5
    assert next_one < third
