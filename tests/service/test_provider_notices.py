"""What /readyz says of providers: who serves them, and whether they answer this worker."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from bot.chat.console.operation import ModelHealth
from bot.ports import Backend, MonitoredBackend
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.service.operation.provider_notices import ProviderNotices
from bot.service.roles import ALL_ROLES, Role
from bot.service.run_options import RunOptions
from bot.storage.operation.nodes import SqlNodeRegistry
from bot.storage.sql.database import Database, open_database
from tests.fakes import FakeBackend

_WORKER = frozenset({Role.WORKER})
_PRESETS = [Preset(name=name, provider=name, model="m") for name in ("cloud", "local")]


class WatchedBackend(FakeBackend, MonitoredBackend):
    """Its models have open circuit breakers, or not."""

    def __init__(self, **is_paused: bool) -> None:
        super().__init__()
        self._is_paused = is_paused

    @override
    def model_health(self) -> Sequence[ModelHealth]:
        return [ModelHealth(name, paused, 5, 5) for name, paused in self._is_paused.items()]


def notices(
    database: Database, options: RunOptions, backends: Mapping[str, Backend]
) -> ProviderNotices:
    nodes = SqlNodeRegistry(database, SystemClock())
    return ProviderNotices(nodes, lambda: _PRESETS, backends, options)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as database:
        yield database


async def test_provider_that_nobody_serves_is_named_by_every_role(database: Database) -> None:
    gateway = notices(database, RunOptions(roles=frozenset({Role.GATEWAY})), {})
    await gateway.nodes.enter("host:1", "worker(cloud)", "0.1.0")
    assert await gateway.find() == ["nobody serves provider 'local', which a preset uses"]
    await gateway.nodes.enter("host:2", "worker(local)", "0.1.0")
    assert await gateway.find() == []


@pytest.mark.parametrize(
    ("roles", "providers", "problem"),
    [
        (_WORKER, None, None),  # the other provider answers
        (_WORKER, frozenset({"cloud"}), "no provider answers: cloud"),
        (ALL_ROLES, frozenset({"cloud"}), None),  # it has other work, too
    ],
)
async def test_provider_that_does_not_answer_is_named_by_its_workers(
    database: Database,
    roles: frozenset[Role],
    providers: frozenset[str] | None,
    problem: str | None,
) -> None:
    backends = {"cloud": WatchedBackend(big=True, small=True), "local": WatchedBackend(a=False)}
    options = RunOptions(roles=roles, providers=providers)
    worker = notices(database, options, backends)
    await worker.nodes.enter("host:1", "worker", "0.1.0")
    assert await worker.find() == ["provider 'cloud' does not answer this worker"]
    assert worker.worker_problem() == problem


async def test_provider_with_one_model_that_answers_is_not_named(database: Database) -> None:
    backends = {"cloud": WatchedBackend(big=True, small=False), "local": WatchedBackend()}
    worker = notices(database, RunOptions(roles=_WORKER), backends)
    assert await worker.find() == []
    assert worker.worker_problem() is None
