"""Run an HTTP server in a child process, on a Unix socket that only this user can access."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

from bot.runtime.http_client import ConnectionFailed, HttpClient
from bot.runtime.subprocesses import SupervisedProcess, create_socket_folder, supervised

_START_SECONDS = 120.0  # a large file from a slow disk
_SOCKET = "engine.sock"
_CONNECT_SECONDS = 5.0
_PROBE_SECONDS = 1.0

ENGINE_URL = "http://engine"
"""The address of a server behind its socket."""


UnixServer: TypeAlias = tuple[SupervisedProcess, HttpClient]


@asynccontextmanager
async def unix_server(
    name: str, module: str, options: Mapping[str, object], log_file: Path
) -> AsyncIterator[UnixServer]:
    """Run `python -m module` as a server during the block; raises `ChildFailed`.

    The module gets the options as JSON, plus `socket`; `threads` defaults to all cores but one. It
    is ready when `/health` responds.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(create_socket_folder(_SOCKET)))
        socket = folder / _SOCKET
        client = HttpClient(
            ENGINE_URL,
            {
                "Content-Type": "application/json",
                # llama.cpp's server closes the connection after a streamed answer, but announces
                # to keep it. A connection kept here would be closed under the next request.
                "Connection": "close",
            },
            connect_seconds=_CONNECT_SECONDS,
            unix_socket=socket,
        )
        stack.push_async_callback(client.close)
        threads = max(1, (os.cpu_count() or 1) - 1)  # one is left to the event loop
        given = {"threads": threads, **options, "socket": socket}
        child = await stack.enter_async_context(
            supervised(
                name,
                [sys.executable, "-m", module, json.dumps(given, default=str)],
                ready=lambda: _is_healthy(client),
                log_file=log_file,
                start_seconds=_START_SECONDS,
            )
        )
        try:
            yield child, client
        finally:
            await client.close()  # a request under way would hold up the end of the child


async def _is_healthy(client: HttpClient) -> bool:
    deadline = asyncio.get_running_loop().time() + _PROBE_SECONDS
    try:
        async with await client.request("GET", "/health", None, deadline) as response:
            return response.status == HTTPStatus.OK
    except (ConnectionFailed, TimeoutError):
        return False
