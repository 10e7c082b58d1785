"""Start the bot many times without importing it each time: a process that forks on request.

A request is one line of JSON on standard input; the responses are the child's process id and, when
it has ended, its exit code (negative: the signal that killed it). One child at a time.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from tests.checkout import CHECKOUT
from tests.e2e import crash_points as crash_points

_PR_SET_PDEATHSIG = 1


class LaunchedChild:
    """A forked bot, with the interface of asyncio's processes."""

    def __init__(self, pid: int, end: asyncio.Task[int]) -> None:
        self.pid = pid
        self._end = end

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has ended already
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ChildLauncher:
    """The client of the forking process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def launch(
        self, arguments: Sequence[str], *, folder: Path, settings: Mapping[str, str], log: Path
    ) -> LaunchedChild:
        """Fork a bot with these arguments of `crash_points`; the previous one must have ended."""
        request = {
            "arguments": [*arguments],
            "folder": str(folder),
            "settings": {**settings},
            "log": str(log),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return LaunchedChild(await self._number(), asyncio.create_task(self._number()))

    async def _number(self) -> int:
        assert self._process.stdout is not None
        return int(await self._process.stdout.readline())


@asynccontextmanager
async def running_launcher() -> AsyncIterator[ChildLauncher]:
    """Run the forking process within the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.e2e.child_launcher"),
        cwd=CHECKOUT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield ChildLauncher(process)
    finally:
        process.kill()  # its child dies with it
        await process.wait()


def _serve() -> None:
    _die_with_parent()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run_child(request)
        _respond(pid)
        _respond(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _run_child(request: dict[str, Any]) -> NoReturn:
    """Replace this process by the bot."""
    _die_with_parent()
    for name in [name for name in os.environ if name.startswith("TROUPE_")]:  # noqa: TID251
        del os.environ[name]  # noqa: TID251 # those of the tests: TROUPE_SEED
    os.environ.update(request["settings"])  # noqa: TID251 # a child's own
    os.chdir(request["folder"])
    with Path(request["log"]).open("ab") as log, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    crash_points.main(request["arguments"])
    sys.exit()


def _respond(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
