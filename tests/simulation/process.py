"""One process of a simulated installation: the product's container with simulated parts.

It has all roles. Its clock, signals, database connections, model, and platforms are simulated.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from typing_extensions import override

from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent, Prompt
from bot.delivery.pacing import DeliverySettings
from bot.errors import StoreError
from bot.platforms.spec import PlatformSpec
from bot.ports import Clock, Intake, Platform, Surface
from bot.prompting.presets.preset import Preset
from bot.routing.presets import PresetResolver
from bot.runtime.in_process import InProcessSignals
from bot.service.container import Container
from bot.service.exclusive_role import ExclusiveReceiver
from bot.service.jobs import Job, delete_expired_once, repeat
from bot.service.options import RunOptions
from bot.service.resources import ModelResources, Resources
from bot.settings import Settings
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.templates.renderer import Renderer
from bot.turn.limits.rate_limits import LimitSettings
from tests.fakes import FakeBackend, FakePlatform
from tests.simulation.database import DatabaseServer, SimulatedConnections
from tests.simulation.event_loop import LoopProcess, SimulatedLoop
from tests.simulation.platform import SETTLE_SECONDS, SimulatedPlatform
from tests.support.model_server import unanswered_questions
from tests.support.transcripts import expected_answer

_RETRY_SECONDS = 1.0
_JANITOR_SECONDS = 300.0
_SETTINGS = Settings(
    data_dir=Path("nowhere"),
    delivery=DeliverySettings(settle_seconds=SETTLE_SECONDS),
    limits=LimitSettings(answers_per_person=0, answers_per_channel=0, waiting_in_conversation=0),
)
_PRESET = Preset.model_validate(
    {"name": "tester", "provider": "test", "model": "m", "busy": {"at_most": 100}}
)


class SimulatedClock(Clock):
    """The clocks of one machine, whose time of day can be wrong and jump."""

    def __init__(self, loop: SimulatedLoop, server: DatabaseServer) -> None:
        self.seconds_ahead = 0.0
        self._loop = loop
        self._server = server

    @override
    def now(self) -> float:
        return self._server.now() + self.seconds_ahead

    @override
    def monotonic(self) -> float:
        return self._loop.time()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        return self._loop.call_later(seconds, callback).cancel


class SimulatedBus:
    """Carries signals between processes; each signal may be late or lost."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self.lost_share = 0.0
        self.members: list[tuple[LoopProcess, InProcessSignals]] = []
        self._loop = loop
        self._rng = rng

    def publish(self, sender: LoopProcess, topic: str, keys: Sequence[str]) -> None:
        """Send signals to the other processes."""
        self.members = [one for one in self.members if not one[0].is_dead]
        for process, signals in self.members:
            if process is not sender and self._rng.random() >= self.lost_share:
                delay = self._rng.uniform(0, 0.05)
                self._loop.within(process, delay, lambda to=signals: to.receive(topic, keys))  # type: ignore[misc]


class SimulatedSignals(InProcessSignals):
    """The signals of one process: immediate in this process, later in others."""

    def __init__(self, process: LoopProcess, bus: SimulatedBus) -> None:
        super().__init__()
        self._process = process
        self._bus = bus
        bus.members.append((process, self))

    @override
    def publish(self, topic: str, keys: Sequence[str]) -> None:
        super().publish(topic, keys)
        self._bus.publish(self._process, topic, keys)


class SimulatedModel(FakeBackend):
    """A model that streams the answers expected by the checker."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        asked = [{"role": one.role, "content": one.content} for one in prompt.messages]
        answer = " ".join(map(expected_answer, unanswered_questions(asked)))
        pieces = self._rng.randint(1, 5)
        size = -(-len(answer) // pieces)
        longest = 8.0 if self._rng.random() < 0.1 else 0.8
        for start in range(0, len(answer), size):
            await asyncio.sleep(self._rng.uniform(0.01, longest))
            yield Delta(answer[start : start + size])
        yield Finish(FinishReason.STOP)


class PlatformOfProcess(FakePlatform):
    """One process's connection to a platform."""

    def __init__(self, servers: SimulatedPlatform, clock: Clock) -> None:
        super().__init__(servers.name, servers)
        self._servers = servers
        self._clock = clock

    @override
    async def run(self, intake: Intake) -> None:
        while True:
            try:
                await self._servers.receive(intake)
            except StoreError:  # nothing was acknowledged
                await self._clock.sleep(_RETRY_SECONDS)


class SimulatedContainer(Container):
    """The components of one of several processes on the same database."""

    def __init__(
        self,
        resources: Resources,
        name: str,
        servers: Mapping[str, SimulatedPlatform],
        clock: Clock,
    ) -> None:
        specs = [PlatformSpec(kind=kind, factory="") for kind in servers]
        super().__init__(_SETTINGS, resources, specs, print, RunOptions(), clock, name)
        self._servers = servers

    @property
    @override
    def runs_alone(self) -> bool:
        return False  # although it is SQLite

    @cached_property
    @override
    def platforms(self) -> Mapping[str, Platform]:
        return {
            name: PlatformOfProcess(servers, self.clock) for name, servers in self._servers.items()
        }

    @override
    def rate_limited_surfaces(self, *, is_best_effort: bool) -> dict[str, Surface]:
        return dict(self._servers)  # what they take is not limited

    @override
    async def delete_expired_rows(self) -> None:
        async def delete() -> None:
            await delete_expired_once(self.database, self.settings, self.clock)

        janitor = self.exclusive_role("delete expired rows")
        await janitor.run(lambda: repeat(delete, self.clock, _JANITOR_SECONDS))

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            for receiver in self.receivers.values():
                assert isinstance(receiver, ExclusiveReceiver)
                jobs.create_task(receiver.run(self._intake))
            for part in (self._worker_jobs(), self._sender_jobs()):
                for job in part.jobs:
                    jobs.create_task(_run(job))


async def _run(job: Job) -> None:
    await job()


class SimulatedProcess:
    """A process with all roles."""

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        server: DatabaseServer,
        platforms: Mapping[str, SimulatedPlatform],
        bus: SimulatedBus,
        rng: random.Random,
    ) -> None:
        self.process = loop.new_process(name)
        self.clock = SimulatedClock(loop, server)
        database = Database(SimulatedConnections(server))
        signals = SimulatedSignals(self.process, bus)
        settings = SqlChatSettings(database, self.clock)
        resolver = PresetResolver({"tester": _PRESET}, "tester", settings, {"tester": 1})
        models = ModelResources(Renderer(), {"test": SimulatedModel(rng)})
        resources = Resources(database, {}, signals, settings, resolver, models)
        self.run = SimulatedContainer(resources, name, platforms, self.clock).run
