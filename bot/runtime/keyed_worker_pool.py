"""Process the ready keys of a queue concurrently, each key by one worker at a time.

Conversations and outbox lanes are both such queues. The coordinator says which keys are ready; SQL
is polled instead while the coordinator is away, and regularly for wake-ups that were lost.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import structlog

from bot.errors import CoordinatorUnavailable, StoreError
from bot.ports import Clock, Coordinator
from bot.runtime.tasks import cancel_and_wait
from bot.telemetry.metrics import KEYS_IN_PROGRESS

_log = structlog.get_logger(__name__)
_LEASE_SECONDS = 15.0
_WAIT_SECONDS = 1.0
_RECOVER_SECONDS = 2.0


class KeyedWorkerPool:
    """Claim keys of one queue and process them.

    Args:
        pending_keys: reads from SQL at most so many keys that have work.
        process: does the work of a key; it may be called for a key that has none. It records its
            own failures: what it raises is only logged.
        owner: this process, as the holder of the leases.
        max_concurrent: how many keys are processed at once.
    """

    def __init__(
        self,
        queue: str,
        *,
        coordinator: Coordinator,
        pending_keys: Callable[[int], Awaitable[Sequence[str]]],
        process: Callable[[str], Awaitable[None]],
        owner: str,
        max_concurrent: int,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._coordinator = coordinator
        self._pending_keys = pending_keys
        self._process = process
        self._owner = owner
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        KEYS_IN_PROGRESS.labels(queue).set_function(lambda: len(self._tasks))
        self._claimed_again: set[str] = set()  # while they were still in progress
        self._slot_freed = asyncio.Event()
        self.stopping = False

    @property
    def busy_count(self) -> int:
        return len(self._tasks)

    async def is_idle(self) -> bool:
        """Return whether no key has work, here or in SQL."""
        return not await self._pending_keys(1) and not self._tasks

    async def wake(self, keys: Sequence[str]) -> None:
        """Mark keys as ready; while the coordinator is away, polling SQL finds them."""
        with contextlib.suppress(CoordinatorUnavailable):
            await self._coordinator.notify(self._queue, keys)

    async def run(self) -> None:
        """Claim and start keys until cancelled; keys in progress then continue until `drain`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claim_ready(), name=f"{self._queue}: claim")
            group.create_task(self._renew_leases(), name=f"{self._queue}: renew")
            group.create_task(self._recover_lost(), name=f"{self._queue}: recover")

    async def drain(self, seconds: float) -> None:
        """Wait for keys in progress to end; cancel those that take longer."""
        self.stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
        await cancel_and_wait(self._tasks.values())

    async def _claim_ready(self) -> None:
        while not self.stopping:
            free = self._max_concurrent - len(self._tasks)
            if free <= 0:
                self._slot_freed.clear()
                await self._slot_freed.wait()
                continue
            try:
                keys = await self._coordinator.claim(
                    self._queue,
                    self._owner,
                    limit=free,
                    lease_seconds=_LEASE_SECONDS,
                    wait_seconds=_WAIT_SECONDS,
                )
            except CoordinatorUnavailable:
                await self._clock.sleep(_WAIT_SECONDS)
                await self._start_from_sql(free)
            else:
                for key in keys:
                    self._start(key)
                if self.stopping:
                    await self._release(keys)

    async def _start_from_sql(self, limit: int) -> None:
        try:
            for key in await self._pending_keys(limit):
                self._start(key)
        except StoreError as error:
            _log.warning("store_failed", queue=self._queue, reason=str(error))

    async def _recover_lost(self) -> None:
        """Mark as ready what the coordinator lost: wake-ups, expired leases, a wiped server."""
        while True:
            try:
                await self._coordinator.release_expired(self._queue)
                keys = [key for key in await self._pending_keys(1000) if key not in self._tasks]
                await self._coordinator.notify(self._queue, keys)
            except (CoordinatorUnavailable, StoreError) as error:
                _log.warning("recovery_failed", queue=self._queue, reason=str(error))
            await self._clock.sleep(_RECOVER_SECONDS)

    async def _renew_leases(self) -> None:
        while True:
            await self._clock.sleep(_LEASE_SECONDS / 3)
            try:
                await self._coordinator.renew(
                    self._queue, list(self._tasks), self._owner, _LEASE_SECONDS
                )
            except CoordinatorUnavailable:
                continue  # the leases and epochs in SQL still keep others away

    def _start(self, key: str) -> None:
        if self.stopping:
            return
        if key in self._tasks:  # claimed again between the end of the task and `_on_done`
            self._claimed_again.add(key)
            return
        task = asyncio.create_task(self._process_one(key), name=f"{self._queue}: {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._on_done(key, done))

    def _on_done(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        self._slot_freed.set()
        if key in self._claimed_again:
            self._claimed_again.remove(key)
            self._start(key)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work_failed", queue=self._queue, key=key, exc_info=error)

    async def _process_one(self, key: str) -> None:
        try:
            await self._process(key)
        except StoreError as error:
            _log.warning("work_postponed", queue=self._queue, key=key, reason=str(error))
        except asyncio.CancelledError:
            await self._release([key])
            raise
        with contextlib.suppress(CoordinatorUnavailable):
            await self._coordinator.release(self._queue, key, self._owner)

    async def _release(self, keys: Sequence[str]) -> None:
        """Hand keys that this stopping process claimed to the others at once."""
        with contextlib.suppress(CoordinatorUnavailable):
            for key in keys:
                await self._coordinator.release(self._queue, key, self._owner)
            await self._coordinator.notify(self._queue, keys)
