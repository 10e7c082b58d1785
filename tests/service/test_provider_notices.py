"""What /readyz says of providers that do not answer this worker."""

from collections.abc import Mapping, Sequence

import pytest
from typing_extensions import override

from bot.chat.operation import ModelHealth
from bot.ports import Backend
from bot.prompting.presets.preset import Preset
from bot.service.jobs import ProviderNotices
from bot.service.options import ALL_ROLES, Role
from tests.fakes import FakeBackend

_WORKER = frozenset({Role.WORKER})
_PRESETS = [Preset(name=name, provider=name, model="m") for name in ("cloud", "local")]


class WatchedBackend(FakeBackend):
    """Its models have open circuit breakers, or not."""

    def __init__(self, **is_paused: bool) -> None:
        super().__init__()
        self._is_paused = is_paused

    @override
    def model_health(self) -> Sequence[ModelHealth]:
        return [ModelHealth(name, paused, 5, 5) for name, paused in self._is_paused.items()]


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
    backends = {"cloud": WatchedBackend(big=True, small=True), "local": WatchedBackend(a=local)}
    worker = notices(backends, roles)
    assert worker.find() == [f"provider {name!r} does not answer this worker" for name in found]
    assert worker.worker_problem() == problem


def test_provider_with_one_model_that_answers_is_not_named() -> None:
    worker = notices({"cloud": WatchedBackend(big=True, small=False), "local": WatchedBackend()})
    assert worker.find() == []
    assert worker.worker_problem() is None
