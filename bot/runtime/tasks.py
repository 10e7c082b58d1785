"""Cancel, stop or abandon asyncio tasks; limit how many resume per pass of the event loop."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, TypeVar

try:
    import uvloop

    run_async = uvloop.run
except ImportError:  # the extra is not installed; there is none for Windows
    run_async = asyncio.run  # type: ignore[assignment]

T = TypeVar("T")
_SECONDS_BETWEEN_CANCELLATIONS = 3.0
_abandoned_tasks: set[asyncio.Future[Any]] = set()
"""Abandoned tasks that still run, kept here because the event loop has only weak references."""


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until all have ended; their exceptions are ignored.

    A task that keeps running is cancelled again, because up to Python 3.11 `asyncio.wait_for`
    swallows a cancellation that arrives together with its result.
    """
    running_tasks = set(tasks)
    while running_tasks:
        for task in running_tasks:
            task.cancel()
        _, running_tasks = await asyncio.wait(running_tasks, timeout=_SECONDS_BETWEEN_CANCELLATIONS)


async def wait_or_abandon(seconds: float, work: Awaitable[T]) -> T:
    """Return an awaitable's result, or abandon the awaitable and raise `TimeoutError`.

    Unlike `asyncio.timeout`, this does not wait for the end of the cancelled task, which may take
    seconds, as for a query on a hung server.
    """
    task = asyncio.ensure_future(work)
    try:
        done_tasks, _ = await asyncio.wait({task}, timeout=seconds)
        if done_tasks:
            return task.result()
    finally:  # has no effect on a task that is done
        _abandoned_tasks.add(task)
        task.add_done_callback(_discard_abandoned_task)
        task.cancel()
    raise TimeoutError


def _discard_abandoned_task(task: asyncio.Future[Any]) -> None:
    _abandoned_tasks.discard(task)
    if not task.cancelled():
        task.exception()  # so that asyncio does not log "exception was never retrieved"


_MIN_CHARS_TO_RESUME = 30


class StopFlag:
    """Stops the generation of an answer."""

    def __init__(self) -> None:
        self.is_requested = False
        self.is_superseded = False
        """Whether a new answer replaces the stopped one."""
        self.is_question_deleted = False
        """Whether the question was deleted, so that the answer is discarded."""
        self._last_seen_part: int | None = None
        self._current_part = self._part_char_count = 0
        self._task: asyncio.Task[object] | None = None
        self._is_cancelled = False
        self._ignores_superseding = False

    def request(self) -> None:
        """Stop the answer: end the running block now, and prevent further blocks."""
        if self._last_seen_part is None or self.is_question_deleted:
            self.is_superseded = False
            self._stop_generation()

    def stop_for_deleted_question(self) -> None:
        """Stop the answer because its question was deleted."""
        self.is_question_deleted = True
        self.request()

    def supersede(self) -> None:
        """Stop the answer in favor of a new one, unless a stop was requested."""
        if not self.is_requested and self._last_seen_part is None and not self._ignores_superseding:
            self.is_superseded = True
            self._stop_generation()

    def forbid_superseding(self) -> None:
        """Ignore later calls of `supersede`, because newer messages get their own answers."""
        self._ignores_superseding = True

    def reset(self) -> None:
        """Reset the flag before generating the answer that replaces a superseded one."""
        self.is_requested = self.is_superseded = self._is_cancelled = False

    def resume_until_filled(self, last_seen_part: int) -> None:
        """Resume a stopped answer just long enough to fill the messages readers already saw.

        An earlier process sent these messages, up to `last_seen_part`. If the answer stayed
        empty, they would be deleted.
        """
        self.reset()
        self._last_seen_part = last_seen_part

    def start_part(self, part_number: int) -> None:
        """Record that the text passed to `count_answer_chars` from now on belongs to this part."""
        self._current_part, self._part_char_count = part_number, 0

    def count_answer_chars(self, text: str) -> None:
        """Count new characters; after `resume_until_filled`, stop the answer once it has enough."""
        self._part_char_count += len(text)
        if self._last_seen_part is None or self._current_part < self._last_seen_part:
            return
        if self._part_char_count >= _MIN_CHARS_TO_RESUME:
            self._last_seen_part = None
            self._stop_generation()

    def _stop_generation(self) -> None:
        self.is_requested = True
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    @contextlib.contextmanager
    def stoppable_block(self) -> Iterator[None]:
        """Run a block; a stop request ends it silently, and other cancellations are re-raised."""
        self._task = task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- answers are generated by tasks
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_cancelled or task.uncancel() > 0:
                raise
        finally:
            self._task = None


_MAX_RESUMED_PER_PASS = 8


class ResumeLimiter:
    """Limits how many waiting tasks resume in one pass of the event loop; the others wait in order.

    When many answers end at the same time, they wake many tasks that each run for a millisecond.
    """

    def __init__(self) -> None:
        self._resumed_count = 0
        self._waiting_callbacks = deque[Callable[[], None]]()

    def call_in_this_or_later_pass(self, callback: Callable[[], None]) -> None:
        """Call a function now, or in a later pass if the limit of this pass is reached."""
        if self._resumed_count < _MAX_RESUMED_PER_PASS:
            self._count_resumed_task()
            callback()
        else:
            self._waiting_callbacks.append(callback)

    async def wait_to_resume(self) -> None:
        """Wait for a later pass if the limit of this pass is reached; else return immediately."""
        if self._resumed_count < _MAX_RESUMED_PER_PASS:
            self._count_resumed_task()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_callbacks.append(partial(resolve_waiter, waiter))
        await waiter

    def _count_resumed_task(self) -> None:
        """Count a resumed task; the count restarts only in the pass after the limit is reached."""
        self._resumed_count += 1
        if self._resumed_count == _MAX_RESUMED_PER_PASS:
            asyncio.get_running_loop().call_soon(self._start_pass)

    def _start_pass(self) -> None:
        self._resumed_count = 0
        while self._waiting_callbacks and self._resumed_count < _MAX_RESUMED_PER_PASS:
            self._count_resumed_task()
            self._waiting_callbacks.popleft()()


def resolve_waiter(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@lru_cache(maxsize=1)
def _limiter_for_loop(_: asyncio.AbstractEventLoop) -> ResumeLimiter:
    return ResumeLimiter()


def get_resume_limiter() -> ResumeLimiter:
    """Return the `ResumeLimiter` of the running event loop."""
    return _limiter_for_loop(asyncio.get_running_loop())
