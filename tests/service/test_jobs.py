"""Test the periodic jobs of a process, and when it claims conversations."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import insert
from typing_extensions import override

from bot.backends.registry import EchoSettings
from bot.chat.operation import ModelHealth
from bot.ports import Backend
from bot.prompting.presets.preset import Preset
from bot.runtime.tasks import cancel_and_wait
from bot.service.container import Container
from bot.service.jobs import ProviderNotices, measure_loop_lag, measure_queues
from bot.service.options import ALL_ROLES, Role, RunOptions
from bot.service.resources import Resources, open_resources
from bot.settings import Settings
from bot.storage.database import Database
from bot.storage.reports import ServiceState
from bot.storage.tables import conversation, lane
from bot.telemetry.metrics import QUEUE_AGE
from bot.turn.signals import CONVERSATIONS_TOPIC
from tests.fakes import FakeClock, FakeRemoteBackend, FakeSignals


def queue_age(queue: str) -> float | None:
    return REGISTRY.get_sample_value("troupe_queue_age_seconds", {"queue": queue})


async def store_waiting(database: Database, conversations: float, lanes: float) -> None:
    rows = (
        insert(conversation).values(
            key="telegram:1", platform="telegram", ready_since=conversations
        ),
        insert(conversation).values(key="telegram:2", platform="telegram"),
        insert(lane).values(key="telegram:1", platform="telegram", due_at=lanes),
    )
    await database.write(lambda connection: [connection.execute(row) for row in rows])


async def test_process_measures_only_the_queue_ages_of_its_roles(database: Database) -> None:
    clock = FakeClock()
    state = ServiceState(database, clock)
    assert await state.queue_ages() == (0.0, 0.0)
    await store_waiting(database, clock.now() - 30, clock.now() - 4)
    QUEUE_AGE.clear()

    await measure_queues(state, {Role.WORKER})
    assert (queue_age("conversations"), queue_age("lanes")) == (30, None)
    await measure_queues(state, ALL_ROLES)
    assert (queue_age("conversations"), queue_age("lanes")) == (30, 4)


async def test_lane_due_in_the_future_is_not_late(database: Database) -> None:
    clock = FakeClock()
    await store_waiting(database, clock.now(), clock.now() + 60)
    assert await ServiceState(database, clock).queue_ages() == (0.0, 0.0)


def loop_lag_sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"troupe_loop_lag_seconds_{name}", labels) or 0.0


class BusyClock(FakeClock):
    """A clock whose second timer fires 0.2 s late, as in a busy event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._delays = [0.0, 0.2]

    @override
    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds + (self._delays.pop(0) if self._delays else 0.0))


async def test_event_loop_lag_is_measured() -> None:
    clock = BusyClock()
    count, seconds, soon = (
        loop_lag_sample("count"),
        loop_lag_sample("sum"),
        loop_lag_sample("bucket", le="0.05"),
    )
    measuring = asyncio.create_task(measure_loop_lag(clock))
    await clock.advance(1.2)
    await cancel_and_wait([measuring])

    assert loop_lag_sample("count") - count == 2
    assert round(loop_lag_sample("sum") - seconds, 3) == 0.2
    assert loop_lag_sample("bucket", le="0.05") - soon == 1


_WORKER = frozenset({Role.WORKER})
_PRESETS = [Preset(name=name, provider=name, model="m") for name in ("cloud", "local")]


def make_backend(**is_paused: bool) -> Backend:
    """Return a backend with or without open circuit breakers."""
    backend = FakeRemoteBackend()
    backend.health = [ModelHealth(name, paused, 5, 5) for name, paused in is_paused.items()]
    return backend


def notices(backends: Mapping[str, Backend], roles: frozenset[Role] = _WORKER) -> ProviderNotices:
    return ProviderNotices(lambda: _PRESETS, backends, roles)


@pytest.mark.parametrize(
    ("local", "roles", "found", "problem"),
    [
        (False, _WORKER, ["cloud"], None),  # the other provider answers
        (True, _WORKER, ["cloud", "local"], "no provider answers: cloud, local"),
        (True, ALL_ROLES, ["cloud", "local"], None),  # it has other work, too
    ],
)
def test_workers_report_a_provider_that_does_not_answer(
    local: bool, roles: frozenset[Role], found: list[str], problem: str | None
) -> None:
    backends = {"cloud": make_backend(big=True, small=True), "local": make_backend(a=local)}
    worker = notices(backends, roles)
    assert worker.find() == [f"provider {name!r} does not answer this worker" for name in found]
    assert worker.worker_problem() == problem


def test_provider_with_a_working_model_is_not_reported() -> None:
    worker = notices({"cloud": make_backend(big=True, small=False), "local": make_backend()})
    assert worker.find() == []
    assert worker.worker_problem() is None


KEY = "telegram:1"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, providers={"test": EchoSettings()})


@pytest.fixture
async def resources(settings: Settings) -> AsyncIterator[Resources]:
    options = RunOptions(serves_http=False, answers_messages=False)
    async with open_resources(settings, (), pytest.fail, options) as opened:
        yield opened


@pytest.mark.parametrize(
    ("roles", "claims_at_once"),
    [
        ({Role.WORKER}, True),
        ({Role.WORKER, Role.SENDER, Role.CONSOLE}, True),
        ({Role.GATEWAY, Role.WORKER}, False),
        (ALL_ROLES, False),
    ],
    ids=["worker", "no-gateway", "gateway-and-worker", "all"],
)
async def test_worker_waits_a_moment_before_claiming_messages_received_elsewhere(
    settings: Settings, resources: Resources, roles: frozenset[Role], claims_at_once: bool
) -> None:
    clock, signals = FakeClock(), FakeSignals()
    options = RunOptions(serves_http=False, roles=frozenset(roles))
    resources = replace(resources, signals=signals)
    pool = Container(settings, resources, (), pytest.fail, options, clock).conversation_pool

    signals.receive(CONVERSATIONS_TOPIC, [KEY])

    assert pool.unfinished_count == int(claims_at_once)
    await clock.advance(0.1)
    assert pool.unfinished_count == 1
