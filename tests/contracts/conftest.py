"""Fixtures: every implementation of storage and signals, on real servers."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from bot.ports import Signals
from bot.runtime.in_process import InProcessSignals
from bot.storage.codec import TextEncryption
from bot.storage.redis_signals import open_signals
from tests.postgres import create_postgres_database
from tests.sqlite import create_sqlite_database
from tests.support.store import Store, open_store
from tests.valkey import run_redis, run_valkey
from tests.waiting import wait_until

ENCRYPTION_KEY = Fernet.generate_key().decode()
DIALECTS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.service))


@pytest.fixture(params=DIALECTS)
async def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    return await _make_database(request, tmp_path, with_tables=True)


@pytest.fixture(params=DIALECTS)
async def database_without_tables(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return await _make_database(request, tmp_path, with_tables=False)


async def _make_database(request: pytest.FixtureRequest, folder: Path, *, with_tables: bool) -> str:
    if request.param == "sqlite":
        file = folder / "troupe.db"
        return await create_sqlite_database(file) if with_tables else f"sqlite:///{file}"
    postgres = request.getfixturevalue("postgres_folder")
    return await create_postgres_database(postgres, with_tables=with_tables)


@pytest.fixture
async def url(postgres_folder: str) -> str:
    """Return the URL of an empty PostgreSQL database."""
    return await create_postgres_database(postgres_folder)


@pytest.fixture
def encryption(empty_database: str) -> TextEncryption:
    """Return encryption that is on for PostgreSQL and off for SQLite."""
    is_on = not empty_database.startswith("sqlite")
    return TextEncryption([ENCRYPTION_KEY], encrypts_new_texts=is_on)


@pytest.fixture
async def store(empty_database: str, encryption: TextEncryption) -> AsyncIterator[Store]:
    async with open_store(empty_database, encryption) as opened:
        yield opened


@dataclass
class SignalPeers:
    """The signals of two processes, or the same object twice for signals within one process."""

    here: Signals
    there: Signals


@pytest.fixture(params=["valkey", "redis"])
async def redis_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Return the URL of a server that only this test uses."""
    run = run_valkey if request.param == "valkey" else run_redis
    async with run(tmp_path) as url:
        yield url


@pytest.fixture(params=["valkey", "redis", "in_process"])
async def signals(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SignalPeers]:
    # A server on a busy machine is not taken for one that is away: then signals may be lost.
    monkeypatch.setattr("bot.storage.redis_signals.TIMEOUT_SECONDS", 60)
    if request.param == "in_process":
        one = InProcessSignals()
        yield SignalPeers(one, one)
        return
    async with contextlib.AsyncExitStack() as stack:
        run = run_valkey if request.param == "valkey" else run_redis
        url = await stack.enter_async_context(run(tmp_path))
        here = await stack.enter_async_context(open_signals(url))
        there = await stack.enter_async_context(open_signals(url))
        await wait_until(lambda: here.is_connected and there.is_connected)
        yield SignalPeers(here, there)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that copy between two PostgreSQL databases, so that only `make soak` runs them."""
    for item in items:
        if item.name.endswith("[postgresql-postgresql]"):
            item.add_marker(pytest.mark.soak)
