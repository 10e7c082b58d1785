"""Kill the bot repeatedly while questions are sent, then let it finish and check the answers."""

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from tests.e2e.crash_points import CRASH_POINTS
from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import CheckResult, check_transcripts

_RANDOM = "random"  # killed from outside, at any moment
_STOPPED = "stopped"  # stopped by a signal, at any moment
_RARE = {"after_open", "between_parts", "during_reconcile"}  # points that few messages pass
_LONG_ANSWERS = (700, 1300)  # words: two and three messages on Discord


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How many questions are sent and how often the bot is killed; the seed decides the rest."""

    seed: int
    questions: int
    questions_a_second: float
    kills: int
    dropped_responses: float = 0.05  # the share of sends that is cut after the platform accepted
    points: tuple[str, ...] = (
        _RANDOM,
        _STOPPED,
        *(name for name in CRASH_POINTS if name != "never"),
    )
    build: str = "right"
    reach_seconds: float = 3.0  # for a crash point to be reached
    give_up_seconds: float = 40.0  # without any change after the last kill


@dataclass(slots=True)
class LoadResult:
    """The kills, and what the check of the chats found."""

    plan: LoadPlan
    kills_by_point: Counter[str] = field(default_factory=Counter)  # by crash point or other end
    dropped_responses: int = 0
    seconds: float = 0.0
    result: CheckResult = field(default_factory=CheckResult)

    def report(self) -> str:
        kills_by_point = ", ".join(
            f"{point} {times}" for point, times in self.kills_by_point.most_common()
        )
        return (
            f"seed {self.plan.seed}, build {self.plan.build}: {self.kills_by_point.total()} kills"
            f" ({kills_by_point}), {self.dropped_responses} responses of the platforms dropped,"
            f" {self.seconds:.0f} s\n{self.result}"
        )


def add_conversations(platforms: LoopbackPlatforms) -> None:
    """Create 24 conversations, of every kind."""
    for _ in range(4):
        platforms.channel()
        platforms.discord_dm()
        platforms.telegram_dm()
        platforms.telegram_group()
    for _ in range(2):
        platforms.discord_thread()
        platforms.telegram_topics()


async def run_under_kills(
    service: ServiceProcess, platforms: LoopbackPlatforms, plan: LoadPlan
) -> LoadResult:
    """Ask and kill as planned, wait until nothing changes any more, and check the answers."""
    rng = random.Random(plan.seed)
    outcome = LoadResult(plan)
    began = time.monotonic()
    await _ask_in_each(service, platforms, plan)
    platforms.drop_responses(plan.dropped_responses, random.Random(rng.random()))
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(_send_questions(platforms, plan, random.Random(rng.random())))
        await _kill(service, outcome, random.Random(rng.random()))
        await service.start_with_crash_point("never", 1, plan.build)
        await asking
    await wait_until_settled(platforms, plan.give_up_seconds)
    assert await service.stop() == 0, "the service did not stop cleanly"
    outcome.seconds = time.monotonic() - began
    outcome.dropped_responses = platforms.dropped_responses()
    outcome.result = check_transcripts(platforms.messages())
    return outcome


async def _ask_in_each(
    service: ServiceProcess, platforms: LoopbackPlatforms, plan: LoadPlan
) -> None:
    """Let the bot answer in every conversation once.

    Discord does not report messages of a new private chat to a bot that was down, and messages
    before the first start are not answered.
    """
    await service.start_and_wait()
    for number, conversation in enumerate(platforms.conversations.values()):
        conversation.ask(f"f{number:04x}")
    await wait_until_settled(platforms, plan.give_up_seconds)
    assert await service.stop() == 0, "the service did not stop cleanly"


async def _send_questions(platforms: LoopbackPlatforms, plan: LoadPlan, rng: random.Random) -> None:
    """Ask in random conversations, some questions in a row, with other messages in between."""
    conversations = list(platforms.conversations.values())
    for number in range(plan.questions):
        conversation = rng.choice(conversations)
        conversation.ask(f"{number:04x}", _words(rng), rng.randrange(2))
        if conversation.mention and rng.random() < 0.2:
            conversation.say("not meant for you", rng.randrange(2))
        if rng.random() < 0.7:  # the rest follow at once
            await asyncio.sleep(rng.expovariate(plan.questions_a_second * 0.7))


def _words(rng: random.Random) -> int:
    return rng.choice(_LONG_ANSWERS) if rng.random() < 0.08 else rng.randint(1, 40)


async def _kill(service: ServiceProcess, outcome: LoadResult, rng: random.Random) -> None:
    """Start it until it was killed as often as planned, at every point in turn."""
    plan = outcome.plan
    order: list[str] = []
    while outcome.kills_by_point.total() < plan.kills:
        order = order or rng.sample(plan.points, len(plan.points))
        point = order.pop()
        crash = point if point in CRASH_POINTS else "never"
        await service.start_with_crash_point(crash, _count(point, rng), plan.build)
        wait_seconds = plan.reach_seconds
        if point == _RANDOM:
            with suppress(TimeoutError):
                await service.wait_until_ready()
            wait_seconds = rng.uniform(0.2, 2.5)
        elif point == _STOPPED:
            wait_seconds = rng.uniform(0.2, 4)  # it may still be starting
        if not await service.exits_within(wait_seconds):
            point = await _end(service, point)
        outcome.kills_by_point[point] += 1


async def _end(service: ServiceProcess, point: str) -> str:
    """Stop or kill it; returns the name to count that by."""
    if point == _STOPPED:
        assert await service.stop() in {0, -signal.SIGTERM}
        return _STOPPED
    await service.kill()
    return _RANDOM


def _count(point: str, rng: random.Random) -> int:
    """Return at which pass of a point the bot is killed."""
    return 1 if point in _RARE else rng.randint(1, 10)


async def wait_until_settled(platforms: LoopbackPlatforms, seconds: float) -> None:
    """Wait until every answer is right or nothing changed for this long, and 2 s more."""
    before, changed_at = None, time.monotonic()
    while time.monotonic() < changed_at + seconds:
        messages = list(platforms.messages())
        if check_transcripts(messages).is_clean:
            break
        if messages != before:
            before, changed_at = messages, time.monotonic()
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)  # a repeated answer comes late
