"""What /readyz says of providers that do not answer this worker."""

from collections.abc import Mapping

import pytest

from bot.chat.operation import ModelHealth
from bot.ports import Backend
from bot.prompting.presets.preset import Preset
from bot.service.jobs import ProviderNotices
from bot.service.options import ALL_ROLES, Role
from tests.fakes import FakeRemoteBackend

_WORKER = frozenset({Role.WORKER})
_PRESETS = [Preset(name=name, provider=name, model="m") for name in ("cloud", "local")]


def watched(**is_paused: bool) -> Backend:
    """Return a backend whose models have open circuit breakers, or not."""
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
def test_provider_that_does_not_answer_is_named_by_its_workers(
    local: bool, roles: frozenset[Role], found: list[str], problem: str | None
) -> None:
    backends = {"cloud": watched(big=True, small=True), "local": watched(a=local)}
    worker = notices(backends, roles)
    assert worker.find() == [f"provider {name!r} does not answer this worker" for name in found]
    assert worker.worker_problem() == problem


def test_provider_with_one_model_that_answers_is_not_named() -> None:
    worker = notices({"cloud": watched(big=True, small=False), "local": watched()})
    assert worker.find() == []
    assert worker.worker_problem() is None
