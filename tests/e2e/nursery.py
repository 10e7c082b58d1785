"""Start the bot a hundred times without paying for its imports: a process that forks on demand.

One order a line on standard input, as JSON; the answers are the process id of the child and, when
it has ended, its exit code (below zero: the signal that killed it). One child at a time.
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
from tests.e2e import crashing

_PR_SET_PDEATHSIG = 1


class Newborn:
    """A forked bot; it answers like a process of asyncio's."""

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
            with suppress(ProcessLookupError):  # it has ended, and we do not know yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The other end: where the tests order their bots."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def bear(
        self, arguments: Sequence[str], *, folder: Path, settings: Mapping[str, str], log: Path
    ) -> Newborn:
        """Fork a bot with these arguments of `crashing`; the last one must have ended."""
        order = {
            "arguments": [*arguments],
            "folder": str(folder),
            "settings": {**settings},
            "log": str(log),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return Newborn(await self._number(), asyncio.create_task(self._number()))

    async def _number(self) -> int:
        assert self._process.stdout is not None
        return int(await self._process.stdout.readline())


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """Keep a nursery for the length of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.e2e.nursery"),
        cwd=CHECKOUT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Nursery(process)
    finally:
        process.kill()  # a child dies with it
        await process.wait()


def _serve() -> None:
    _die_with_parent()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(order)
        _tell(pid)
        _tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _become(order: dict[str, Any]) -> NoReturn:
    """Be the bot from here on."""
    _die_with_parent()
    os.environ.update(order["settings"])  # noqa: TID251 # a child's own
    os.chdir(order["folder"])
    with Path(order["log"]).open("ab") as log, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    crashing.main(order["arguments"])
    sys.exit()


def _tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
