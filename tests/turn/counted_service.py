"""The worker and the sender with their pools, on a database that counts statements."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy.engine import make_url
from typing_extensions import override

from bot.platforms.spec import PlatformContext, PlatformSettings, PlatformSpec
from bot.ports import Platform
from bot.prompting.presets.preset import Preset
from bot.routing.presets import PresetResolver
from bot.runtime.in_process import InProcessSignals
from bot.runtime.tasks import cancel_and_wait
from bot.service.container import Container
from bot.service.options import RunOptions
from bot.service.resources import ModelResources, Resources, make_chat_settings
from bot.settings import Settings
from bot.storage.database import Database
from bot.storage.sqlite import ConnectionPool, SqliteThreadPool, UnitOfWork
from bot.storage.statements import Query, StartUnit
from bot.templates.renderer import Renderer
from tests.fakes import FakeBackend, FakeClock, FakePlatform, FakeSurface, run_ready_tasks
from tests.samples import ALICE, make_incoming
from tests.support.units import through
from tests.waiting import wait_until

T = TypeVar("T")
NORA = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
FIRST_WORDS = "These words are long enough for a first message. "


class CountingPool(ConnectionPool):
    """Counts units of work, their statements, and other reads and writes."""

    def __init__(self, pool: ConnectionPool, counts: Counter[str]) -> None:
        self.dialect = pool.dialect
        self._pool = pool
        self._counts = counts

    @override
    async def run(self, start: StartUnit[T]) -> T:
        self._counts["units"] += 1
        return await self._pool.run(lambda: through(self._count, start()))

    @override
    async def run_readonly(self, start: StartUnit[T]) -> T:
        self._counts["reads"] += 1
        return await self._pool.run_readonly(start)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        self._counts["reads"] += 1
        return await self._pool.read(unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        self._counts["writes"] += 1
        return await self._pool.commit(unit)

    @override
    async def close(self) -> None:
        await self._pool.close()

    def _count(self, query: Query) -> Query:
        self._counts["statements"] += 1
        return query


class CountingDatabase(Database):
    """A database that counts units of work."""

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(pool)
        self.counts: Counter[str] = Counter()
        self._pool = CountingPool(pool, self.counts)
        self.close = pool.close


def make(_settings: PlatformSettings | None, _context: PlatformContext) -> Platform:
    return FakePlatform("telegram", FakeSurface())


QUIET = PlatformSpec(kind="telegram", factory=f"{__name__}:make")


class RunningParts:
    """The real worker, sender and pools on a database, with a manual clock."""

    def __init__(
        self, container: Container, backend: FakeBackend, clock: FakeClock, counts: Counter[str]
    ) -> None:
        self._container = container
        self._backend = backend
        self._clock = clock
        self._counts = counts
        self._tasks: Counter[str] = Counter()
        self._intake = container._intake
        surface = container.platforms["telegram"].surface
        assert isinstance(surface, FakeSurface)
        self.surface = surface

    async def answer(self, key: str, finish: asyncio.Event | None, **fields: Any) -> None:
        """Receive a message, wait until its answer has started, then let the model `finish`."""
        sent, asked = len(self.surface.messages), len(self._backend.prompts)
        await self._intake.receive([replace(make_incoming(key=key), **fields)], {})
        if finish is not None:
            await self._until(lambda: len(self._backend.prompts) > asked)
            await self._clock.advance(0.9)
            await self._until(lambda: len(self.surface.messages) > sent)
            await self._until(lambda: self._container.lane_pool.unfinished_count == 0)
            finish.set()
        await self._until(lambda: len(self.surface.messages) > sent)
        await self._until(self._is_idle)

    async def cost(self, key: str, finish: asyncio.Event | None, **fields: Any) -> dict[str, Any]:
        """Answer a message, and return the counts."""
        await self._until(self._is_idle)
        self._counts.clear()
        self._tasks.clear()
        calls, prompts = len(self.surface.calls), len(self._backend.prompts)
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        try:
            with self._counted_timeouts():
                await self.answer(key, finish, **fields)
        finally:
            loop.set_task_factory(None)
        counts = {name: self._counts[name] for name in ("units", "statements", "reads", "writes")}
        return {
            **counts,
            "model_requests": len(self._backend.prompts) - prompts,
            "platform_requests": [call for call, _ in self.surface.calls[calls:]],
            "timeouts": self._counts["timeouts"],
            "tasks": dict(sorted(self._tasks.items())),
        }

    @contextmanager
    def _counted_timeouts(self) -> Iterator[None]:
        """Count the time-outs that modules of the service start."""

        def count(timeout: asyncio.Timeout) -> Awaitable[asyncio.Timeout]:
            caller = sys._getframe(1).f_globals["__name__"]
            self._counts["timeouts"] += caller.startswith("bot.")
            return enter(timeout)

        enter = asyncio.Timeout.__aenter__
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Timeout, "__aenter__", count)
            yield

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        self._tasks[work.__qualname__] += 1
        return asyncio.Task(work, loop=loop, **options)

    def _is_idle(self) -> bool:
        return not (
            self._container.conversation_pool.unfinished_count
            or self._container.lane_pool.unfinished_count
            or not self._container.extractor.is_idle
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        await wait_until(condition)
        await run_ready_tasks()


@asynccontextmanager
async def running_parts(
    folder: Path,
    backend: FakeBackend,
    pool: ConnectionPool | None = None,
    preset: Preset = NORA,
) -> AsyncIterator[RunningParts]:
    """Run the service on a database; by default, on a new SQLite file."""
    url = make_url(f"sqlite:///{folder / 'troupe.db'}")
    database = CountingDatabase(pool or SqliteThreadPool(url))
    counts = database.counts
    await database.migrate()
    signals = InProcessSignals()
    # as with Redis: the settings of chats are not read for every message
    chat_settings = make_chat_settings(database, signals, has_remote_signals=pool is not None)
    resolver = PresetResolver({preset.name: preset}, preset.name, chat_settings)
    async with Renderer() as renderer:
        models = ModelResources(renderer, {"p": backend})
        resources = Resources(database, {}, signals, chat_settings, resolver, models)
        clock, settings = FakeClock(), Settings(data_dir=folder, admins=frozenset({ALICE.id}))
        container = Container(settings, resources, [QUIET], pytest.fail, RunOptions(), clock)
        service = RunningParts(container, backend, clock, counts)
        pools = [asyncio.create_task(container.conversation_pool.run())]
        pools += [asyncio.create_task(container.lane_pool.run())]
        await wait_until(lambda: counts["units"] == len(pools))  # the first polls
        pools.append(asyncio.create_task(container.extractor.run()))
        try:
            yield service
        finally:
            await cancel_and_wait(pools)
            await database.close()
