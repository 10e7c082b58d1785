"""Process the ready keys of a database queue concurrently, but only one item per key at a time.

Keys that are woken together are claimed in one query. The database is also polled, because wake-up
signals may be lost.
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
from bot.telemetry.metrics import ITEMS_IN_PROGRESS

Item = TypeVar("Item")

_log = structlog.get_logger(__name__)
_POLL_SECONDS = 2.0
_POLL_WITHOUT_SIGNALS_SECONDS = 0.5  # so that a message waits at most 3 s (docs/delivery.md)
_MAX_POLLED_KEYS = 1000
_SECONDS_FOR_OTHERS_TO_CLAIM = 0.1  # time for another process to claim the keys that it woke
_MAX_CLAIMED_KEYS = 32  # per query; starting more at once would block the event loop
_MAX_URGENT_KEYS = 10_000


def urgent_topic(queue: str) -> str:
    """Return the topic of the signals that mark keys of a queue as urgent."""
    return f"urgent {queue}"


def wake_keys(
    signals: Signals, queue: str, keys: Sequence[str], *, is_urgent: bool = False
) -> None:
    """Signal to all processes that keys of a queue are ready, without waiting."""
    if is_urgent:
        signals.publish(urgent_topic(queue), keys)
    signals.publish(queue, keys)


def _zero_seconds_on_hold(_key: str) -> float:
    return 0.0


@dataclass(eq=False, repr=False)
class KeyedWorkerPool(Generic[Item]):
    queue: str
    """The name of the queue in signals, metrics and logs."""
    _: KW_ONLY
    signals: Signals
    find_ready_keys: Callable[[int], Awaitable[Sequence[str]]]
    """Returns ready, unclaimed keys from the database; the argument is their maximum number."""
    claim: Callable[[Sequence[str]], Awaitable[Mapping[str, Item]]]
    """Claims those keys that are ready, and returns the item to process for each of them."""
    process: Callable[[Item], Awaitable[None]]
    """Processes an item and records its failures; the pool only logs exceptions."""
    max_concurrent: int
    """The number of keys that may be processed at the same time."""
    clock: Clock
    seconds_on_hold: Callable[[str], float] = _zero_seconds_on_hold
    """Returns the seconds to wait before a key may be claimed, or 0; ignored for urgent keys."""
    all_processes_wake_keys: bool = False
    """Whether every process wakes keys. If so, a process waits a moment before it claims keys that
    another process woke, so that not all processes compete for them."""
    extra_urgent_slots: int = 0
    """The number of urgent keys that may be processed beyond `max_concurrent`."""

    def __post_init__(self) -> None:
        self._held_keys: dict[str, None] = {}  # woken keys on hold, in the order of their wake-ups
        self._next_release_at = math.inf  # when to call `seconds_on_hold` again for all of them
        self._cancel_release_timer: Callable[[], None] = lambda: None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._woken_keys: dict[str, None] = {}  # in the order of their wake-ups
        self._urgent_keys: set[str] = set()
        self._delayed_keys: dict[str, None] = {}  # keys left for the process that woke them
        self._next_items: dict[str, Item] = {}  # items claimed while their key is in progress
        self._keys_changed_event = asyncio.Event()
        self._claim_lock = asyncio.Lock()
        self.is_stopping = False
        self._is_drained = False
        ITEMS_IN_PROGRESS.labels(self.queue).set_function(lambda: len(self._tasks))
        remote_handler = self._add_remotely_woken_keys if self.all_processes_wake_keys else None
        self.signals.subscribe(self.queue, self._add_woken_keys, remote_handler)
        if self.extra_urgent_slots:
            self.signals.subscribe(urgent_topic(self.queue), self._mark_urgent)

    @property
    def unfinished_count(self) -> int:
        waiting_count = len(self._woken_keys) + len(self._held_keys)
        return len(self._tasks) + waiting_count + self._claim_lock.locked()

    async def is_idle(self) -> bool:
        return not await self.find_ready_keys(1) and self.unfinished_count == 0

    def wake(self, keys: Sequence[str], *, is_urgent: bool = False) -> None:
        wake_keys(self.signals, self.queue, keys, is_urgent=is_urgent)

    def start(self, key: str, item: Item) -> None:
        """Start processing a claimed item, or queue it until the key's current item is done."""
        if self._is_drained:  # when the lease expires, another process claims it
            return
        if key in self._tasks:
            self._next_items[key] = item
            return
        task = asyncio.create_task(self._process_item(key, item), name=f"{self.queue}: {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._on_task_done(key, done))

    async def run(self) -> None:
        """Claim and process ready keys until cancelled; afterwards, `drain` finishes open work."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claim_woken_keys(), name=f"{self.queue}: claim")
            group.create_task(self._poll(), name=f"{self.queue}: poll")

    async def drain(self, seconds: float) -> None:
        """Stop claiming, wait for keys in progress, and cancel those that take too long."""
        self.is_stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async with self._claim_lock:
                    pass
                while self._tasks:
                    await asyncio.wait(self._tasks.values())
        self._is_drained = True
        await cancel_and_wait(self._tasks.values())

    def _mark_urgent(self, keys: Sequence[str]) -> None:
        if len(self._urgent_keys) >= _MAX_URGENT_KEYS:  # of keys that were never woken here
            self._urgent_keys.clear()
        self._urgent_keys.update(keys)

    def _add_woken_keys(self, keys: Sequence[str]) -> None:
        self._woken_keys.update(dict.fromkeys(keys))
        self._keys_changed_event.set()

    def _add_remotely_woken_keys(self, keys: Sequence[str]) -> None:
        if not self._delayed_keys:
            self.clock.call_later(_SECONDS_FOR_OTHERS_TO_CLAIM, self._wake_delayed_keys)
        self._delayed_keys.update(dict.fromkeys(keys))

    def _wake_delayed_keys(self) -> None:
        keys, self._delayed_keys = list(self._delayed_keys), {}
        self._add_woken_keys(keys)

    async def _claim_woken_keys(self) -> None:
        while not self.is_stopping:
            await self._keys_changed_event.wait()
            self._keys_changed_event.clear()
            keys = self._select_next_keys(self.max_concurrent - len(self._tasks))
            if keys and not self.is_stopping:
                await self._claim_and_start(keys)
                if self.seconds_on_hold is not _zero_seconds_on_hold:
                    await asyncio.sleep(0)  # starting an item may put other keys on hold
                self._notify_claimer()  # other processes may have claimed these keys first

    def _notify_claimer(self) -> None:
        if self._woken_keys:
            self._keys_changed_event.set()

    def _select_next_keys(self, free_slots: int) -> list[str]:
        """Return the keys to claim next: urgent keys, then others, each in the order woken."""
        urgent_keys, keys = list[str](), self._woken_keys
        if self._urgent_keys:
            limit = min(free_slots + self.extra_urgent_slots, _MAX_CLAIMED_KEYS)
            next_keys = (key for key in keys if key in self._urgent_keys and key not in self._tasks)
            urgent_keys = list(itertools.islice(next_keys, max(0, limit)))
        other_keys = [key for key in keys if key not in urgent_keys] if urgent_keys else keys
        return urgent_keys + self._select_keys_not_on_hold(
            other_keys, min(free_slots, _MAX_CLAIMED_KEYS) - len(urgent_keys)
        )

    def _select_keys_not_on_hold(self, woken_keys: Iterable[str], limit: int) -> list[str]:
        """Return up to `limit` woken keys not on hold; move keys on hold to `_held_keys`."""
        if limit <= 0:
            return []
        selected_keys: list[str] = []
        hold_seconds_by_key: dict[str, float] = {}
        for key in woken_keys:
            if key in self._tasks:  # the key stays woken until its task ends
                continue
            if (seconds := self.seconds_on_hold(key)) > 0:
                hold_seconds_by_key[key] = seconds
                continue
            selected_keys.append(key)
            if len(selected_keys) == limit:
                break
        for key in hold_seconds_by_key:
            del self._woken_keys[key]
            self._held_keys[key] = None
        if hold_seconds_by_key:
            self._schedule_release_of_held_keys(min(hold_seconds_by_key.values()))
        return selected_keys

    def _schedule_release_of_held_keys(self, seconds: float) -> None:
        release_at = self.clock.monotonic() + seconds
        if release_at < self._next_release_at:
            self._cancel_release_timer()
            self._next_release_at = release_at
            self._cancel_release_timer = self.clock.call_later(seconds, self._release_held_keys)

    def _release_held_keys(self) -> None:
        self._woken_keys = {**self._held_keys, **self._woken_keys}
        self._held_keys.clear()
        self._next_release_at = math.inf
        self._keys_changed_event.set()

    async def _claim_and_start(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._woken_keys[key]
        self._urgent_keys.difference_update(keys)
        async with self._claim_lock:
            try:
                items_by_key = await self.claim(keys)
            except StoreError as error:  # the next poll finds the keys again
                _log.warning("claim_failed", queue=self.queue, reason=str(error))
                return
            for key, item in items_by_key.items():
                self.start(key, item)

    async def _poll(self) -> None:
        """Poll for ready keys, as wake-ups may be lost, and a process may die with claimed keys."""
        while True:
            try:
                keys = await self.find_ready_keys(_MAX_POLLED_KEYS)
            except StoreError as error:
                _log.warning("poll_failed", queue=self.queue, reason=str(error))
            else:
                self._add_woken_keys([key for key in keys if key not in self._tasks])
            has_signals = self.signals.is_cross_process
            await self.clock.sleep(_POLL_SECONDS if has_signals else _POLL_WITHOUT_SIGNALS_SECONDS)

    def _on_task_done(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        self._notify_claimer()
        if key in self._next_items:
            self.start(key, self._next_items.pop(key))
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("processing_failed", queue=self.queue, key=key, exc_info=error)

    async def _process_item(self, key: str, item: Item) -> None:
        try:
            await self.process(item)
        except StoreError as error:
            _log.warning("processing_postponed", queue=self.queue, key=key, reason=str(error))
