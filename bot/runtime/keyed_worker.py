"""Work through the ready keys of a queue: many at once, each by one at a time.

The conversations and the lanes of the outbox are worked off in the same way: the coordinator says
which keys are ready; when it is away, and as a janitor now and then, SQL is asked instead.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import structlog

from bot.errors import CoordinatorUnavailable, StoreError
from bot.ports import Clock, Coordinator
from bot.runtime.tasks import cancelled
from bot.telemetry.metrics import WORKING

_log = structlog.get_logger(__name__)
_LEASE_SECONDS = 15.0
_WAIT_SECONDS = 1.0
_JANITOR_SECONDS = 2.0


class Desk:
    """One process's share of a queue.

    `waiting(limit)` reads from SQL which keys have work; `work(key)` does it and may be called for
    a key without any. It must leave its own trace of failure: what it raises is logged only.
    """

    def __init__(
        self,
        queue: str,
        *,
        coordinator: Coordinator,
        waiting: Callable[[int], Awaitable[Sequence[str]]],
        work: Callable[[str], Awaitable[None]],
        owner: str,
        most_at_once: int,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._coordinator = coordinator
        self._waiting = waiting
        self._work = work
        self._owner = owner
        self._most_at_once = most_at_once
        self._clock = clock
        self._busy: dict[str, asyncio.Task[None]] = {}
        WORKING.labels(queue).set_function(lambda: len(self._busy))
        self._again: set[str] = set()  # busy keys that were claimed once more
        self._freed = asyncio.Event()
        self.stopping = False

    @property
    def busy(self) -> int:
        return len(self._busy)

    async def wake(self, keys: Sequence[str]) -> None:
        """Make keys ready; while the coordinator is away, they are found in SQL."""
        with contextlib.suppress(CoordinatorUnavailable):
            await self._coordinator.notify(self._queue, keys)

    async def run(self) -> None:
        """Work until cancelled; what is under work then goes on until `drain`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take_ready(), name=f"{self._queue}: take")
            group.create_task(self._renew(), name=f"{self._queue}: renew")
            group.create_task(self._janitor(), name=f"{self._queue}: janitor")

    async def drain(self, seconds: float) -> None:
        """Let what is under work come to an end; cancel what takes longer."""
        self.stopping = True
        if self._busy:
            await asyncio.wait(self._busy.values(), timeout=seconds)
        await cancelled(self._busy.values())

    async def _take_ready(self) -> None:
        while not self.stopping:
            room = self._most_at_once - len(self._busy)
            if room <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            try:
                keys = await self._coordinator.claim(
                    self._queue,
                    self._owner,
                    limit=room,
                    lease_seconds=_LEASE_SECONDS,
                    wait_seconds=_WAIT_SECONDS,
                )
            except CoordinatorUnavailable:
                await self._clock.sleep(_WAIT_SECONDS)
                await self._take_from_sql(room)
            else:
                for key in keys:
                    self._begin(key)
                if self.stopping:
                    await self._give_back(keys)

    async def _take_from_sql(self, room: int) -> None:
        try:
            for key in await self._waiting(room):
                self._begin(key)
        except StoreError as error:
            _log.warning("store_failed", queue=self._queue, reason=str(error))

    async def _janitor(self) -> None:
        """Make ready what the coordinator forgot: lost wakes, expired leases, a wiped server."""
        while True:
            try:
                await self._coordinator.release_expired(self._queue)
                keys = [key for key in await self._waiting(1000) if key not in self._busy]
                await self._coordinator.notify(self._queue, keys)
            except (CoordinatorUnavailable, StoreError) as error:
                _log.warning("janitor_missed", queue=self._queue, reason=str(error))
            await self._clock.sleep(_JANITOR_SECONDS)

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(_LEASE_SECONDS / 3)
            try:
                await self._coordinator.renew(
                    self._queue, list(self._busy), self._owner, _LEASE_SECONDS
                )
            except CoordinatorUnavailable:
                continue  # leases in SQL, and the rows themselves, still keep others away

    def _begin(self, key: str) -> None:
        if self.stopping:
            return
        if key in self._busy:  # it woke again in the moment between `done` and `_free`
            self._again.add(key)
            return
        task = asyncio.create_task(self._one(key), name=f"{self._queue}: {key}")
        self._busy[key] = task
        task.add_done_callback(lambda done: self._free(key, done))

    def _free(self, key: str, task: asyncio.Task[None]) -> None:
        del self._busy[key]
        self._freed.set()
        if key in self._again:
            self._again.remove(key)
            self._begin(key)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work_failed", queue=self._queue, key=key, exc_info=error)

    async def _one(self, key: str) -> None:
        try:
            await self._work(key)
        except StoreError as error:
            _log.warning("work_postponed", queue=self._queue, key=key, reason=str(error))
        except asyncio.CancelledError:
            await self._give_back([key])
            raise
        with contextlib.suppress(CoordinatorUnavailable):
            await self._coordinator.release(self._queue, key, self._owner)

    async def _give_back(self, keys: Sequence[str]) -> None:
        """Let others have at once what we claimed and do not work on: we are stopping."""
        with contextlib.suppress(CoordinatorUnavailable):
            for key in keys:
                await self._coordinator.release(self._queue, key, self._owner)
            await self._coordinator.notify(self._queue, keys)
