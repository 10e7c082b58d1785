"""Fixtures of the end-to-end tests; a failed test shows the log of its service."""

import itertools
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.postgres import create_postgres_database
from tests.support.chats import Chat, Platforms, running_platforms
from tests.support.child_launcher import ChildLauncher
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.shapes import Installer
from tests.waiting import PATIENCE_SECONDS

_numbers = itertools.count()
_TAKEN = pytest.StashKey[bool]()


@pytest.fixture
def seed() -> int:
    """Return the number in TROUPE_SEED, which repeats a run, or else a random number."""
    given = int(os.environ.get("TROUPE_SEED", random.randrange(2**32)))  # noqa: TID251 # a test's own
    print(f"TROUPE_SEED={given} repeats this run")  # noqa: T201 # shown if it fails or ends late
    return given


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def platforms() -> AsyncIterator[Platforms]:
    async with running_platforms() as both:
        # A restart on a busy machine takes longer than Telegram's 15 seconds, which
        # tests/platforms/telegram/test_private_replies.py tests with dated commands.
        both.telegram.ephemeral_seconds = 2 * PATIENCE_SECONDS
        yield both


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model() -> AsyncIterator[Model]:
    async with Model() as answering:
        yield answering


@pytest.fixture(scope="module")
def module_installer(
    platforms: Platforms,
    model: Model,
    launcher: ChildLauncher,
    tmp_path_factory: pytest.TempPathFactory,
) -> Installer:
    """Return an installer for the processes that a module shares."""
    return Installer(platforms, model, launcher, tmp_path_factory.mktemp("module"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(
    request: pytest.FixtureRequest, platforms: Platforms, module_installer: Installer
) -> AsyncIterator[Service]:
    """Install a service without starting it; see the mark `ALONE_AND_IN_PAIRS`."""
    platforms.forget_sessions()
    platforms.telegram.updates.clear()  # an earlier installation may not have confirmed the last
    if getattr(request, "param", "alone") == "pair":
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
        async with module_installer.pair(url) as both:
            yield both
    else:
        installed = module_installer.install(f"service-{next(_numbers)}")
        yield installed
        await installed.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def running(
    request: pytest.FixtureRequest,
    platforms: Platforms,
    model: Model,
    service: Service,
) -> Service:
    """Run the service with the preset and settings of the mark `runs_with`."""
    platforms.end_faults()
    model.reset()
    mark = request.node.get_closest_marker("runs_with")
    await service.run_with(*(mark.args if mark else ()), **(mark.kwargs if mark else {}))
    return service


@pytest_asyncio.fixture(loop_scope="session")
async def installed(installer: Installer, service: Service) -> AsyncIterator[Service]:
    """Stop the module's service, and install another for this test without starting it."""
    await service.kill()
    installer.platforms.end_faults()
    installer.platforms.forget_sessions()
    installer.model.reset()
    new = installer.install()
    yield new
    await new.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres_folder: str) -> str:
    """Return the URL of an empty PostgreSQL database."""
    return await create_postgres_database(postgres_folder)


@pytest.fixture
def installer(
    platforms: Platforms, model: Model, launcher: ChildLauncher, tmp_path: Path
) -> Installer:
    """Return an installer for the processes of one test."""
    return Installer(platforms, model, launcher, tmp_path)


@pytest.fixture(scope="module")
def reads_all_messages(platforms: Platforms) -> None:
    """Turn privacy mode off, so that the bot receives all messages of Telegram groups."""
    platforms.telegram.me["can_read_all_group_messages"] = True


@pytest.fixture
def where(request: pytest.FixtureRequest, running: Service, platforms: Platforms) -> Chat:
    """Open a new conversation of the given kind; the service is running."""
    return platforms.open(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run most combinations of parameters only in `make soak`.

    `make test` runs each value at least once, and a pair of processes once per module.
    """
    by_test = defaultdict[str, list[pytest.Function]](list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            by_test[item.nodeid.partition("[")[0]].append(item)
    with_pair = set[object]()
    for combinations in by_test.values():
        seen = set[tuple[str, object]]()
        for is_wanted in (seen.isdisjoint, lambda values: not values <= seen):  # noqa: B023
            for item in combinations:
                values = {(name, str(value)) for name, value in item.callspec.params.items()}
                is_pair = ("service", "pair") in values
                if is_wanted(values) and not (is_pair and item.module in with_pair):
                    seen |= values
                    with_pair |= {item.module} if is_pair else set()
                    item.stash[_TAKEN] = True
        for item in combinations:
            if _TAKEN not in item.stash:
                item.add_marker(pytest.mark.soak)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        services = {one for one in item.funcargs.values() if isinstance(one, Service)}
        for one in services:
            report.sections.append((f"the end of {one.log}", one.log_tail()))
    return report
