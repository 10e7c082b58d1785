"""Test how the worker of a process is told of conversations that other processes have received."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bot.backends.registry import EchoSettings
from bot.service.container import Container
from bot.service.options import ALL_ROLES, Role, RunOptions
from bot.service.resources import Resources, open_resources
from bot.settings import Settings
from bot.turn.signals import CONVERSATIONS
from tests.fakes import FakeClock, FakeSignals

KEY = "telegram:1"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, providers={"test": EchoSettings()})


@pytest.fixture
async def resources(settings: Settings) -> AsyncIterator[Resources]:
    options = RunOptions(has_port=False, answers_messages=False)
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
async def test_worker_beside_a_gateway_leaves_what_others_received_to_them_for_a_moment(
    settings: Settings, resources: Resources, roles: frozenset[Role], claims_at_once: bool
) -> None:
    clock, signals = FakeClock(), FakeSignals()
    options = RunOptions(has_port=False, roles=frozenset(roles))
    resources = replace(resources, signals=signals)
    pool = Container(settings, resources, (), pytest.fail, options, clock).conversation_pool

    signals.receive(CONVERSATIONS, [KEY])

    assert pool.busy_count == int(claims_at_once)
    await clock.advance(0.1)
    assert pool.busy_count == 1
