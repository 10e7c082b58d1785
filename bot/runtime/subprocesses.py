"""Supervise child processes such as model engines: restart them, and stop them with the parent."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from bot.errors import TroupeError
from bot.runtime.operating_system import OWN_SESSION_OPTIONS

_log = structlog.get_logger(__name__)
_PR_SET_PDEATHSIG = 1
_MIN_RESTART_DELAY_SECONDS = 0.1
_MAX_RESTART_DELAY_SECONDS = 10.0
_TERMINATION_TIMEOUT_SECONDS = 5
_POLL_SECONDS = 0.02
_SECRET_NAME = re.compile(
    r"^TROUPE_|TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|APIKEY|DATABASE_URL|REDIS_URL|_DSN$",
    re.IGNORECASE,
)
_MAX_SOCKET_PATH_BYTES = 100  # the kernel accepts about 107


class ChildProcessFailed(TroupeError):
    """A child process did not start or is not ready; the text explains why."""


@dataclass(eq=False, repr=False)
class SupervisedProcess:
    """A child process that is restarted, with growing delays, whenever it exits."""

    name: str
    command: Sequence[str]
    check_ready: Callable[[], Awaitable[bool]]
    """Returns whether the child answers requests."""
    log_file: Path
    start_timeout_seconds: float

    def __post_init__(self) -> None:
        self.restart_count = 0
        self._process: asyncio.subprocess.Process | None = None
        self._ready_event = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_ready(self) -> bool:
        return self._ready_event.is_set()

    def kill(self) -> None:
        """Kill the process, so that it is restarted."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def wait_until_ready(self, seconds: float) -> None:
        """Wait until the process is ready; raises `ChildProcessFailed` on a timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready_event.wait()
        except TimeoutError:
            raise ChildProcessFailed(f"{self.name} is not ready; see {self.log_file}") from None

    async def start(self) -> None:
        """Start the process and wait until it is ready; raises `ChildProcessFailed`."""
        try:
            self._process = await self._spawn()
        except OSError as error:  # no such program, no disk space for the log, no free process
            raise ChildProcessFailed(f"{self.name} cannot be started: {error}") from None
        try:
            async with asyncio.timeout(self.start_timeout_seconds):
                while not await self.check_ready():
                    if self._process.returncode is not None:
                        raise ChildProcessFailed(
                            f"{self.name} exited on startup: {self._log_tail()}"
                        )
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            await self.stop()
            raise ChildProcessFailed(
                f"{self.name} did not answer within {self.start_timeout_seconds:.0f} s:"
                f" {self._log_tail()}"
            ) from None
        self._ready_event.set()

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self.log_file.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_without_secrets(),
                preexec_fn=DIE_WITH_PARENT,
                **OWN_SESSION_OPTIONS,
            )

    async def restart_on_exit(self) -> None:
        delay = _MIN_RESTART_DELAY_SECONDS
        while True:
            if self._process is not None:
                exit_code = await self._process.wait()
                self._ready_event.clear()
                _log.warning("child_process_exited", child=self.name, exit_code=exit_code)
            await asyncio.sleep(delay)
            self.restart_count += 1
            try:
                await self.start()
                delay = _MIN_RESTART_DELAY_SECONDS
            except ChildProcessFailed:
                delay = min(delay * 2, _MAX_RESTART_DELAY_SECONDS)
                _log.exception("child_process_not_started", child=self.name)

    async def stop(self) -> None:
        process, self._process = self._process, None
        self._ready_event.clear()
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_TERMINATION_TIMEOUT_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _log_tail(self) -> str:
        with self.log_file.open(errors="replace") as log:
            return " / ".join(line.strip() for line in deque(log, 5)) or "it printed nothing"


@contextlib.asynccontextmanager
async def run_supervised(
    name: str,
    command: Sequence[str],
    *,
    check_ready: Callable[[], Awaitable[bool]],
    log_file: Path,
    start_timeout_seconds: float = 30,
) -> AsyncIterator[SupervisedProcess]:
    """Run a child process during the block; raises `ChildProcessFailed` if it does not start."""
    child = SupervisedProcess(name, command, check_ready, log_file, start_timeout_seconds)
    try:
        await child.start()
        supervisor = asyncio.create_task(child.restart_on_exit(), name=f"supervise {name}")
        try:
            yield child
        finally:
            supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervisor
    finally:
        await child.stop()


def create_socket_folder(socket_name: str) -> "tempfile.TemporaryDirectory[str]":
    """Create a private temporary folder whose path is short enough for a Unix socket in it."""
    folder = tempfile.TemporaryDirectory(prefix="troupe-")
    if len(os.fsencode(folder.name)) > _MAX_SOCKET_PATH_BYTES - len(socket_name) - 1:
        folder.cleanup()
        return tempfile.TemporaryDirectory(prefix="troupe-", dir="/tmp")
    return folder


DIE_WITH_PARENT: Callable[[], object] | None = None
if sys.platform == "linux":  # other systems have no such signal
    # Look up prctl now, because loading libraries between fork and exec may deadlock.
    DIE_WITH_PARENT = partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
"""A `preexec_fn` that lets the kernel kill the child when this process dies; Linux only."""


def environment_without_secrets() -> dict[str, str]:
    """Return this process's environment variables, except Troupe's settings and secrets."""
    environment = os.environ  # noqa: TID251 -- no setting is read
    return {name: value for name, value in environment.items() if not _SECRET_NAME.search(name)}
