"""Kill the bot repeatedly while questions are sent, then let it finish and check the answers."""

import asyncio
import contextlib
import itertools
import math
import random
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.support.changed_minds import ChangedMinds
from tests.support.chats import Platforms
from tests.support.crash_points import CRASH_POINTS
from tests.support.service_process import Service
from tests.support.transcripts import ANSWER_END, CheckResult, PeoplesChanges, check_transcripts
from tests.valkey import find_valkey, frozen_valkey
from tests.waiting import PATIENCE_SECONDS

Disturbance: TypeAlias = Callable[[random.Random], Coroutine[None, None, None]]

_RANDOM = "random"  # killed from outside, at any moment
_STOPPED = "stopped"  # stopped by a signal, at any moment
_PAUSED = "paused"  # stands still for a while, goes on, and is killed
_OTHER_ENDS = (_RANDOM, _STOPPED, _PAUSED)
_RARE = {"after_open", "before_again", "between_parts", "during_reconcile"}
"""Crash points that few messages reach."""
# What a worker, a sender or a holder of a role logs when it does not write because it was too late.
_STALE_WRITE = re.compile(r"\] (claim_lost|sender_lost_lane|send_deadline_passed|role_lost) ")
_VALKEY_SECONDS = 5.0
_LONG_ANSWERS = (700, 1300)  # words: two and three messages on Discord


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The planned questions, kills, and other disturbances, and the seed of a run."""

    seed: int
    questions: int
    questions_a_second: float
    kills: int = 0
    pauses: int = 0  # by SIGSTOP, after the kills, of processes that go on with what they did
    edits: float = 0.0  # for each question
    presses: float = 0.0  # of buttons, for each question
    dropped_responses: float = 0.05  # the share of sends that is cut after the platform accepted
    points: tuple[str, ...] = (*_OTHER_ENDS, *(one for one in CRASH_POINTS if one != "never"))
    build: str = "right"
    uptime_seconds: tuple[float, float] = (0.2, 2.5)  # of a process that is killed at random
    pause_seconds: tuple[float, float] = (1.0, 25.0)  # short ones are more frequent
    reach_seconds: float = 3.0  # for a crash point to be reached
    max_passes: int = 10  # of a crash point until the kill
    clock_seconds: float = 0.0  # each start of a process gets a clock so far ahead or behind
    max_unanswered: int = 300  # of twice as many; above, a question a second: the machine is slow
    give_up_seconds: float = 100.0  # without any change after the last kill; groups wait a minute
    repeated: tuple[str, ...] = ()  # words of faults of a wrong build, which are waited for


@dataclass(slots=True)
class AnswerTimes:
    """The times of questions, of visible answers, and of kills."""

    asked: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    kills: list[float] = field(default_factory=list)

    async def watch(self, platforms: Platforms) -> None:
        """Record the times of answers in the bot's API calls until cancelled."""
        to_monotonic = time.monotonic() - time.time()
        while True:
            for at, text in platforms.new_texts():
                if end := ANSWER_END.search(text):
                    self.answered.setdefault(end["name"], at + to_monotonic)
            await asyncio.sleep(0.25)

    def count_unanswered(self, newest: int) -> int:
        """Count the unanswered among the newest questions; gathered questions have one answer."""
        names = itertools.islice(reversed(self.asked), newest)
        return sum(name not in self.answered for name in names)

    def latencies(self, since: float, until: float) -> list[float]:
        """Return the latencies of answers to questions within a time span."""
        return [
            answered - self.asked[name]
            for name, answered in self.answered.items()
            if name in self.asked and since <= self.asked[name] < until
        ]

    def report(self) -> str:
        """Describe the latencies of all answers, and of answers interrupted by kills."""
        latencies, recoveries = [], []
        for name, answered in self.answered.items():
            asked = self.asked.get(name, answered)
            latencies.append(answered - asked)
            if survived := [at for at in self.kills if asked < at < answered]:
                recoveries.append(answered - survived[-1])
        return f"answered after {spread(latencies)}; after a kill {spread(recoveries)}"


