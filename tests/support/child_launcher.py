"""Start the bot often without importing it each time: a launcher process forks on request.

A request is one line of JSON on standard input. The responses are `started PID`, in the order of
the requests, and `ended PID CODE` (negative: the signal that killed it).
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
from tests.support import crash_points as crash_points

_PR_SET_PDEATHSIG = 1


class LaunchedChild:
    """A forked bot, with the interface of asyncio's processes."""

    def __init__(self, pid: int, exit_code: asyncio.Future[int]) -> None:
        self.pid = pid
        self._exit_code = exit_code

    @property
    def returncode(self) -> int | None:
        return self._exit_code.result() if self._exit_code.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._exit_code)

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
        self._started: asyncio.Queue[LaunchedChild] = asyncio.Queue()
        self._launching = asyncio.Lock()

    async def launch(
        self, arguments: Sequence[str], *, folder: Path, settings: Mapping[str, str], log: Path
    ) -> LaunchedChild:
        request = {
            "arguments": [*arguments],
            "folder": str(folder),
            "settings": {**settings},
            "log": str(log),
        }
        assert self._process.stdin is not None
        async with self._launching:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            return await self._started.get()

    async def follow_children(self) -> None:
        assert self._process.stdout is not None
        exit_codes: dict[str, asyncio.Future[int]] = {}
        async for line in self._process.stdout:
            match line.decode().split():
                case ["started", pid]:
                    exit_codes[pid] = asyncio.get_running_loop().create_future()
                    self._started.put_nowait(LaunchedChild(int(pid), exit_codes[pid]))
                case ["ended", pid, code]:
                    exit_codes.pop(pid).set_result(int(code))
                case other:
                    raise AssertionError(f"the launcher says {other}")


@asynccontextmanager
async def running_launcher() -> AsyncIterator[ChildLauncher]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.child_launcher"),
        cwd=CHECKOUT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    launcher = ChildLauncher(process)
    following = asyncio.create_task(launcher.follow_children())
    try:
        yield launcher
    finally:
        following.cancel()
        process.kill()  # its children die with it
        await process.wait()


def _serve() -> None:
    _die_with_parent()
    _preload()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _report_ended)
    for line in sys.stdin:
        request = json.loads(line)
        # The end of a child is reported behind its start.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            _run_child(request)
        os.write(1, f"started {pid}\n".encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _preload() -> None:
    """Import what `troupe run` needs, which takes two thirds of the CPU time of a start."""
    import bot.cli.run  # noqa: PLC0415 # not in the tests' own process
    import bot.platforms.discord.platform  # noqa: PLC0415
    import bot.platforms.telegram.platform  # noqa: PLC0415
    import bot.service.console  # noqa: F401, PLC0415

    # isort: split
    from aiogram.types import Update  # noqa: PLC0415 # else aiogram would build all its models

    Update.model_rebuild()


def _report_ended(*_: object) -> None:
    with suppress(ChildProcessError):  # there is none left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            os.write(1, f"ended {ended[0]} {os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _run_child(request: dict[str, Any]) -> NoReturn:
    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
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


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
