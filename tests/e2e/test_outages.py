"""Test three processes on PostgreSQL and Valkey during long outages.

Only the visible messages are checked. Part of `make soak`: `pytest -rP -m soak
tests/e2e/test_outages.py` prints the figures and the seed; TROUPE_SEED=... repeats a run.
"""

import asyncio
import math
import os
import random
import time

import pytest

from tests.support.chats import Platforms
from tests.support.kill_load import LoadPlan, percentile, run_under_kills, spread
from tests.support.shapes import (
    Installer,
    answering_model,
    assert_all_answered,
    crowded_platforms,
    report,
    roles,
)
from tests.support.standby_postgres import running_postgres_pair
from tests.valkey import frozen_valkey

pytestmark = [
    pytest.mark.service,
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.asyncio(loop_scope="session"),
]

# A quick look at a run: a tenth of it is TROUPE_SHARE=0.1.
_SHARE = float(os.environ.get("TROUPE_SHARE", "1"))  # noqa: TID251 # a test's own
_BEFORE_SECONDS, _FROZEN_SECONDS = 120 * _SHARE, 300 * _SHARE
_FAILOVER_SECONDS = max(30.0, 120 * _SHARE)  # of writing before, and after


platforms, model = crowded_platforms, answering_model


async def test_stale_writes_of_paused_processes_are_refused(
    installer: Installer, platforms: Platforms, database_url: str, seed: int
) -> None:
    """Pause processes 200 times for 0.1 to 45 s, and print the refused stale writes."""
    installer.model.chunk_delays = (0.6,)  # so that most of them hold claims when they are stopped
    pauses = int(200 * _SHARE)
    plan = LoadPlan(
        seed,
        questions=0,
        questions_a_second=6,
        pauses=pauses,
        pause_seconds=(0.1, 45),
        give_up_seconds=120,
    )
    async with installer.shape(database_url) as shape:
        outcome = report(await run_under_kills(shape.services, platforms, plan))
    assert_all_answered(outcome, platforms)
    assert outcome.pauses >= pauses
    assert _SHARE < 1 or outcome.refused["fenced"], "no process stood still at the wrong moment"


@pytest.mark.parametrize("processes", [[], roles()], ids=["alike", "roles"])
async def test_frozen_redis_delays_answers_little(
    installer: Installer,
    platforms: Platforms,
    database_url: str,
    seed: int,
    processes: list[str],
) -> None:
    """Freeze Valkey for five minutes, and print the latency of answers before and during it.

    The load is below the limits of Telegram groups, beyond which answers wait anyway.
    """
    frozen: list[float] = []

    async def freeze(_: random.Random) -> None:
        await asyncio.sleep(_BEFORE_SECONDS)
        with frozen_valkey():
            frozen.append(time.monotonic())
            await asyncio.sleep(_FROZEN_SECONDS)
        frozen.append(time.monotonic())
        over.set()

    over = asyncio.Event()
    plan = LoadPlan(
        seed, questions=0, questions_a_second=1, dropped_responses=0.0, give_up_seconds=120
    )
    async with installer.shape(database_url, *processes) as shape:
        outcome = report(await run_under_kills(shape.services, platforms, plan, freeze, over))
    since, until = frozen
    before = outcome.times.latencies(since - _BEFORE_SECONDS / 2, since)  # earlier they start
    meanwhile = outcome.times.latencies(since, until)
    print(f"before: {spread(before)}; frozen: {spread(meanwhile)}")  # noqa: T201
    assert_all_answered(outcome, platforms)
    assert percentile(meanwhile, 99) <= percentile(before, 99) + 3


async def test_failover_to_a_synchronous_standby_loses_nothing(
    installer: Installer, platforms: Platforms, seed: int
) -> None:
    """Kill the primary server while people write, and print the latency of the next answer."""
    failed: list[float] = []
    over = asyncio.Event()
    async with running_postgres_pair() as pair, installer.shape(pair.url) as shape:

        async def fail_over(_: random.Random) -> None:
            await asyncio.sleep(_FAILOVER_SECONDS)
            failed.append(time.monotonic())
            await pair.fail_over()
            failed.append(time.monotonic())
            await asyncio.sleep(_FAILOVER_SECONDS)
            over.set()

        plan = LoadPlan(seed, questions=0, questions_a_second=3, give_up_seconds=120)
        outcome = report(await run_under_kills(shape.services, platforms, plan, fail_over, over))
    began, promoted = failed
    times = outcome.times
    back = min(at for at in times.answered.values() if at > promoted) - began
    print(  # noqa: T201
        f"promoted after {promoted - began:.1f} s, first answer {back:.1f} s after the failure;"
        f" before: {spread(times.latencies(0, began))};"
        f" from it on: {spread(times.latencies(began, math.inf))}"
    )
    assert_all_answered(outcome, platforms)
