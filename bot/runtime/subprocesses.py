"""Helper processes that serve us and must not outlive us: the model's engine, the Valkey."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from bot.errors import TroupeError

_log = structlog.get_logger(__name__)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be
_LONGEST_PAUSE_SECONDS = 10.0
LONGEST_SOCKET_PATH = 100  # bytes; the kernel takes about 107


class ChildFailed(TroupeError):
    """A helper process did not come up; the text holds the end of what it printed."""


class Child:
    """One supervised helper process: started again, with growing pauses, whenever it dies."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        ready: Callable[[], Awaitable[bool]],
        *,
        log_file: Path,
        start_seconds: float,
    ) -> None:
        self.name = name
        self.restarts = 0
        self._command = command
        self._ready = ready
        self._log_file = log_file
        self._start_seconds = start_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._serving = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def serving(self) -> bool:
        return self._serving.is_set()

    async def wait_serving(self, seconds: float) -> None:
        """Wait until it answers; raises `ChildFailed` when it does not in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._serving.wait()
        except TimeoutError:
            raise ChildFailed(f"{self.name} is not up; see {self._log_file}") from None

    async def start(self) -> None:
        """Start it and wait until it answers; raises `ChildFailed`."""
        try:
            self._process = await self._spawn()
        except OSError as error:  # no program, no room for a log, no room for a process
            raise ChildFailed(f"{self.name} cannot be started: {error}") from None
        try:
            async with asyncio.timeout(self._start_seconds):
                while not await self._ready():
                    if self._process.returncode is not None:
                        raise ChildFailed(f"{self.name} ended at once: {self._last_words()}")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            await self.stop()
            raise ChildFailed(
                f"{self.name} did not answer within {self._start_seconds:.0f} s: "
                f"{self._last_words()}"
            ) from None
        self._serving.set()

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._log_file.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                start_new_session=True,  # a Ctrl-C in the terminal is for us; we stop it in order
            )

    async def keep(self) -> None:
        """Start it again whenever it dies; runs until cancelled."""
        pause = 0.1
        while True:
            if self._process is not None:
                code = await self._process.wait()
                self._serving.clear()
                _log.warning("child_died", child=self.name, exit_code=code)
            await asyncio.sleep(pause)
            self.restarts += 1
            try:
                await self.start()
                pause = 0.1
            except ChildFailed:
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                _log.exception("child_not_started", child=self.name)

    async def stop(self) -> None:
        """Ask it to end, then insist."""
        process, self._process = self._process, None
        self._serving.clear()
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _last_words(self) -> str:
        with self._log_file.open(errors="replace") as log:
            return " / ".join(line.strip() for line in deque(log, 5)) or "it printed nothing"


@contextlib.asynccontextmanager
async def supervised(
    name: str,
    command: Sequence[str],
    *,
    ready: Callable[[], Awaitable[bool]],
    log_file: Path,
    start_seconds: float = 30,
) -> AsyncIterator[Child]:
    """Run a helper process for the length of the block; raises `ChildFailed` if it won't start."""
    child = Child(name, command, ready, log_file=log_file, start_seconds=start_seconds)
    try:
        await child.start()
        keeper = asyncio.create_task(child.keep(), name=f"keep {name}")
        try:
            yield child
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
    finally:
        await child.stop()


def private_folder(socket_name: str) -> "tempfile.TemporaryDirectory[str]":
    """A folder that only we can enter, with a path short enough for a socket in it."""
    folder = tempfile.TemporaryDirectory(prefix="troupe-")
    if len(os.fsencode(folder.name)) > LONGEST_SOCKET_PATH - len(socket_name) - 1:
        folder.cleanup()
        return tempfile.TemporaryDirectory(prefix="troupe-", dir="/tmp")
    return folder


def _die_with_parent() -> None:
    # Only Linux can promise that a child ends when its parent is killed with SIGKILL.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
