"""Keep every platform listening, until a signal says stop or there is nothing more to hear."""

import asyncio
import random
import signal
from collections.abc import Callable, Collection

import structlog

from bot.errors import PlatformError, PlatformFatal
from bot.ports import Clock, Intake, Platform
from bot.runtime.tasks import cancel_and_wait

_log = structlog.get_logger(__name__)
_LONGEST_PAUSE_SECONDS = 30.0
_LOOK_SECONDS = 0.5  # until a platform was connected once


class PlatformSupervisor:
    """Runs platforms side by side; one that fails is run again, unless no retry helps."""

    def __init__(
        self,
        platforms: Collection[Platform],
        intake: Intake,
        clock: Clock,
        announce: Callable[[str], None],
    ) -> None:
        """`announce` is told where the bot can be found, as soon as it can."""
        self._platforms = platforms
        self._announce = announce
        self._intake = intake
        self._clock = clock
        self._failed: dict[str, str] = {}
        self._keepers: set[asyncio.Task[None]] = set()

    def problem(self, platform: Platform) -> str | None:
        """Why nothing is heard from there just now; None while all is well."""
        return self._failed.get(platform.name) or platform.connection_error

    async def until_stopped(self) -> None:
        """Return on SIGINT or SIGTERM, and when every platform has come to its end.

        After a signal the platforms stay connected until `close`: some send their answers through
        the connection that they hear by.

        Raises:
            PlatformFatal: a platform refused us while we were starting, or none is left.
        """
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        stopped = asyncio.create_task(stop.wait())
        running = {asyncio.create_task(self._keep(one)) for one in self._platforms}
        self._keepers = set(running)
        try:
            while running and not stop.is_set():
                done, _ = await asyncio.wait(
                    {*running, stopped}, return_when=asyncio.FIRST_COMPLETED
                )
                running -= done
                for task in done - {stopped}:
                    await task  # raises what it ended with
        finally:
            await cancel_and_wait([stopped])

    async def close(self) -> None:
        """Hear nothing any more."""
        await cancel_and_wait(self._keepers)

    async def _keep(self, platform: Platform) -> None:
        pause = 1.0
        was_connected = False
        while True:
            run = asyncio.create_task(platform.run(self._intake), name=f"hear {platform.name}")
            try:
                while not run.done():
                    await asyncio.wait([run], timeout=_LOOK_SECONDS)
                    if not was_connected and platform.connection_error is None:
                        was_connected = True
                        await self._introduce(platform)
            finally:
                await cancel_and_wait([run])
            # A library may cancel its own tasks; that is a failure as any other.
            error = ConnectionError("it gave up") if run.cancelled() else run.exception()
            if error is None:
                return
            self._failed[platform.name] = str(error) or type(error).__name__
            if isinstance(error, PlatformFatal) and not (was_connected and self._others(platform)):
                raise error
            _log.error("platform_failed", platform=platform.name, exc_info=error)
            if isinstance(error, PlatformFatal):
                return  # the others go on; /readyz says what is wrong here
            await self._clock.sleep(pause + random.uniform(0, 1))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            self._failed.pop(platform.name, None)

    async def _introduce(self, platform: Platform) -> None:
        try:
            self._announce(f"on {platform.name} as {await platform.check()}")
        except PlatformError as error:
            _log.warning("name_unknown", platform=platform.name, reason=str(error))

    def _others(self, platform: Platform) -> bool:
        return any(one.name not in self._failed for one in self._platforms if one is not platform)
