"""Fixtures of the end-to-end tests; a failed test shows the log of its service."""

import os
import random
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess


@pytest.fixture
def seed() -> int:
    """TROUPE_SEED, to repeat a run, or a random number."""
    given = int(os.environ.get("TROUPE_SEED", random.randrange(2**32)))  # noqa: TID251 # a test's own
    print(f"TROUPE_SEED={given} repeats this run")  # noqa: T201 # shown if it fails or ends late
    return given


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platforms() -> AsyncIterator[LoopbackPlatforms]:
    async with running_platforms() as both:
        yield both


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as answering:
        yield answering


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    platforms: LoopbackPlatforms, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcess]:
    """Return a service that is not started yet."""
    installed = ServiceProcess(tmp_path_factory.mktemp("service"), platforms, model)
    yield installed
    if installed.is_running:
        await installed.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for value in _services(item.funcargs):
            report.sections.append((f"the end of {value.log}", value.log_tail()))
    return report


def _services(funcargs: dict[str, Any]) -> list[ServiceProcess]:
    return [value for value in funcargs.values() if isinstance(value, ServiceProcess)]
