"""Cancel or abandon tasks, and limit how many resume in one event loop pass."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_CANCEL_AGAIN_SECONDS = 3.0
_ending: set[asyncio.Future[Any]] = set()
"""Abandoned tasks that have not ended: the event loop keeps only weak references."""


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they end; their exceptions are ignored.

    A task that keeps running is cancelled again, because until Python 3.11 `asyncio.wait_for` loses
    a cancellation that arrives together with its result.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)


async def finish_within(seconds: float, work: Awaitable[T]) -> T:
    """Return an awaitable's result, or abandon it and raise `TimeoutError`.

    `asyncio.timeout` would wait for the cancelled task: seconds for SQL on a hung server.
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
    """Lets a few waiting tasks resume per event loop pass, in order.

    When many answers end together, they wake as many tasks, each with a millisecond of work.
    """

    def __init__(self) -> None:
        self._in_this_pass = 0
        self._waiting = deque[Callable[[], None]]()
        self._is_scheduled = False

    def wake(self, callback: Callable[[], None]) -> None:
        """Call back now, or in a later pass if this pass already had several callbacks."""
        if self._in_this_pass < _MAX_IN_A_PASS and not self._waiting:
            self._in_this_pass += 1
            self._schedule()
            callback()
        else:
            self._waiting.append(callback)

    async def turn(self) -> None:
        """Return now, or in a later pass if several tasks resumed in this one."""
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
    if not waiter.done():
        waiter.set_result(None)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, WakeUps] = WeakKeyDictionary()


def wake_ups() -> WakeUps:
    """Return the running event loop's limiter."""
    loop = asyncio.get_running_loop()
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = WakeUps()
    return found
