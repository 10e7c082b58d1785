"""Bound how many tasks go on in one pass of the event loop.

A hundred answers that end together, a commit of two hundred units, thousands of messages at once:
each wakes a task, each task works for about a millisecond, and a pass of the loop runs all that
were woken before it. What waits for many things at once is woken here: a few in a pass, in order.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

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
