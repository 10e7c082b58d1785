"""Installations: one process with SQLite, or several with PostgreSQL and Valkey."""

import contextlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest_asyncio
from typing_extensions import override

from tests.postgres import postgres_program
from tests.support.chats import Platforms, running_platforms
from tests.support.child_launcher import ChildLauncher
from tests.support.kill_load import Disturbance, LoadResult, add_conversations, disturb_valkey
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service, preset_json
from tests.valkey import run_valkey


@dataclass
class Shape:
    """An installation, and a task that disturbs its shared servers."""

    services: Sequence[Service]
    disturb: Disturbance | None = None


@pytest_asyncio.fixture(loop_scope="session")
async def crowded_platforms() -> AsyncIterator[Platforms]:
    async with running_platforms() as both:
        add_conversations(both)
        yield both


@pytest_asyncio.fixture(loop_scope="session")
async def answering_model() -> AsyncIterator[Model]:
    """Run a model server that answers all open questions, in small pieces."""
    async with Model() as model:
        model.answers_all = True
        model.chunk_delays = (0.02, *[0.05] * 14, 0.35)  # the last one leads to live edits
        yield model


class Pair(Service):
    """Two equal processes on PostgreSQL; the second continues while the first restarts."""

    second: Service

    @override
    async def run_with(self, preset: str = TESTER, **settings: str) -> None:
        if self._configuration != (preset, settings):
            await self.second.kill()
            self.second._configuration = (preset, settings)
        await super().run_with(preset, **settings)

    @override
    async def start_and_wait(self) -> None:
        await super().start_and_wait()
        if not self.second.is_running:
            await self.second.start_and_wait()

    @override
    @contextlib.asynccontextmanager
    async def killed_at(self, point: str, count: int = 1) -> AsyncIterator[None]:
        await self.second.kill()  # or else it might be the one that passes there
        async with super().killed_at(point, count):
            yield

    @override
    def stored(self) -> bytes:
        return self._print("pg_dump", "--data-only", "-d")

    @override
    def query(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a query for one column."""
        for value in values:
            statement = statement.replace("?", f"'{value}'", 1)
        return [[one] for one in self._print("psql", "-Atc", statement).decode().splitlines()]

    def _print(self, program: str, *options: str) -> bytes:
        url = urlsplit(self.settings["TROUPE_DATABASE_URL"])
        [folder], name = parse_qs(url.query)["host"], url.path.removeprefix("/")
        given = [str(postgres_program(program)), "-h", folder, "-U", "postgres", *options, name]
        return subprocess.run(given, check=True, capture_output=True).stdout


@dataclass
class Installer:
    """Installs processes that answer on the same platforms with the same model."""

    platforms: Platforms
    model: Model
    launcher: ChildLauncher
    folder: Path

    def install(self, name: str = "") -> Service:
        """Install a process; the caller must kill it."""
        return Service(self.folder / name, self.platforms, self.model, self.launcher)

    @contextlib.asynccontextmanager
    async def processes(
        self, *names: str, database_url: str | None = None, with_valkey: bool = False
    ) -> AsyncIterator[list[Service]]:
        """Install a process for each name, and kill all when the block ends."""
        async with contextlib.AsyncExitStack() as stack:
            shared = {}
            if database_url is not None:
                shared["TROUPE_DATABASE_URL"] = database_url
            if with_valkey:
                shared["TROUPE_REDIS_URL"] = await stack.enter_async_context(
                    run_valkey(self.folder)
                )
            services = [self.install(name) for name in names]
            for service in services:
                service.settings |= shared
                stack.push_async_callback(service.kill)
            yield services

    @contextlib.asynccontextmanager
    async def pair(self, database_url: str) -> AsyncIterator[Pair]:
        """Install two equal processes without starting them; kill them when the block ends."""
        installed = self.processes("second", database_url=database_url, with_valkey=True)
        async with installed as [second]:
            first = Pair(self.folder / "first", self.platforms, self.model, self.launcher)
            first.second, first.presets = second, second.presets
            second.settings["TROUPE_DATA_DIR"] = str(first.data)
            first.settings = {**second.settings}
            yield first
            await first.kill()

    @contextlib.asynccontextmanager
    async def shape(self, database_url: str | None, *roles: str) -> AsyncIterator[Shape]:
        """Install one process per role; without roles one process, or three with a database."""
        is_alike, several = not roles, database_url is not None
        roles = roles or ("all",) * (3 if several else 1)
        names = [f"{role}-{number}" for number, role in enumerate(roles)]
        installed = self.processes(*names, database_url=database_url, with_valkey=several)
        async with installed as services:
            for service, role in zip(services, roles, strict=True):
                service.options = ("--role", role)
                write_tester(service)
            if several and is_alike:
                del services[-1].settings["TROUPE_TELEGRAM__TOKEN"]
            valkey = services[0].settings.get("TROUPE_REDIS_URL")
            yield Shape(services, partial(disturb_valkey, valkey) if valkey else None)


def roles(workers: int = 2, senders: int = 1) -> list[str]:
    return ["gateway", *["worker"] * workers, *["sender"] * senders]


def write_tester(service: Service, **more: object) -> None:
    # The load's chatter in threads is to be observed, not answered.
    # Messages are gathered and answers interrupted; how many more wait is never told.
    rules = {"wake": {"sticky": False}, "busy": {"at_most": 100}, **more}
    service.write_tester(preset_json("tester", system="You are a tester.", **rules))


def report(outcome: LoadResult) -> LoadResult:
    """Print the result (pytest shows it on failure or with -rP), and return it."""
    print(outcome.report())  # noqa: T201
    return outcome


def assert_all_answered(outcome: LoadResult, platforms: Platforms) -> None:
    """Assert that all questions were answered once, in order, and nothing else was sent."""
    assert outcome.result.is_clean
    assert outcome.result.questions == outcome.questions + len(platforms.conversations)
