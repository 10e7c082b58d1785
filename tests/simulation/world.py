"""A simulated world: people who ask, processes that answer, and faults in between."""

import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from typing_extensions import override

from tests.simulation.builds import BUILDS, LATE_BUILDS
from tests.simulation.database import DatabaseServer
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.platform import FaultShares, SimulatedPlatform
from tests.simulation.process import SimulatedBus, SimulatedProcess
from tests.support.crash_points import never_set_aside
from tests.support.transcripts import CheckResult, PostedMessage, check_transcripts

_PROCESSES = 3
_CHATS = 5  # of each platform
_DAY = 86_400.0
_FAULTS = FaultShares(unreachable=0.03, limited=0.03, lost=0.08)
_UNCHANGED_SECONDS = 150.0
"""Longer than any lease, settle time, backoff, or wait of a suspect."""
_LATE_REPETITION_SECONDS = 30.0
_LATE_COPY_SECONDS = 150.0
"""Covers a late send, the search a minute later, and the time its chat may be busy."""


@dataclass(slots=True)
class WorldResult:
    """The events in a world, and the faults found by the checker."""

    seed: int
    steps: int = 0
    virtual_seconds: float = 0.0
    questions: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """The numbers of deaths, pauses, clock jumps, and lost responses."""
    check: CheckResult = field(default_factory=CheckResult)
    digest: str = ""
    """A digest of all visible messages, which is equal for equal seeds."""

    @override
    def __str__(self) -> str:
        happened = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return (
            f"seed {self.seed}: {self.steps} steps, {self.virtual_seconds:.0f} virtual seconds,"
            f" {self.questions} questions, {happened}; digest {self.digest[:12]}\n{self.check}"
        )


class World:
    """An installation and its environment, fully determined by the seed.

    After the given number of steps, questions and faults end.
    """

    def __init__(self, seed: int, steps: int, build: str = "right") -> None:
        never_set_aside()
        BUILDS[build]()
        random.seed(seed)  # what the product rolls itself
        self.result = WorldResult(seed)
        self._steps = steps
        self._is_late = build in LATE_BUILDS
        self._rng = random.Random(seed)
        self._loop = SimulatedLoop(self._fork())
        trusts_clients = build == "clients_clocks"
        self._server = DatabaseServer(self._loop, self._fork(), trusts_clients=trusts_clients)
        self._platforms = {
            name: SimulatedPlatform(name, name == "discord", self._loop, self._fork())
            for name in ("telegram", "discord")
        }
        self._bus = SimulatedBus(self._loop, self._fork())
        self._running: dict[int, SimulatedProcess] = {}
        self._is_calm = False

    def run(self) -> WorldResult:
        """Run the world, and check the visible messages."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._happen())
        result, history = self.result, self._history()
        result.steps, result.virtual_seconds = self._loop.steps, self._loop.time()
        result.counts["lost answers"] = sum(one.lost_answers for one in self._platforms.values())
        late = sum(one.accepted_late for one in self._platforms.values())
        if self._is_late:
            result.counts["sends accepted late"] = late
        result.check = check_transcripts(history)
        result.digest = hashlib.sha256(repr((history, result.steps)).encode()).hexdigest()
        return result

    def _fork(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    async def _happen(self) -> None:
        for platform in self._platforms.values():
            platform.faults = replace(_FAULTS, late=0.5 if self._is_late else 0.0)
        self._server.fault_share, self._bus.lost_share = 0.01, 0.2
        for number in range(_PROCESSES):
            self._start(number)
        rng = self._fork()
        while self._loop.steps < self._steps:
            self._ask(rng)
            if rng.random() < 0.003 and not self._is_late:
                await self._long_outage(rng)
            await asyncio.sleep(rng.choice((0.0, rng.expovariate(0.3))))
        await self._calm_down()

    def _ask(self, rng: random.Random) -> None:
        self.result.questions += 1
        platform = rng.choice(list(self._platforms.values()))
        words = rng.randint(60, 160) if rng.random() < 0.15 else rng.randint(1, 30)
        platform.say(str(rng.randint(1, _CHATS)), f"please T{self.result.questions:04x}:{words}")

    # --- what goes wrong ---------------------------------------------------------------------

    def _start(self, number: int) -> None:
        """Start a process, and schedule its next fault."""
        self.result.counts["starts"] += 1
        name = f"p{number}.{self.result.counts['starts']}"
        started = SimulatedProcess(
            self._loop, name, self._server, self._platforms, self._bus, self._fork()
        )
        self._running[number] = started
        if not self._is_calm:
            started.clock.seconds_ahead = self._rng.choice((0.0, 0.0, self._rng.uniform(-30, 30)))
        self._plan_harm(number)
        started.process.start(started.run())

    def _plan_harm(self, number: int) -> None:
        process = self._running[number].process
        process.steps_left = None if self._is_calm else round(self._rng.expovariate(1 / 900)) + 1
        process.on_last_step = lambda: self._harm(number)

    def _harm(self, number: int) -> None:
        """Kill or pause a process, or change its clock."""
        if self._is_calm:
            return
        one, kind = self._running[number], self._rng.random()
        kind = max(kind, 0.5) if self._is_late else kind
        if kind < 0.5:
            self._kill(number)
            self._loop.outside(self._rng.uniform(0.2, 6), lambda: self._start(number))
            return
        if kind < 0.8:
            self.result.counts["pauses"] += 1
            one.process.pause(
                self._rng.choice((self._rng.uniform(0.1, 5), self._rng.uniform(5, 45)))
            )
        else:
            self.result.counts["clock jumps"] += 1
            one.clock.seconds_ahead = self._rng.uniform(-30, 30)
        self._plan_harm(number)

    def _kill(self, number: int) -> None:
        self.result.counts["deaths"] += 1
        self._running[number].process.kill()

    async def _long_outage(self, rng: random.Random) -> None:
        """Stop all processes for more than a week, so that old rows are deleted afterward."""
        self.result.counts["outages"] += 1
        self._is_calm = True
        await asyncio.sleep(60)  # those that are to be started are
        for number in self._running:
            self._kill(number)
        await asyncio.sleep(rng.uniform(7.5, 16) * _DAY)
        self._is_calm = False
        for number in self._running:
            self._start(number)

    async def _calm_down(self) -> None:
        """End all faults; wait until everything is answered, and then for late messages."""
        self._is_calm = True
        for platform in self._platforms.values():
            platform.faults = FaultShares()
        self._server.fault_share = self._bus.lost_share = 0.0
        shown, changed_at = self._history(), self._loop.time()
        while self._loop.time() < changed_at + _UNCHANGED_SECONDS:
            if check_transcripts(shown).is_clean:
                break
            await asyncio.sleep(5)
            if (now_shown := self._history()) != shown:
                shown, changed_at = now_shown, self._loop.time()
        await asyncio.sleep(_LATE_COPY_SECONDS if self._is_late else _LATE_REPETITION_SECONDS)

    def _history(self) -> list[PostedMessage]:
        return [one for platform in self._platforms.values() for one in platform.history()]
