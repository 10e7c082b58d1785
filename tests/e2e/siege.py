"""Kill the bot again and again while people talk to it, then let it finish and judge the chats."""

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from tests.e2e.checker import Verdict, judge
from tests.e2e.crashing import POINTS
from tests.e2e.service import Service
from tests.e2e.world import World

_RANDOM = "random"  # killed from outside, at any moment
_STOPPED = "stopped"  # asked to end, at any moment, as before an update
_SELDOM = {"after_open", "between_parts", "during_reconcile"}  # points that few messages pass
_LONG_ANSWERS = (700, 1300)  # words: two and three messages on Discord


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is said and how often the bot is killed; the seed decides all the rest."""

    seed: int
    questions: int
    questions_a_second: float
    kills: int
    lost_answers: float = 0.05  # the share of sends that is cut after the platform accepted
    points: tuple[str, ...] = (_RANDOM, _STOPPED, *(name for name in POINTS if name != "never"))
    build: str = "right"
    patience_seconds: float = 3.0  # for a crash point to be reached
    give_up_seconds: float = 40.0  # without any change once nobody kills it any more


@dataclass(slots=True)
class Outcome:
    """What was done to the bot, and what the chats look like afterwards."""

    plan: Plan
    deaths: Counter[str] = field(default_factory=Counter)  # by crash point or other end
    lost_answers: int = 0
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)

    def told(self) -> str:
        deaths = ", ".join(f"{point} {times}" for point, times in self.deaths.most_common())
        return (
            f"seed {self.plan.seed}, build {self.plan.build}: {self.deaths.total()} kills"
            f" ({deaths}), {self.lost_answers} answers of the platforms lost,"
            f" {self.seconds:.0f} s\n{self.verdict}"
        )


def furnish(world: World) -> None:
    """Make the places of a siege: 24, of every kind there is."""
    for _ in range(4):
        world.channel()
        world.discord_private()
        world.telegram_private()
        world.group()
    for _ in range(2):
        world.discord_thread()
        world.topics()


async def besiege(service: Service, world: World, plan: Plan) -> Outcome:
    """Talk and kill as planned, then wait until nothing changes any more, and judge."""
    dice = random.Random(plan.seed)
    outcome = Outcome(plan)
    began = time.monotonic()
    await _meet(service, world, plan)
    world.lose_answers(plan.lost_answers, random.Random(dice.random()))
    async with asyncio.TaskGroup() as group:
        talking = group.create_task(_talk(world, plan, random.Random(dice.random())))
        await _kill(service, outcome, random.Random(dice.random()))
        await service.start_to_crash("never", 1, plan.build)
        await talking
    await finished(world, plan.give_up_seconds)
    assert await service.stop() == 0, "the service did not end in order"
    outcome.seconds = time.monotonic() - began
    outcome.lost_answers = world.lost_answers()
    outcome.verdict = judge(world.posts())
    return outcome


async def _meet(service: Service, world: World, plan: Plan) -> None:
    """Let the bot come to know every place: of a private chat that is new nobody tells a bot that
    was away, and what was said before its first start is not meant for it.
    """
    await service.begin()
    for number, place in enumerate(world.places.values()):
        place.ask(f"f{number:04x}")
    await finished(world, plan.give_up_seconds)
    assert await service.stop() == 0, "the service did not end in order"


async def _talk(world: World, plan: Plan, dice: random.Random) -> None:
    """Ask questions at random places, at times in a row, with others talking in between."""
    places = list(world.places.values())
    for number in range(plan.questions):
        place = dice.choice(places)
        place.ask(f"{number:04x}", _words(dice), dice.randrange(2))
        if place.call and dice.random() < 0.2:
            place.say("not meant for you", dice.randrange(2))
        if dice.random() < 0.7:  # the others follow at once
            await asyncio.sleep(dice.expovariate(plan.questions_a_second * 0.7))


def _words(dice: random.Random) -> int:
    return dice.choice(_LONG_ANSWERS) if dice.random() < 0.08 else dice.randint(1, 40)


async def _kill(service: Service, outcome: Outcome, dice: random.Random) -> None:
    """Start it until it has died as often as planned, at every point in turn."""
    plan = outcome.plan
    order: list[str] = []
    while outcome.deaths.total() < plan.kills:
        order = order or dice.sample(plan.points, len(plan.points))
        point = order.pop()
        crash = point if point in POINTS else "never"
        await service.start_to_crash(crash, _count(point, dice), plan.build)
        patience = plan.patience_seconds
        if point == _RANDOM:
            with suppress(TimeoutError):
                await service.ready()
            patience = dice.uniform(0.2, 2.5)
        elif point == _STOPPED:
            patience = dice.uniform(0.2, 4)  # it may still be starting
        if not await service.ends_within(patience):
            point = await _end(service, point)
        outcome.deaths[point] += 1


async def _end(service: Service, point: str) -> str:
    """Stop or kill it; gives by which name to count that."""
    if point == _STOPPED:
        assert await service.stop() in {0, -signal.SIGTERM}
        return _STOPPED
    await service.kill()
    return _RANDOM


def _count(point: str, dice: random.Random) -> int:
    """Which passing of a point is the last one."""
    return 1 if point in _SELDOM else dice.randint(1, 10)


async def finished(world: World, seconds: float) -> None:
    """Wait until all is right, or nothing has changed for so long, and a moment more."""
    before, changed_at = None, time.monotonic()
    while time.monotonic() < changed_at + seconds:
        posts = list(world.posts())
        if judge(posts).clean:
            break
        if posts != before:
            before, changed_at = posts, time.monotonic()
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)  # what comes too often comes late
