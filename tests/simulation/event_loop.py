"""An event loop with virtual time, in which simulated processes run, pause and die.

A step is one callback. The seed decides which process takes the next step; the callbacks of one
process run in asyncio's order. Time passes only when no process can take a step.
"""

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from typing_extensions import override

_PROCESS: contextvars.ContextVar["LoopProcess | None"] = contextvars.ContextVar(
    "process", default=None
)


class _NumberedFuture(asyncio.Future[Any]):
    """A future whose hash does not depend on its memory address."""

    def __init__(self, loop: "SimulatedLoop", number: int) -> None:
        self._number = number
        super().__init__(loop=loop)

    @override
    def __hash__(self) -> int:
        return self._number


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash does not depend on its memory address."""

    def __init__(
        self,
        work: Coroutine[Any, Any, Any],
        loop: "SimulatedLoop",
        number: int,
        context: contextvars.Context | None,
    ) -> None:
        self._number = number
        super().__init__(work, loop=loop, context=context)

    @override
    def __hash__(self) -> int:
        return self._number


class Deadlock(Exception):
    """No process can take a further step."""


class LoopProcess:
    """The callbacks and tasks of a process, paused and killed together."""

    def __init__(self, loop: "SimulatedLoop", name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_paused = False
        self.steps_left: int | None = None
        """The number of steps before `on_last_step` is called; None: never."""
        self.on_last_step: Callable[[], None] = self.kill
        self.ready: deque[asyncio.Handle] = deque()
        self._loop = loop
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as the first task of the process."""
        return self._loop.create_task(work, name=self.name, context=self.context)

    def kill(self) -> None:
        """Kill the process like SIGKILL: no further code runs, not even a `finally`."""
        self.is_dead = True
        self._loop.bury(self)

    def pause(self, seconds: float) -> None:
        """Pause the process like SIGSTOP; its clocks continue."""
        self.is_paused = True
        self._loop.outside(seconds, self._resume)

    def _resume(self) -> None:
        self.is_paused = False


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks in an order determined by the seed, without real time or I/O."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.steps = 0
        self._rng = rng
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count(1)
        self._outside = LoopProcess(self, "outside")
        self._processes = [self._outside]
        self._owners: dict[asyncio.Task[Any], LoopProcess] = {}
        self._buried: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)  # type: ignore[arg-type] # of 3.11: with a context
        self.set_exception_handler(_raise)

    @override
    def time(self) -> float:
        return self._now

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(self, next(self._numbers))

    def new_process(self, name: str) -> LoopProcess:
        """Return a new, idle process."""
        process = LoopProcess(self, name)
        self._processes.append(process)
        return process

    def outside(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call a function after a delay, even if the calling process dies."""
        self.call_at(self._now + seconds, callback, context=self._outside.context)

    def within(
        self, process: LoopProcess | None, seconds: float, callback: Callable[[], None]
    ) -> None:
        """Call a function in a process after a delay, unless the process is dead by then."""
        self.call_at(self._now + seconds, callback, context=(process or self._outside).context)

    def bury(self, process: LoopProcess) -> None:
        """Drop a process's callbacks; keep references to its tasks, so that no `finally` runs."""
        self._processes.remove(process)
        process.ready.clear()
        self._buried += [task for task, owner in self._owners.items() if owner is process]

    @override
    def call_at(  # type: ignore[override] # the types of *args are the caller's affair
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    @override
    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """Take one step; if no process can, advance the time first."""
        self._sort_ready()
        while not (able := [one for one in self._processes if one.ready and not one.is_paused]):
            if not self._timers:
                raise Deadlock
            self._now = max(self._now, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self._now:
                self._enqueue(heapq.heappop(self._timers)[2])
        process = able[0] if len(able) == 1 else self._rng.choice(able)
        handle = process.ready.popleft()
        if handle.cancelled():
            return
        self.steps += 1
        handle._run()  # as asyncio's own loop does
        if process.steps_left is not None:
            process.steps_left -= 1
            if process.steps_left <= 0:
                process.steps_left = None
                process.on_last_step()

    def _sort_ready(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        while ready:
            self._enqueue(ready.popleft())

    def _enqueue(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        process = handle._context.get(_PROCESS) or self._outside  # type: ignore[attr-defined]
        if not process.is_dead:
            process.ready.append(handle)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any],
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = _NumberedTask(work, self, next(self._numbers), context)
        owner = (context or contextvars.copy_context()).get(_PROCESS)
        if owner is not None:
            self._owners[task] = owner
            task.add_done_callback(self._owners.__delitem__)
        return task

    @override
    def run_in_executor(  # type: ignore[override] # the types of *args are the caller's affair
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function immediately, because the end of a real thread is not deterministic."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 # it is the caller's
            done.set_exception(error)
        return done

    def _write_to_self(self) -> None:
        """Raise, because no other thread may wake the loop."""
        raise RuntimeError("a real thread would make runs differ")


def current_process() -> LoopProcess | None:
    """Return the process that takes the current step, or None outside of all processes."""
    return _PROCESS.get()


def settle(done: asyncio.Future[Any], error: Exception | None = None, value: object = None) -> None:
    """Set the result or error of a future, unless it is done."""
    if done.done():
        return
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)


def _raise(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    raise error if error is not None else RuntimeError(str(context.get("message")))
