"""Process a database queue's ready keys concurrently, each key by one worker at a time.

Keys woken together are claimed together. The database is also polled, because wake-ups may be lost.
"""

import asyncio
import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

import structlog

from bot.errors import StoreError
from bot.ports import Clock, Signals
from bot.runtime.tasks import cancel_and_wait
from bot.telemetry.metrics import KEYS_IN_PROGRESS

Item = TypeVar("Item")

_log = structlog.get_logger(__name__)
_POLL_SECONDS = 2.0
_POLL_WITHOUT_SIGNALS_SECONDS = 0.5  # a message may take 3 s more then (docs/delivery.md)
_MAX_KEYS_POLLED = 1000
_LEAVE_SECONDS = 0.1  # many times what a process takes to claim the keys it woke
_MAX_CLAIMED = 32  # together: what they do before they first wait is done in one go
_MAX_URGENT = 10_000


def urgent_topic(queue: str) -> str:
    """Return the topic of signals that name a queue's urgent keys, before they are woken."""
    return f"urgent {queue}"


def wake_keys(
    signals: Signals, queue: str, keys: Sequence[str], *, is_urgent: bool = False
) -> None:
    """Tell all processes that keys of a queue are ready; cheap, and never waits."""
    if is_urgent:
        signals.publish(urgent_topic(queue), keys)
    signals.publish(queue, keys)


def _hold_nothing(_key: str) -> float:
    return 0.0


