"""Installations to be disturbed: one process with SQLite; three with a PostgreSQL and a Valkey."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.e2e.child_launcher import running_launcher
from tests.e2e.disturbed_redis import disturb_valkey
from tests.e2e.kill_load import Disturbance, LoadResult, add_conversations
from tests.e2e.loopback_platforms import LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.valkey import run_valkey


@dataclass
class Shape:
    """An installation, and what disturbs what its processes share."""

    services: Sequence[ServiceProcess]
    model: ModelServer
    disturb: Disturbance | None = None


@contextlib.asynccontextmanager
async def crowded_platforms() -> AsyncIterator[LoopbackPlatforms]:
    """Run both platforms with conversations of every kind."""
    async with running_platforms() as both:
        add_conversations(both)
        yield both


@contextlib.asynccontextmanager
async def answering_model() -> AsyncIterator[ModelServer]:
    """Run a model server that answers every question in pieces."""
    async with ModelServer() as model:
        model.answers_all = True
        model.chunk_delays = (0.02, *[0.05] * 14, 0.35)  # the last one leads to live edits
        yield model


@contextlib.asynccontextmanager
async def installed_shape(
    platforms: LoopbackPlatforms, model: ModelServer, folder: Path, database_url: str | None
) -> AsyncIterator[Shape]:
    """Install one process, or three on a PostgreSQL, two of them on Telegram."""
    roles = ["all"] * (1 if database_url is None else 3)
    async with _installed(platforms, model, folder, database_url, roles) as shape:
        if database_url is not None:
            del shape.services[-1].settings["TROUPE_TELEGRAM__TOKEN"]
        yield shape


@contextlib.asynccontextmanager
async def installed_roles(
    platforms: LoopbackPlatforms,
    model: ModelServer,
    folder: Path,
    database_url: str,
    workers: int = 2,
    senders: int = 1,
) -> AsyncIterator[Shape]:
    """Install a gateway, workers and senders on a PostgreSQL, each as a process of its own."""
    roles = ["gateway", *["worker"] * workers, *["sender"] * senders]
    async with _installed(platforms, model, folder, database_url, roles) as shape:
        yield shape


@contextlib.asynccontextmanager
async def _installed(
    platforms: LoopbackPlatforms,
    model: ModelServer,
    folder: Path,
    database_url: str | None,
    roles: Sequence[str],
) -> AsyncIterator[Shape]:
    async with contextlib.AsyncExitStack() as stack:
        services = []
        for number, role in enumerate(roles):
            launcher = await stack.enter_async_context(running_launcher())
            service = ServiceProcess(folder / f"service-{number}", platforms, model, launcher)
            service.options = ("--role", role)
            write_tester(service)
            stack.push_async_callback(service.kill)
            services.append(service)
        disturb = None
        if database_url is not None:
            valkey = await stack.enter_async_context(run_valkey(folder))
            disturb = partial(disturb_valkey, valkey)
            for service in services:
                service.settings |= {
                    "TROUPE_DATABASE_URL": database_url,
                    "TROUPE_REDIS_URL": valkey,
                }
        yield Shape(services, model, disturb)


def write_tester(service: ServiceProcess, **more: object) -> None:
    """Write the preset that answers."""
    # The load's chatter in threads is to be observed, not answered.
    # Messages are gathered and answers interrupted; how many more wait is never told.
    rules = {"wake": {"sticky": False}, "busy": {"at_most": 100}, **more}
    tester = preset_json("tester", system="You are a tester.", **rules)
    (service.presets / "tester.json").write_text(tester)


def report(outcome: LoadResult) -> LoadResult:
    """Print the result: pytest shows it when the test fails, or with -rP."""
    print(outcome.report())  # noqa: T201
    return outcome


def assert_all_answered(outcome: LoadResult, platforms: LoopbackPlatforms) -> None:
    """Every question was answered once and in order, and nothing else was said."""
    assert outcome.result.is_clean
    assert outcome.result.questions == outcome.questions + len(platforms.conversations)
