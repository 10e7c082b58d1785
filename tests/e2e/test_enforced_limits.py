"""Test four workers and four senders on platforms that enforce their rate limits.

Part of `make soak`. `pytest -rP -m soak tests/e2e/test_enforced_limits.py` prints the figures and
the seed, TROUPE_SEED=... repeats a plan, and TROUPE_SHARE=0.1 runs one of the ten minutes.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest
import pytest_asyncio

from bot.runtime.tasks import cancel_and_wait
from tests.support.chats import Chat, Platforms, running_platforms
from tests.support.enforced_limits import LimitedDiscord, LimitedTelegram, LimitEnforcer
from tests.support.kill_load import LoadPlan, add_conversations, run_under_kills
from tests.support.shapes import Installer, answering_model, report, roles

pytestmark = [
    pytest.mark.service,
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.asyncio(loop_scope="session"),
]

# A quick look at a run: a tenth of it is TROUPE_SHARE=0.1.
_SHARE = float(os.environ.get("TROUPE_SHARE", "1"))  # noqa: TID251 # a test's own
_SECONDS = 600 * _SHARE
_STARTING_SECONDS = 20.0
"""The startup time, in which processes do not yet share refusals with each other."""
_REFUSED = ("discord-route", "discord-bot", "telegram-chat")


class Bursts:
    """People who write at the same time in many private chats, a group, and a channel."""

    def __init__(self, platforms: Platforms) -> None:
        self.questions = 0
        self._names = (f"b{number:05x}" for number in count())
        self._groups_of_chats: list[Sequence[Chat]] = [
            [platforms.telegram_dm() for _ in range(40)],
            [platforms.discord_dm() for _ in range(60)],
            [platforms.telegram_group()] * 8,
            [platforms.channel()] * 8,
        ]

    async def ask_until_cancelled(self, rng: random.Random) -> None:
        while True:
            for chats in self._groups_of_chats:
                for where in chats:
                    self._ask(where, rng)
                await asyncio.sleep(rng.uniform(10, 20))

    def _ask(self, where: Chat, rng: random.Random) -> None:
        self.questions += 1
        where.ask(next(self._names), rng.randint(1, 40))


model = answering_model


@pytest.fixture
def enforcer() -> LimitEnforcer:
    return LimitEnforcer()


@pytest_asyncio.fixture(loop_scope="session")
async def platforms(enforcer: LimitEnforcer) -> AsyncIterator[Platforms]:
    def make_discord(port: int) -> LimitedDiscord:
        wire = LimitedDiscord(port=port)
        wire.enforcer = enforcer
        return wire

    def make_telegram() -> LimitedTelegram:
        wire = LimitedTelegram()
        wire.enforcer = enforcer
        return wire

    async with running_platforms(make_discord=make_discord, make_telegram=make_telegram) as both:
        add_conversations(both)
        yield both


async def test_calls_of_all_processes_stay_within_the_platforms_limits(
    platforms: Platforms,
    installer: Installer,
    enforcer: LimitEnforcer,
    database_url: str,
    seed: int,
) -> None:
    """Send questions for ten minutes; sometimes a platform refuses a call without reason."""
    bursts, over = Bursts(platforms), asyncio.Event()

    async def refuse_now_and_then(rng: random.Random) -> None:
        await asyncio.sleep(_STARTING_SECONDS)
        while True:
            await asyncio.sleep(rng.uniform(5, 10))
            enforcer.refuse_next(rng.choice(_REFUSED), rng.randint(3, 12))

    async def disturb(rng: random.Random) -> None:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(bursts.ask_until_cancelled(rng))
            refusing = tasks.create_task(refuse_now_and_then(rng))
            await asyncio.sleep(_SECONDS)
            asking.cancel()
            refusing.cancel()
        over.set()

    plan = LoadPlan(
        seed, questions=0, questions_a_second=2, dropped_responses=0.0, give_up_seconds=120
    )
    processes = roles(workers=4, senders=4)
    async with installer.shape(database_url, *processes) as installed:
        installer.model.chunk_delays = (0.02, 0.7, 0.7, 0.7)  # few pieces, and time for live edits
        for service in installed.services:
            service.settings["TROUPE_DELIVERY__PACING"] = "strict"
        measuring = asyncio.create_task(enforcer.measure_delays())
        outcome = report(await run_under_kills(installed.services, platforms, plan, disturb, over))
        await cancel_and_wait([measuring])
    print(*enforcer.early, sep="\n")  # noqa: T201
    for one in enforcer.self_inflicted():
        print(one.scope, *one.calls, sep="\n    ")  # noqa: T201
    refused = [f"{one.scope}: {one.until - one.at:.2f} s" for one in enforcer.self_inflicted()]
    assert outcome.result.is_clean
    asked = outcome.questions + bursts.questions + len(platforms.conversations)
    assert outcome.result.questions == asked
    assert refused == [], "a call was one too many"
    assert enforcer.early == [], "a call came before a refusal was over"
    kinds = {one.scope.partition(" ")[0] for one in enforcer.refusals}
    assert _SHARE < 1 or kinds == set(_REFUSED), "too little was refused on purpose"
