"""Cancel and abandon tasks, and bound how many go on in one pass of the event loop."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_CANCEL_AGAIN_SECONDS = 3.0
_ending: set[asyncio.Future[Any]] = set()
"""What was abandoned and has not ended yet: the event loop alone would not keep it."""


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their exceptions stay in them.

    A task that goes on is cancelled again: up to Python 3.11 `asyncio.wait_for` loses a
    cancellation that arrives at the moment its result does.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)


async def finish_within(seconds: float, work: Awaitable[T]) -> T:
    """Return what some work returns, or abandon it.

    `asyncio.timeout` waits until what it has cancelled has ended, and a statement ends seconds
    after that where the server stands still.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
    finally:  # unless it is done; then what it raises is left out
        _ending.add(task)
        task.add_done_callback(_forget)
        task.cancel()
    raise TimeoutError


def _forget(task: asyncio.Future[Any]) -> None:
    _ending.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio reports that nobody has looked at it


_MAX_IN_A_PASS = 8


class WakeUps:
    """The wake-ups of one event loop."""

    def __init__(self) -> None:
        self._in_this_pass = 0
        self._waiting = deque[Callable[[], None]]()
        self._is_scheduled = False

    def wake(self, callback: Callable[[], None]) -> None:
        """Call back at once if few were called in this pass of the loop, else in a later one."""
        if self._in_this_pass < _MAX_IN_A_PASS and not self._waiting:
            self._in_this_pass += 1
            self._schedule()
            callback()
        else:
            self._waiting.append(callback)

    async def turn(self) -> None:
        """Go on at once if few were woken in this pass of the loop, else in a later one."""
        if self._in_this_pass < _MAX_IN_A_PASS and not self._waiting:
            self._in_this_pass += 1
            self._schedule()
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(partial(end_wait, admitted))
        await admitted

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._is_scheduled = False
        self._in_this_pass = 0
        while self._waiting and self._in_this_pass < _MAX_IN_A_PASS:
            self._in_this_pass += 1
            self._schedule()
            self._waiting.popleft()()


def end_wait(waiter: asyncio.Future[None]) -> None:
    """Let who awaits this go on, unless it is cancelled already."""
    if not waiter.done():
        waiter.set_result(None)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, WakeUps] = WeakKeyDictionary()


def wake_ups() -> WakeUps:
    """Return those of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = WakeUps()
    return found
