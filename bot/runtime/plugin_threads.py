"""Run each plug-in's code on its own event loop.

Each plug-in has a daemon thread, so a plug-in that blocks stops only itself: calls to it end at
their deadlines. The service waits up to 0.2 s for a function that is not a coroutine, and then uses
its last result, or the port's default.
"""

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast

import structlog

from bot.chat.outgoing import Limits
from bot.chat.prompt import Delta, GenerationEvent, PromptDescription
from bot.errors import BackendError, BackendInterrupted, SettingsError, TroupeError
from bot.ports import Intake
from bot.runtime.tasks import cancel_and_wait, wait_or_abandon
from bot.texts.text import StoredPattern, marked

_TIMEOUTS_BY_METHOD = {
    "close": 2.0,
    "embed_query": 4.0,
    "run": None,
    "run_shard": None,
    "stream": None,
}
"""The time limits of some methods, in seconds; None: a method runs until it is cancelled."""
_RESULT_TYPES: dict[str, Any] = {"count_tokens": int, "describe": PromptDescription, "send": str}
_RESULT_TYPES |= {
    "embed_documents": list | tuple,
    "embed_query": bytes,
    "generate": GenerationEvent,
}
_RESULT_TYPES |= {"tool": str, "limits": Limits, "connection_error": str | None}
_RESULT_TYPES |= dict.fromkeys(("model_health", "models_in_memory"), list | tuple)
"""The result types of some methods; the results of others are not checked."""
_START_TIMEOUT_SECONDS = 30.0
_READ_TIMEOUT_SECONDS = 0.2
_MAX_WAITING_EVENTS = 32
_FAILURE_TEXT = StoredPattern(marked("the plug-in {plugin} failed: {reason}"))
_log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(eq=False)
class PluginThread:
    """Calls an object of a plug-in in the plug-in's thread."""

    plugin: str
    timeout_seconds: float
    error_type: type[TroupeError]
    """The error to raise after a timeout, and instead of exceptions not in `allowed_errors`."""
    allowed_errors: tuple[type[Exception], ...] = ()
    _results: dict[str, Any] = field(default_factory=dict)
    """The last results of functions that are not coroutines, by name."""
    _read_future: concurrent.futures.Future[Any] | None = None

    def call_factory(
        self, factory: Callable[[], Any], error: type[TroupeError] = SettingsError
    ) -> Any:
        """Call a factory in the thread and wait for it; raises `error` if it fails."""

        async def run() -> Any:
            return factory()

        try:
            future = asyncio.run_coroutine_threadsafe(run(), _plugin_loop(self.plugin))
            return future.result(_START_TIMEOUT_SECONDS)
        except Exception as problem:  # third-party code, whose error texts may contain secrets
            reason = problem if isinstance(problem, SettingsError) else type(problem).__name__
            raise error(f"the plug-in {self.plugin!r} failed to start: {reason}") from problem

    def read(self, name: str, function: Callable[[], Any], default: Callable[[], Any]) -> Any:
        """Call a function in the thread and wait up to 0.2 s for its result.

        If the function is late or fails, return its last result, or else `default()`; raises
        `error_type` if that fails, too. While a late call is still running, no new call is made.
        """

        async def run() -> None:
            self._results[name] = _check_result(name, function())

        if self._read_future is None or self._read_future.done():
            self._read_future = asyncio.run_coroutine_threadsafe(run(), _plugin_loop(self.plugin))
            try:
                self._read_future.result(_READ_TIMEOUT_SECONDS)
            except Exception as error:  # noqa: BLE001 # third-party code
                self._log_failure(f"{type(error).__name__} in {name}")
        try:
            return self._results[name] if name in self._results else _check_result(name, default())
        except Exception as error:
            raise self._log_failure(f"no result from {name}") from error

    async def stream(
        self, open_stream: Callable[[], AsyncGenerator[Any, None]], idle_seconds: float
    ) -> AsyncGenerator[Any, None]:
        """Yield an answer's events; raise `error_type`, or `BackendInterrupted` after a `Delta`."""
        service_loop, events = asyncio.get_running_loop(), asyncio.Queue[Any](_MAX_WAITING_EVENTS)

        async def put_events() -> None:
            async with aclosing(open_stream()) as stream:
                async for event in stream:
                    await _run_on(service_loop, events.put(_check_result("generate", event)))

        async def fill_queue() -> None:
            try:
                await events.put(await self.call("stream", put_events))
            except BackendError as error:
                await events.put(error)

        fill_task = asyncio.create_task(fill_queue())
        has_text, timeout_seconds = False, self.timeout_seconds
        try:
            while True:
                try:
                    event = await wait_or_abandon(timeout_seconds, events.get())
                except TimeoutError:
                    event = self._log_failure(f"no response within {timeout_seconds:g} s")
                if isinstance(event, BackendError):
                    raise BackendInterrupted(str(event), event.notice) if has_text else event
                if event is None:
                    return
                yield event
                has_text, timeout_seconds = has_text or isinstance(event, Delta), idle_seconds
        finally:
            await cancel_and_wait([fill_task])

    async def call(self, name: str, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function in the thread; raises `error_type` or an allowed error."""
        is_abandoned = False

        async def run() -> Any:
            try:
                return None if is_abandoned else _check_result(name, await function())
            except BaseException as error:
                if is_abandoned or isinstance(error, self.allowed_errors):
                    raise
                raise self._log_failure(type(error).__name__) from error

        timeout_seconds = _TIMEOUTS_BY_METHOD.get(name, self.timeout_seconds)
        future: asyncio.Future[T] = _run_on(_plugin_loop(self.plugin), run())
        try:
            await asyncio.wait([future], timeout=timeout_seconds)
            if future.done():
                return future.result()
        finally:
            is_abandoned = True
            future.cancel()  # do not wait, because a blocked thread may never end it
        failure = self._log_failure(f"no response within {timeout_seconds:g} s")
        if name != "close":
            raise failure
        return cast(T, None)

    def _log_failure(self, reason: str) -> TroupeError:
        """Log a failure, and return it as an error."""
        text = _FAILURE_TEXT.with_values(plugin=repr(self.plugin), reason=reason)
        _log.warning("plugin_failed", reason=text)
        return self.error_type(text)


def _check_result(name: str, result: Any) -> Any:
    if not isinstance(result, _RESULT_TYPES.get(name, object)):
        raise TypeError
    return result


def wrap_for_plugin(value: object, **overrides: object) -> Any:
    """Wrap an object of the service, so that its coroutines run on the current event loop."""
    service_loop = asyncio.get_running_loop()
    call, read_value = lambda _, start: _run_on(service_loop, start()), lambda _, use: use(value)
    return _build_wrapper(value, type(value), call, read_value, **overrides)


def wrap_plugin(target: object, port: type, thread: PluginThread, **overrides: object) -> Any:
    """Return a wrapper that runs a target's code in the thread; `overrides` replace attributes."""
    port_with_defaults = type(port.__name__, (port,), {})()

    def read_from_target(name: str, read_value: Callable[[object], Any]) -> Any:
        return thread.read(name, lambda: read_value(target), lambda: read_value(port_with_defaults))

    return _build_wrapper(target, port, thread.call, read_from_target, **overrides)


def _build_wrapper(
    target: object, port: type, call: Any, read_member: Any, **overrides: object
) -> Any:
    def wrap_attribute(name: str) -> object:
        port_attribute = getattr(port, name, None)
        attribute = inspect.getattr_static(target, name, port_attribute)
        attribute = getattr(attribute, "__func__", attribute)  # of a static method

        def start_coroutine(*args: Any, **options: Any) -> Any:
            args = tuple(wrap_for_plugin(arg) if isinstance(arg, Intake) else arg for arg in args)
            return call(name, lambda: getattr(target, name)(*args, **options))

        if inspect.iscoroutinefunction(attribute) or inspect.iscoroutinefunction(port_attribute):
            return staticmethod(start_coroutine)
        if callable(attribute):
            return lambda _wrapper, *args: read_member(name, lambda obj: getattr(obj, name)(*args))
        return property(lambda _wrapper: read_member(name, lambda obj: getattr(obj, name)))

    names = (name for name in {*dir(target), *dir(port)} if not name.startswith("_"))
    return type(port.__name__, (), {name: wrap_attribute(name) for name in names} | overrides)()


def _run_on(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Future[Any]:
    """Run a coroutine on another thread's event loop."""
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


@cache
def _plugin_loop(plugin: str) -> asyncio.AbstractEventLoop:
    """Return the event loop of a plug-in's thread; the first call starts the thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"event loop of {plugin}", daemon=True).start()
    return loop
