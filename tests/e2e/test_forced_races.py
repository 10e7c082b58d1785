"""Two processes on one database, one of them stopped at a bad moment: the chats show no fault.

The same scenarios must find the fault of builds in which one protection is missing.
"""

import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.e2e.child_launcher import running_launcher
from tests.e2e.kill_load import wait_until_settled
from tests.e2e.loopback_platforms import LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import check_transcripts
from tests.e2e.waiting import wait_until
from tests.postgres import create_postgres_database
from tests.valkey import run_valkey

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]
_SETTLE_SECONDS = 25.0
"""For so long nothing changes any more; the late process has gone on by then."""


@dataclass
class Pair:
    """Two processes with the same platforms, and what they talk to."""

    platforms: LoopbackPlatforms
    first: ServiceProcess
    second: ServiceProcess

    async def start_first(self, *arguments: str) -> None:
        """Start the process that will be stopped; it receives and claims everything."""
        point, build, *options = arguments
        await self.first.start_with_crash_point(point, 1, build, *options)
        await self.first.wait_until_ready(60)

    async def start_second(self, build: str, *options: str) -> None:
        await self.second.start_with_crash_point("never", 1, build, *options)
        await self.second.wait_until_ready(60)

    async def wait_until_first_is_stopped(self) -> None:
        process = psutil.Process(self.first.process.pid)
        await wait_until(lambda: process.status() == psutil.STATUS_STOPPED)

    async def wait_for_answers(self, count: int) -> None:
        """Wait until a process has answered so many questions."""

        def answered() -> bool:
            result = check_transcripts(self.platforms.messages())
            return result.questions - len(result.lost) >= count

        await wait_until(answered)

    async def repeated(self) -> bool:
        """Wait until nothing changes any more; return whether an answer is there twice.

        Nothing may be lost: a build that does not answer at all would show nothing.
        """
        await wait_until_settled(self.platforms, _SETTLE_SECONDS, early=False)
        result = check_transcripts(self.platforms.messages())
        print(result)  # noqa: T201
        assert not result.lost
        assert result.is_clean or result.repeated
        return bool(result.repeated)


@pytest_asyncio.fixture
async def pair(postgres_folder: str, tmp_path: Path) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        platforms = await stack.enter_async_context(running_platforms())
        model = await stack.enter_async_context(ModelServer())
        settings = {
            "TROUPE_DATABASE_URL": await create_postgres_database(postgres_folder),
            "TROUPE_REDIS_URL": await stack.enter_async_context(run_valkey(tmp_path)),
        }
        services = []
        for name in ("first", "second"):
            launcher = await stack.enter_async_context(running_launcher())
            service = ServiceProcess(tmp_path / name, platforms, model, launcher)
            service.settings |= settings
            stack.push_async_callback(service.kill)
            services.append(service)
        yield Pair(platforms, *services)


@pytest.mark.parametrize(("build", "expected"), [("right", False), ("no_fence", True)])
async def test_worker_that_stood_still_adds_no_answer(
    pair: Pair, build: str, expected: bool
) -> None:
    await pair.start_first("before_finish", build, "--signal", "SIGSTOP")
    pair.platforms.telegram_dm().ask("a1")
    await pair.wait_until_first_is_stopped()
    await pair.start_second(build)
    await pair.wait_for_answers(1)
    pair.first.process.send_signal(signal.SIGCONT)
    assert await pair.repeated() is expected


@pytest.mark.parametrize(("build", "expected"), [("right", False), ("unfenced_again", True)])
async def test_sender_that_stood_still_reopens_nothing(
    pair: Pair, build: str, expected: bool
) -> None:
    await pair.start_first("before_again", build, "--signal", "SIGSTOP")
    pair.platforms.telegram.fault("sendMessage", retry_after=1)
    pair.platforms.telegram_dm().ask("a2")
    await pair.wait_until_first_is_stopped()
    await pair.start_second(build)
    await pair.wait_for_answers(1)
    pair.first.process.send_signal(signal.SIGCONT)
    assert await pair.repeated() is expected


@pytest.mark.parametrize(("build", "expected"), [("right", False), ("clients_clocks", True)])
async def test_process_with_a_clock_ahead_takes_no_message_that_is_being_sent(
    pair: Pair, build: str, expected: bool
) -> None:
    await pair.start_first("never", build)
    await pair.start_second(build, "--clock-ahead", "30")
    pair.second.process.send_signal(signal.SIGSTOP)
    pair.platforms.telegram.fault("sendMessage", delay=8.0)  # the platform accepts it late
    pair.platforms.telegram_dm().ask("a3")
    calls = pair.platforms.telegram.log
    await wait_until(lambda: any(call["method"] == "sendMessage" for call in calls))
    pair.second.process.send_signal(signal.SIGCONT)
    assert await pair.repeated() is expected
