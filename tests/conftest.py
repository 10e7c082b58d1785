"""Settings and fixtures for all tests."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from hypothesis import settings

from bot.storage.database import Database, open_database
from tests.postgres import running_postgres
from tests.sqlite import create_sqlite_database

# How many examples a property test tries: `make check` takes "quick", `make soak` takes "soak",
# everything else takes "full". What CI tries is the same each time: new examples are looked for by
# everybody else and by `make soak`.
settings.register_profile("quick", max_examples=25, deadline=None)
is_in_ci = "CI" in os.environ  # noqa: TID251 # no setting
settings.register_profile("full", max_examples=100, deadline=None, derandomize=is_in_ci)
settings.register_profile("soak", max_examples=10_000, deadline=None)
settings.load_profile("full")

# Tracebacks with all local variables, as structlog's default prints them, take seconds each.
*_processors, _ = structlog.get_config()["processors"]
_console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*_processors, _console])

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background job; inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hide modules and tests from the garbage collector, which saves a fifth of the CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module")
def all_objects() -> Iterator[None]:
    """Let `gc.get_objects()` also return the objects created before the first test."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(await create_sqlite_database(tmp_path / "troupe.db")) as database:
        yield database


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[str]:
    """Yield the socket folder of a PostgreSQL server that runs for this session."""
    with running_postgres() as folder:
        yield folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def launcher() -> AsyncIterator[Any]:
    """Yield a `ChildLauncher`: a process that has imported the bot and starts it by forking."""
    from tests.support.child_launcher import running_launcher  # noqa: PLC0415 # imports it, too

    async with running_launcher() as running:
        yield running