def spread(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "(too few)"
    return (
        f"p50 {percentile(seconds, 50):.1f}, p99 {percentile(seconds, 99):.1f},"
        f" most {max(seconds):.1f} s ({len(seconds)} times)"
    )


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Return a percentile of at least two values."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


@dataclass(slots=True)
class LoadResult:
    plan: LoadPlan
    kills_by_point: Counter[str] = field(default_factory=Counter)  # by crash point or other end
    questions: int = 0  # sent while it was killed
    pauses: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # stale writes, by the event in the log
    changed: Counter[str] = field(default_factory=Counter)  # edits, and presses by label
    dropped_responses: int = 0
    seconds: float = 0.0
    times: AnswerTimes = field(default_factory=AnswerTimes)
    result: CheckResult = field(default_factory=CheckResult)
    interruptions: list[str] = field(default_factory=list)  # from the logs of the services

    def report(self) -> str:
        kills = ", ".join(f"{point} {times}" for point, times in self.kills_by_point.most_common())
        return (
            f"seed {self.plan.seed}, build {self.plan.build}: {self.kills_by_point.total()} kills"
            f" ({kills}), {self.pauses} pauses, {self.dropped_responses} responses of the"
            f" platforms dropped, {self.seconds:.0f} s; {dict(self.changed)}"
            f"\n{self.times.report()}\n{self.result}"
            f"\nrefused or given up as stale: {dict(self.refused)}"
            + "".join(f"\n{line}" for line in self.interruptions)
        )


def add_conversations(platforms: Platforms) -> None:
    """Create 24 conversations of all kinds."""
    for _ in range(4):
        platforms.channel()
        platforms.discord_dm()
        platforms.telegram_dm()
        platforms.telegram_group()
    for _ in range(2):
        platforms.discord_thread()
        platforms.telegram_topics()


async def run_under_kills(
    services: Sequence[Service],
    platforms: Platforms,
    plan: LoadPlan,
    disturb: Disturbance | None = None,
    over: asyncio.Event | None = None,
) -> LoadResult:
    """Send questions and kill services as planned; return the result.

    `disturb` runs meanwhile, and questions continue at least until `over` is set.
    """
    rng = random.Random(plan.seed)
    outcome = LoadResult(plan)
    began = time.monotonic()
    await _ask_in_each(services, platforms, plan)
    minds = ChangedMinds(platforms, random.Random(rng.random()))
    platforms.drop_responses(plan.dropped_responses, random.Random(rng.random()))
    async with asyncio.TaskGroup() as others:
        watching = others.create_task(outcome.times.watch(platforms))
        disturbing = others.create_task(disturb(random.Random(rng.random()))) if disturb else None
        rest = [random.Random(rng.random()) for _ in services]
        asking_rng = random.Random(rng.random())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send_questions(platforms, outcome, minds, asking_rng, over))
            for service, its_rng in zip(services, rest, strict=True):
                tasks.create_task(_kill_until_enough(service, outcome, its_rng))
        if disturbing is not None:
            disturbing.cancel()
        settled = partial(wait_until_settled, platforms, plan.give_up_seconds, minds.changes)
        await settled(repeated=plan.repeated)
        if plan.edits or plan.presses:
            await minds.change_everywhere()
            await settled(repeated=plan.repeated)
        watching.cancel()
    await _stop_all(services)
    outcome.seconds = time.monotonic() - began
    outcome.dropped_responses = platforms.dropped_responses()
    outcome.changed = minds.counts
    messages = list(platforms.messages())
    outcome.result = check_transcripts(messages, minds.changes)
    if not outcome.result.is_clean:
        transcripts = services[0].folder.parent / "transcripts.txt"
        lines = "".join(f"{one}\n" for one in [*messages, minds.changes])
        transcripts.write_text(lines, "utf-8")
    logged = [line for one in services for line in one.log.read_text().splitlines()]
    outcome.interruptions = [line for line in logged if "answer_interrupted" in line]
    outcome.refused.update(found[1] for found in map(_STALE_WRITE.search, logged) if found)
    return outcome


async def _ask_in_each(services: Sequence[Service], platforms: Platforms, plan: LoadPlan) -> None:
    """Let the bot answer once in each chat: it must be running when Discord opens new ones."""
    for service in services:
        await service.start_and_wait()
    for number, conversation in enumerate(platforms.conversations.values()):
        conversation.ask(f"f{number:04x}")
    await wait_until_settled(platforms, plan.give_up_seconds)
    await _stop_all(services)


async def _stop_all(services: Sequence[Service]) -> None:
    for service in services:
        assert await service.stop() == 0, "the service did not stop cleanly"


async def _send_questions(
    platforms: Platforms,
    outcome: LoadResult,
    minds: ChangedMinds,
    rng: random.Random,
    over: asyncio.Event | None,
) -> None:
    """Ask in random conversations, sometimes several in a row, with other messages in between."""
    plan = outcome.plan
    conversations = list(platforms.conversations.values())
    for number in itertools.count():
        is_disturbed = outcome.kills_by_point.total() < plan.kills or outcome.pauses < plan.pauses
        is_disturbed = is_disturbed or (over is not None and not over.is_set())
        if number >= plan.questions and not is_disturbed:
            return
        if outcome.times.count_unanswered(2 * plan.max_unanswered) > plan.max_unanswered:
            await asyncio.sleep(1)
        conversation = rng.choice(conversations)
        outcome.questions += 1
        outcome.times.asked[f"{number:04x}"] = time.monotonic()
        words = rng.choice(_LONG_ANSWERS) if rng.random() < 0.08 else rng.randint(1, 40)
        minds.ask(conversation, f"{number:04x}", words, rng.randrange(2))
        if conversation.mention and rng.random() < 0.2:
            conversation.say("not meant for you", rng.randrange(2))
        if rng.random() < 0.15:  # somebody goes on in the same conversation
            await asyncio.sleep(rng.choice((0.0, 0.2, 1.0)))
            name = f"e{number:04x}"
            outcome.questions += 1
            outcome.times.asked[name] = time.monotonic()
            minds.ask(conversation, name, rng.randint(1, 40), rng.randrange(2))
        if rng.random() < plan.edits:
            minds.edit(rng.choice((conversation, rng.choice(conversations))))
        if rng.random() < plan.presses:
            await minds.press(rng.choice(conversations))
        if rng.random() < 0.7:  # the rest follow at once
            await asyncio.sleep(rng.expovariate(plan.questions_a_second * 0.7))


