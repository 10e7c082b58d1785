"""What the end-to-end tests share; the log of a service is shown when its test fails."""

from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.model import Model
from tests.e2e.service import Service
from tests.e2e.world import World, on_loopback


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with on_loopback() as both:
        yield both


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[Model]:
    async with Model() as answering:
        yield answering


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    world: World, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    """A service that is not started yet."""
    installed = Service(tmp_path_factory.mktemp("service"), world, model)
    yield installed
    if installed.running:
        await installed.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for value in _services(item.funcargs):
            report.sections.append((f"the end of {value.log}", value.last_words()))
    return report


def _services(funcargs: dict[str, Any]) -> list[Service]:
    return [value for value in funcargs.values() if isinstance(value, Service)]
