"""A server of ours in a child process: a unix socket that only we can enter, and a key."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from bot.runtime.subprocesses import Child, private_folder, supervised

_START_SECONDS = 120.0  # a large file from a slow disk
_SOCKET = "engine.sock"


@dataclass(frozen=True, slots=True)
class PrivateServer:
    child: Child
    client: httpx2.AsyncClient  # without time-outs: its callers have their own
    socket: Path
    key: str


@asynccontextmanager
async def private_server(
    name: str, module: str, options: Mapping[str, object], log_file: Path
) -> AsyncIterator[PrivateServer]:
    """Keep a server up for the length of the block; raises `ChildFailed` when it does not start.

    `python -m module` is given the options by their names, and `socket` and `key-file` besides;
    `threads` are all cores but one unless the options say. Ready is when it answers at `/health`.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(private_folder(_SOCKET)))
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
        given = {"threads": _threads(), **options, "socket": socket, "key-file": key_file}
        words = [word for option, value in given.items() for word in (f"--{option}", str(value))]
        child = await stack.enter_async_context(
            supervised(
                name,
                [sys.executable, "-m", module, *words],
                ready=lambda: _answers(client),
                log_file=log_file,
                start_seconds=_START_SECONDS,
            )
        )
        yield PrivateServer(child, client, socket, key)


def _threads() -> int:
    return max(1, (os.cpu_count() or 1) - 1)  # one is left to the event loop


async def _answers(client: httpx2.AsyncClient) -> bool:
    try:
        async with asyncio.timeout(1):
            return (await client.get("/health")).is_success
    except (TimeoutError, httpx2.TransportError):
        return False