async def _kill_until_enough(service: Service, outcome: LoadResult, rng: random.Random) -> None:
    """Restart and kill the service as often as planned, at all crash points in turn."""
    plan = outcome.plan
    order: list[str] = []
    while outcome.kills_by_point.total() < plan.kills:
        order = order or rng.sample(plan.points, len(plan.points))
        point = order.pop()
        crash = point if point in CRASH_POINTS else "never"
        count = 1 if point in _RARE else rng.randint(1, plan.max_passes)
        await service.start_with_crash_point(crash, count, plan.build, *_clock(plan, rng))
        if not await service.exits_within(await _wait_seconds(service, point, plan, rng)):
            point = await _end(service, point)
        outcome.times.kills.append(time.monotonic())
        outcome.kills_by_point[point] += 1
    await service.start_with_crash_point("never", 1, plan.build, *_clock(plan, rng))
    # Before it is ready, SIGTERM would end it as a failure.
    await service.wait_until_ready(PATIENCE_SECONDS, may_end=True)
    while outcome.pauses < plan.pauses:
        outcome.pauses += 1
        await asyncio.sleep(rng.uniform(*plan.uptime_seconds))
        await _pause(service, plan, rng)


async def _pause(service: Service, plan: LoadPlan, rng: random.Random) -> None:
    service.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(math.exp(rng.uniform(*map(math.log, plan.pause_seconds))))
    finally:
        service.process.send_signal(signal.SIGCONT)


async def _wait_seconds(service: Service, point: str, plan: LoadPlan, rng: random.Random) -> float:
    """Wait until the process is ready, maybe pause it; return how long it may run afterward."""
    if point == _STOPPED:
        return rng.uniform(0.2, 4)  # it may still be starting
    await service.wait_until_ready(PATIENCE_SECONDS, may_end=True)
    if point in CRASH_POINTS:
        return plan.reach_seconds
    seconds = rng.uniform(*plan.uptime_seconds)
    if point == _PAUSED:
        await asyncio.sleep(seconds)
        await _pause(service, plan, rng)
    return seconds


async def _end(service: Service, point: str) -> str:
    if point == _STOPPED:
        assert await service.stop() in {0, -signal.SIGTERM}
        return _STOPPED
    await service.kill()
    return _PAUSED if point == _PAUSED else _RANDOM


def _clock(plan: LoadPlan, rng: random.Random) -> Sequence[str]:
    most = plan.clock_seconds
    return [f"--clock-ahead={rng.uniform(-most, most):.1f}"] if most else []


async def wait_until_settled(
    platforms: Platforms,
    seconds: float,
    changes: PeoplesChanges | None = None,
    *,
    early: bool = True,
    repeated: Sequence[str] = (),
) -> None:
    """Wait until all answers are right (if `early`) or nothing changes for a while."""
    before, changed_at = None, time.monotonic()
    while time.monotonic() < changed_at + seconds:
        messages = list(platforms.messages())
        # in a thread, because the platforms and the model answer in this loop
        found = await asyncio.to_thread(check_transcripts, messages, changes)
        is_found = all(any(word in one for one in found.repeated) for word in repeated)
        if early and (is_found if repeated else found.is_clean):
            break
        if messages != before:
            before, changed_at = messages, time.monotonic()
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)  # a repeated answer comes late


async def disturb_valkey(url: str, rng: random.Random) -> None:
    """Kill, freeze, or wipe this process's Valkey, which restarts, until cancelled."""
    while True:
        await asyncio.sleep(rng.uniform(4, 12))
        server = find_valkey()
        if server is None:
            continue  # it is being started
        chance = rng.random()
        if chance < 0.2:
            with contextlib.suppress(RedisError, OSError, TimeoutError):  # it is being started
                async with asyncio.timeout(_VALKEY_SECONDS), Redis.from_url(url) as valkey:
                    await valkey.flushall()
            continue
        if chance < 0.6:
            server.send_signal(signal.SIGKILL)
            continue
        with frozen_valkey():
            await asyncio.sleep(rng.uniform(1, 6))
