"""Test two processes on one database; one of them is stopped at a critical moment.

The same scenarios must detect the fault in builds without one of the safeguards.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.postgres import create_postgres_database
from tests.support.chats import Platforms, running_platforms
from tests.support.child_launcher import ChildLauncher
from tests.support.features import ON_THE_WIRES
from tests.support.kill_load import wait_until_settled
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.shapes import Installer
from tests.support.transcripts import check_transcripts
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES
_SETTLE_SECONDS = 25.0
"""The time without changes after which a run has ended; the stopped process has resumed by then."""


@dataclass
class Pair:
    """Two processes with the same platforms."""

    platforms: Platforms
    first: Service
    second: Service

    async def start_first(self, *arguments: str) -> None:
        """Start the process that will be stopped; it receives and claims everything."""
        point, build, *options = arguments
        await self.first.start_with_crash_point(point, 1, build, *options)
        await self.first.wait_until_ready()

    async def start_second(self, build: str, *options: str) -> None:
        await self.second.start_with_crash_point("never", 1, build, *options)
        await self.second.wait_until_ready()

    async def wait_until_first_is_stopped(self) -> None:
        process = psutil.Process(self.first.process.pid)
        await wait_until(lambda: process.status() == psutil.STATUS_STOPPED)

    async def wait_for_answer(self) -> None:
        await wait_until(lambda: not check_transcripts(self.platforms.messages()).lost)

    async def repeated(self, *, fault_is_expected: bool) -> bool:
        """Wait until the run has ended; return whether an answer was sent twice."""
        if fault_is_expected:  # as soon as it is seen
            await wait_until(lambda: check_transcripts(self.platforms.messages()).repeated)
        else:
            await wait_until_settled(self.platforms, _SETTLE_SECONDS, early=False)
        result = check_transcripts(self.platforms.messages())
        print(result)  # noqa: T201
        assert not result.lost
        assert result.is_clean or result.repeated
        return bool(result.repeated)


Race = Callable[[Pair, str], Awaitable[None]]


@asynccontextmanager
async def running_pair(postgres: str, launcher: ChildLauncher, folder: Path) -> AsyncIterator[Pair]:
    async with running_platforms() as platforms, Model() as model:
        url = await create_postgres_database(postgres)
        installer = Installer(platforms, model, launcher, folder)
        names = ("first", "second")
        async with installer.processes(*names, database_url=url, with_valkey=True) as services:
            yield Pair(platforms, *services)


def stop_at_crash_point(point: str, **fault: float) -> Race:
    """Stop a process at a crash point until another process has answered."""

    async def race(pair: Pair, build: str) -> None:
        await pair.start_first(point, build, "--signal", "SIGSTOP")
        if fault:
            pair.platforms.telegram.fault("sendMessage", **fault)
        pair.platforms.telegram_dm().ask()
        await pair.wait_until_first_is_stopped()
        await pair.start_second(build)
        await pair.wait_for_answer()
        pair.first.process.send_signal(signal.SIGCONT)

    return race


async def clock_is_ahead_of_a_message_that_is_being_sent(pair: Pair, build: str) -> None:
    await pair.start_first("never", build)
    await pair.start_second(build, "--clock-ahead", "30")
    pair.second.process.send_signal(signal.SIGSTOP)
    pair.platforms.telegram.fault("sendMessage", delay=8.0)  # the platform accepts it late
    pair.platforms.telegram_dm().ask()
    calls = pair.platforms.telegram.log
    await wait_until(lambda: any(call["method"] == "sendMessage" for call in calls))
    pair.second.process.send_signal(signal.SIGCONT)


RACES: dict[Race, str] = {
    stop_at_crash_point("before_finish"): "no_fence",  # a worker
    stop_at_crash_point("before_again", retry_after=1): "unfenced_again",  # a sender
    clock_is_ahead_of_a_message_that_is_being_sent: "clients_clocks",
}
"""The races, and the builds without the safeguard against each."""


@pytest.mark.soak
@pytest.mark.parametrize("is_right", [True, False])
async def test_answers_are_repeated_only_by_builds_without_a_safeguard(
    postgres_folder: str, launcher: ChildLauncher, tmp_path: Path, *, is_right: bool
) -> None:
    """The scenarios run concurrently, because they mostly wait."""

    async def run(race: Race, build: str) -> bool:
        folder = tmp_path / build
        folder.mkdir()
        async with running_pair(postgres_folder, launcher, folder) as pair:
            await race(pair, "right" if is_right else build)
            return await pair.repeated(fault_is_expected=not is_right)

    async with asyncio.TaskGroup() as group:
        runs = {build: group.create_task(run(race, build)) for race, build in RACES.items()}
    assert {name: one.result() for name, one in runs.items()} == dict.fromkeys(runs, not is_right)
