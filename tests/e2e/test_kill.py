"""Killed at any moment, the bot loses nothing, repeats nothing and keeps the order.

Judged from the chats alone. The same judge must find out two builds that are wrong on purpose.
TROUPE_SEED=... repeats a run.
"""

import os
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.crashing import POINTS
from tests.e2e.model import Model
from tests.e2e.nursery import nursery
from tests.e2e.service import Service
from tests.e2e.siege import Outcome, Plan, besiege, furnish
from tests.e2e.world import World, on_loopback

pytestmark = pytest.mark.service


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("TROUPE_SEED", random.randrange(2**32)))  # noqa: TID251 # a test's own


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with on_loopback() as both:
        furnish(both)
        yield both


@pytest_asyncio.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as answering:
        answering.pauses = (0.02, *[0.05] * 8, 0.4)  # the last ones are seen growing
        yield answering


@pytest_asyncio.fixture
async def service(
    world: World, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    async with nursery() as cradle:
        installed = Service(tmp_path_factory.mktemp("service"), world, model, cradle)
        yield installed
        if installed.running:
            await installed.kill()


def told(outcome: Outcome) -> Outcome:
    """Print what happened: pytest shows it when the test fails, or with -rP."""
    print(outcome.told())  # noqa: T201
    return outcome


@pytest.mark.timeout(300)
async def test_killed_at_any_moment_nothing_is_lost_or_repeated(
    service: Service, world: World, seed: int
) -> None:
    plan = Plan(seed, questions=200, questions_a_second=6, kills=16)
    outcome = told(await besiege(service, world, plan))
    assert outcome.verdict.clean
    assert outcome.verdict.questions == plan.questions + len(world.places)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_hundred_kills_and_a_thousand_questions(
    service: Service, world: World, seed: int
) -> None:
    plan = Plan(seed, questions=1200, questions_a_second=4, kills=150)
    outcome = told(await besiege(service, world, plan))
    assert outcome.verdict.clean
    assert outcome.verdict.questions == plan.questions + len(world.places)
    assert set(POINTS) - {"never"} <= set(outcome.deaths)
    assert outcome.lost_answers > 50


@pytest.mark.timeout(300)
async def test_build_that_sends_again_blindly_is_found_out(
    service: Service, world: World, seed: int
) -> None:
    points = ("after_http", "random")
    plan = Plan(
        seed,
        60,
        8,
        kills=4,
        lost_answers=0.3,
        give_up_seconds=6,
        points=points,
        build="blind_resend",
    )
    outcome = told(await besiege(service, world, plan))
    assert outcome.verdict.repeated


@pytest.mark.timeout(300)
async def test_build_that_acknowledges_first_is_found_out(
    service: Service, world: World, seed: int
) -> None:
    points = ("after_received",)
    plan = Plan(seed, 60, 8, kills=6, give_up_seconds=6, points=points, build="acknowledge_first")
    outcome = told(await besiege(service, world, plan))
    assert outcome.verdict.lost