@dataclass(eq=False, repr=False)
class KeyedWorkerPool(Generic[Item]):
    queue: str
    """Names the queue in signals, metrics and logs."""
    _: KW_ONLY
    signals: Signals
    ready_keys: Callable[[int], Awaitable[Sequence[str]]]
    """Reads up to this many ready, unclaimed keys from SQL."""
    claim: Callable[[Sequence[str]], Awaitable[Mapping[str, Item]]]
    """Claims the ready ones among some keys; returns the item of each."""
    process: Callable[[Item], Awaitable[None]]
    """Processes an item. It records its own failures: exceptions are only logged."""
    max_concurrent: int
    """How many keys are processed at once."""
    clock: Clock
    hold: Callable[[str], float] = _hold_nothing
    """Returns the seconds for which a key is not claimed, then asked again; no urgent key is."""
    wakes_keys: bool = False
    """Whether this process wakes keys itself, and so do the others. Each leaves keys woken by
    another to it for a moment, so that not all try to claim every key."""
    urgent_beside: int = 0
    """How many urgent keys may be processed in addition."""

    def __post_init__(self) -> None:
        self._held: dict[str, None] = {}  # woken keys that are not to be claimed yet, in order
        self._held_until = math.inf  # when the first of them is asked for again
        self._call_off_release: Callable[[], None] = lambda: None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._woken: dict[str, None] = {}  # in the order of their wake-ups
        self._urgent: set[str] = set()
        self._left: dict[str, None] = {}  # to the process that has woken them
        self._next_items: dict[str, Item] = {}  # claimed while the key was still in progress
        self._changed = asyncio.Event()
        self._claiming = asyncio.Lock()
        self.stopping = False
        self._is_drained = False
        KEYS_IN_PROGRESS.labels(self.queue).set_function(lambda: len(self._tasks))
        leave = self._leave_to_others if self.wakes_keys else None
        self.signals.subscribe(self.queue, self._wake_here, leave)
        if self.urgent_beside:
            self.signals.subscribe(urgent_topic(self.queue), self._note_urgent)

    @property
    def busy_count(self) -> int:
        waiting = len(self._woken) + len(self._held)
        return len(self._tasks) + waiting + self._claiming.locked()

    async def is_idle(self) -> bool:
        return not await self.ready_keys(1) and self.busy_count == 0

    def wake(self, keys: Sequence[str], *, is_urgent: bool = False) -> None:
        wake_keys(self.signals, self.queue, keys, is_urgent=is_urgent)

    def start(self, key: str, item: Item) -> None:
        """Process a claimed item, after the one in progress for its key."""
        if self._is_drained:  # another process takes over when the lease expires
            return
        if key in self._tasks:
            self._next_items[key] = item
            return
        task = asyncio.create_task(self._process_one(key, item), name=f"{self.queue}: {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._on_done(key, done))

    async def run(self) -> None:
        """Claim and start keys until cancelled; keys in progress continue until `drain`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claim_woken(), name=f"{self.queue}: claim")
            group.create_task(self._poll(), name=f"{self.queue}: poll")

    async def drain(self, seconds: float) -> None:
        """Wait for keys in progress or being claimed; cancel those that take longer."""
        self.stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async with self._claiming:
                    pass
                while self._tasks:
                    await asyncio.wait(self._tasks.values())
        self._is_drained = True
        await cancel_and_wait(self._tasks.values())

    def _note_urgent(self, keys: Sequence[str]) -> None:
        if len(self._urgent) >= _MAX_URGENT:  # of keys that nobody has woken here
            self._urgent.clear()
        self._urgent.update(keys)

    def _wake_here(self, keys: Sequence[str]) -> None:
        self._woken.update(dict.fromkeys(keys))
        self._changed.set()

    def _leave_to_others(self, keys: Sequence[str]) -> None:
        if not self._left:
            self.clock.call_later(_LEAVE_SECONDS, self._wake_left)
        self._left.update(dict.fromkeys(keys))

    def _wake_left(self) -> None:
        keys, self._left = list(self._left), {}
        self._wake_here(keys)

    async def _claim_woken(self) -> None:
        while not self.stopping:
            await self._changed.wait()
            self._changed.clear()
            keys = self._next_keys(self.max_concurrent - len(self._tasks))
            if keys and not self.stopping:
                await self._claim_and_start(keys)
                if self.hold is not _hold_nothing:
                    await asyncio.sleep(0)  # what begins may say that others are to be held
                self._notify_claimer()  # others may have taken these, and left some of the rest

    def _notify_claimer(self) -> None:
        if self._woken:
            self._changed.set()

    def _next_keys(self, free: int) -> list[str]:
        """Return the keys to claim: urgent ones first, then in wake-up order."""
        urgent: list[str] = []
        if self._urgent:
            most = min(free + self.urgent_beside, _MAX_CLAIMED)
            woken = (key for key in self._woken if key in self._urgent and key not in self._tasks)
            urgent = list(itertools.islice(woken, max(0, most)))
        others = [key for key in self._woken if key not in urgent] if urgent else self._woken
        return urgent + self._unheld_keys(others, min(free, _MAX_CLAIMED) - len(urgent))

    def _unheld_keys(self, woken: Iterable[str], most: int) -> list[str]:
        """Return the first woken keys that are not on hold; set the others aside."""
        if most <= 0:
            return []
        keys: list[str] = []
        held: dict[str, float] = {}
        for key in woken:
            if key in self._tasks:  # it stays woken: it is looked at when its task has ended
                continue
            if (seconds := self.hold(key)) > 0:
                held[key] = seconds
                continue
            keys.append(key)
            if len(keys) == most:
                break
        for key in held:
            del self._woken[key]
            self._held[key] = None
        if held:
            self._release_after(min(held.values()))
        return keys

    def _release_after(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        if until < self._held_until:
            self._call_off_release()
            self._held_until = until
            self._call_off_release = self.clock.call_later(seconds, self._release_held)

    def _release_held(self) -> None:
        self._woken = {**self._held, **self._woken}
        self._held.clear()
        self._held_until = math.inf
        self._changed.set()

    async def _claim_and_start(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._woken[key]
        self._urgent.difference_update(keys)
        async with self._claiming:
            try:
                claimed = await self.claim(keys)
            except StoreError as error:  # polling finds them again
                _log.warning("claim_failed", queue=self.queue, reason=str(error))
                return
            for key, item in claimed.items():
                self.start(key, item)

    async def _poll(self) -> None:
        """Poll for ready keys, because a wake-up may be lost or a key's holder dead."""
        while True:
            try:
                keys = await self.ready_keys(_MAX_KEYS_POLLED)
            except StoreError as error:
                _log.warning("poll_failed", queue=self.queue, reason=str(error))
            else:
                self._wake_here([key for key in keys if key not in self._tasks])
            has_signals = self.signals.reaches_others
            await self.clock.sleep(_POLL_SECONDS if has_signals else _POLL_WITHOUT_SIGNALS_SECONDS)

    def _on_done(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        self._notify_claimer()
        if key in self._next_items:
            self.start(key, self._next_items.pop(key))
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work_failed", queue=self.queue, key=key, exc_info=error)

    async def _process_one(self, key: str, item: Item) -> None:
        try:
            await self.process(item)
        except StoreError as error:
            _log.warning("work_postponed", queue=self.queue, key=key, reason=str(error))
