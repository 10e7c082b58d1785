"""Run an HTTP server in a child process, on a private unix socket and behind a key."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2

from bot.frozen_dataclass import frozen_dataclass
from bot.runtime.subprocesses import SupervisedProcess, create_socket_folder, supervised

_START_SECONDS = 120.0  # a large file from a slow disk
_SOCKET = "engine.sock"


@frozen_dataclass
class UnixServer:
    child: SupervisedProcess
    client: httpx2.AsyncClient
    """Has no timeouts: its callers set their own."""
    socket: Path
    key: str


@asynccontextmanager
async def unix_server(
    name: str, module: str, options: Mapping[str, object], log_file: Path
) -> AsyncIterator[UnixServer]:
    """Run `python -m module` as a server for the length of the block.

    The module gets the options as flags, and `--socket` and `--key-file`; `--threads` defaults to
    all cores but one. It is ready when `/health` answers.

    Raises:
        ChildFailed: it does not start.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(create_socket_folder(_SOCKET)))
        socket, key_file = folder / _SOCKET, folder / "key"
        key = secrets.token_urlsafe(32)
        key_file.write_text(key, encoding="ascii")
        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                transport=httpx2.AsyncHTTPTransport(uds=str(socket)),
                base_url="http://engine",
                headers={"Authorization": f"Bearer {key}"},
                timeout=None,
            )
        )
        given = {"threads": _default_threads(), **options, "socket": socket, "key-file": key_file}
        flags = [word for option, value in given.items() for word in (f"--{option}", str(value))]
        child = await stack.enter_async_context(
            supervised(
                name,
                [sys.executable, "-m", module, *flags],
                ready=lambda: _answers(client),
                log_file=log_file,
                start_seconds=_START_SECONDS,
            )
        )
        yield UnixServer(child, client, socket, key)


def _default_threads() -> int:
    return max(1, (os.cpu_count() or 1) - 1)  # one is left to the event loop


async def _answers(client: httpx2.AsyncClient) -> bool:
    try:
        async with asyncio.timeout(1):
            return (await client.get("/health")).is_success
    except (TimeoutError, httpx2.TransportError):
        return False
