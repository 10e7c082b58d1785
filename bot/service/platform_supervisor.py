"""Keep all platforms connected until a signal stops the service or all platforms end."""

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from bot.errors import PlatformError, PlatformFatal, StoreError
from bot.ports import Clock, Intake, Platform
from bot.runtime.operating_system import call_on_termination
from bot.runtime.tasks import cancel_and_wait
from bot.service.exclusive_role import ExclusiveReceiver, ShardReceiver

_log = structlog.get_logger(__name__)
_MIN_RESTART_PAUSE_SECONDS = 1.0
_MAX_RESTART_PAUSE_SECONDS = 30.0
_MIN_STABLE_SECONDS = 60.0  # after such a long run, the pause is short again
_POLL_SECONDS = 0.5  # until the platform is connected


Receiver: TypeAlias = Platform | ExclusiveReceiver | ShardReceiver
"""A platform, or a wrapper that coordinates which process receives its events."""


@dataclass(eq=False, repr=False)
class PlatformSupervisor:
    """Runs platforms concurrently and restarts them after failures except `PlatformFatal`."""

    platforms: Collection[Receiver]
    intake: Intake
    clock: Clock
    announce: Callable[[str], None]
    """Shows the operator that a platform is connected."""
    companion_names: Collection[str] = ()
    """Names of platforms that do not keep the service running after all others have ended."""
    _problems: dict[str, str] = field(default_factory=dict, init=False)
    _platform_tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def find_problem(self, platform: Receiver) -> str | None:
        """Return why a platform is not receiving, or None if it is."""
        return self._problems.get(platform.name) or platform.connection_error

    async def run_until_stopped(self) -> None:
        """Run the platforms until a signal arrives or all have ended; raises `PlatformFatal`.

        After a signal, platforms stay connected until `close`, because some need it to send.
        """
        stop_event = asyncio.Event()
        call_on_termination(asyncio.get_running_loop(), stop_event.set)
        stop_task = asyncio.create_task(stop_event.wait())
        tasks = {one.name: asyncio.create_task(self._keep_running(one)) for one in self.platforms}
        self._platform_tasks = set(tasks.values())
        required_tasks = {task for name, task in tasks.items() if name not in self.companion_names}
        required_tasks = required_tasks or set(self._platform_tasks)  # only companions are left
        try:
            while (required_tasks or not self.platforms) and not stop_event.is_set():
                done_tasks, _ = await asyncio.wait(
                    {*required_tasks, stop_task}, return_when=asyncio.FIRST_COMPLETED
                )
                required_tasks -= done_tasks
                for task in done_tasks - {stop_task}:
                    await task  # raises the error that ended it
        finally:
            await cancel_and_wait([stop_task])

    async def close(self) -> None:
        await cancel_and_wait(self._platform_tasks)

    async def _keep_running(self, platform: Receiver) -> None:
        pause_seconds = _MIN_RESTART_PAUSE_SECONDS
        was_connected = False
        while True:
            started_at = self.clock.monotonic()
            run_task = asyncio.create_task(platform.run(self.intake), name=f"run {platform.name}")
            try:
                while not run_task.done():
                    await asyncio.wait([run_task], timeout=_POLL_SECONDS)
                    if not was_connected and platform.connection_error is None:
                        was_connected = True
                        await self._announce_platform(platform)
            finally:
                await cancel_and_wait([run_task])
            # A library may cancel its own tasks, which is a failure like any other.
            error = (
                ConnectionError("the platform's library cancelled its own task")
                if run_task.cancelled()
                else run_task.exception()
            )
            if error is None:
                return
            self._problems[platform.name] = str(error) or type(error).__name__
            is_fatal = isinstance(error, PlatformFatal)
            if is_fatal and not (was_connected and self._has_other_working_platform(platform)):
                raise error
            if isinstance(error, PlatformError | StoreError):
                _log.error("platform_failed", platform=platform.name, reason=str(error))
            else:
                _log.error("platform_failed", platform=platform.name, exc_info=error)
            if is_fatal:
                return  # other platforms continue; /readyz shows the problem
            if self.clock.monotonic() - started_at >= _MIN_STABLE_SECONDS:
                pause_seconds = _MIN_RESTART_PAUSE_SECONDS  # this failure is not part of a series
            await self.clock.sleep(pause_seconds + random.uniform(0, 1))  # noqa: S311
            pause_seconds = min(pause_seconds * 2, _MAX_RESTART_PAUSE_SECONDS)
            self._problems.pop(platform.name, None)

    async def _announce_platform(self, platform: Receiver) -> None:
        try:
            self.announce(f"on {platform.name} as {await platform.check()}")
        except PlatformError as error:
            _log.warning("bot_account_not_read", platform=platform.name, reason=str(error))

    def _has_other_working_platform(self, platform: Receiver) -> bool:
        return any(one.name not in self._problems for one in self.platforms if one is not platform)
