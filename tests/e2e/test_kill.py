"""Killed at any moment, the bot loses nothing, repeats nothing and keeps the order.

Only the chats are checked. The same check must find the faults of two builds made for that.
TROUPE_SEED=... repeats a run.
"""

import os
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.child_launcher import running_launcher
from tests.e2e.crash_points import CRASH_POINTS
from tests.e2e.kill_load import LoadPlan, LoadResult, add_conversations, run_under_kills
from tests.e2e.loopback_platforms import LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess

pytestmark = pytest.mark.service


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("TROUPE_SEED", random.randrange(2**32)))  # noqa: TID251 # a test's own


@pytest_asyncio.fixture
async def platforms() -> AsyncIterator[LoopbackPlatforms]:
    async with running_platforms() as both:
        add_conversations(both)
        yield both


@pytest_asyncio.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as answering:
        answering.chunk_delays = (0.02, *[0.05] * 14, 0.35)  # the last one leads to live edits
        yield answering


@pytest_asyncio.fixture
async def service(
    platforms: LoopbackPlatforms, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcess]:
    async with running_launcher() as launcher:
        installed = ServiceProcess(tmp_path_factory.mktemp("service"), platforms, model, launcher)
        yield installed
        if installed.is_running:
            await installed.kill()


def report(outcome: LoadResult) -> LoadResult:
    """Print the result: pytest shows it when the test fails, or with -rP."""
    print(outcome.report())  # noqa: T201
    return outcome


@pytest.mark.timeout(300)
async def test_nothing_is_lost_or_repeated_after_kills(
    service: ServiceProcess, platforms: LoopbackPlatforms, seed: int
) -> None:
    plan = LoadPlan(seed, questions=200, questions_a_second=6, kills=16)
    outcome = report(await run_under_kills(service, platforms, plan))
    assert outcome.result.is_clean
    assert outcome.result.questions == plan.questions + len(platforms.conversations)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_nothing_is_lost_or_repeated_after_150_kills(
    service: ServiceProcess, platforms: LoopbackPlatforms, seed: int
) -> None:
    plan = LoadPlan(seed, questions=1200, questions_a_second=4, kills=150)
    outcome = report(await run_under_kills(service, platforms, plan))
    assert outcome.result.is_clean
    assert outcome.result.questions == plan.questions + len(platforms.conversations)
    assert set(CRASH_POINTS) - {"never"} <= set(outcome.kills_by_point)
    assert outcome.dropped_responses > 50


@pytest.mark.timeout(300)
async def test_blind_resend_is_detected(
    service: ServiceProcess, platforms: LoopbackPlatforms, seed: int
) -> None:
    points = ("after_http", "random")
    plan = LoadPlan(
        seed,
        60,
        8,
        kills=4,
        dropped_responses=0.3,
        give_up_seconds=6,
        points=points,
        build="blind_resend",
    )
    outcome = report(await run_under_kills(service, platforms, plan))
    assert outcome.result.repeated


@pytest.mark.timeout(300)
async def test_early_acknowledgement_is_detected(
    service: ServiceProcess, platforms: LoopbackPlatforms, seed: int
) -> None:
    points = ("after_received",)
    plan = LoadPlan(
        seed, 90, 8, kills=10, give_up_seconds=6, points=points, build="acknowledge_first"
    )
    outcome = report(await run_under_kills(service, platforms, plan))
    assert outcome.result.lost
