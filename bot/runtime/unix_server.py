"""Run an HTTP server in a child process, behind a Unix socket that only this user can access.

On Windows, where Python has no Unix sockets, it listens on 127.0.0.1 and requires a random key.
"""

import asyncio
import json
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

from bot.runtime.http_client import ConnectionFailed, HttpClient
from bot.runtime.operating_system import HAS_UNIX_SOCKETS
from bot.runtime.subprocesses import SupervisedProcess, create_socket_folder, run_supervised

_START_TIMEOUT_SECONDS = 120.0  # for a large model file on a slow disk
_SOCKET_NAME = "engine.sock"
_CONNECT_SECONDS = 30.0  # a busy machine may pause everything for seconds
_PROBE_TIMEOUT_SECONDS = 1.0

ENGINE_URL = "http://engine"
"""The URL for requests to a server behind a Unix socket."""


UnixServer: TypeAlias = tuple[SupervisedProcess, HttpClient]


@asynccontextmanager
async def run_unix_server(
    name: str, module: str, options: Mapping[str, object], log_file: Path
) -> AsyncIterator[UnixServer]:
    """Run `python -m module` as a server during the block; raises `ChildProcessFailed`.

    The module's argument is `options` as JSON, plus `socket` (on Windows, `port` and `key`) and
    `threads`, by default all cores but one. The server is ready when `/health` returns 200.
    """
    async with AsyncExitStack() as stack:
        unix_socket, url, headers = None, ENGINE_URL, {}
        endpoint: dict[str, object]
        if HAS_UNIX_SOCKETS:
            folder = Path(stack.enter_context(create_socket_folder(_SOCKET_NAME)))
            unix_socket = folder / _SOCKET_NAME
            endpoint = {"socket": unix_socket}
        else:
            endpoint = {"port": _find_free_port(), "key": secrets.token_urlsafe()}
            url = f"http://127.0.0.1:{endpoint['port']}"
            headers["Authorization"] = f"Bearer {endpoint['key']}"
        client = HttpClient(
            url,
            {
                "Content-Type": "application/json",
                # llama.cpp's server closes the connection after a streamed answer, although it
                # announces keep-alive. A request on a kept connection would fail.
                "Connection": "close",
                **headers,
            },
            connect_seconds=_CONNECT_SECONDS,
            unix_socket=unix_socket,
            uses_proxy=False,
        )
        stack.push_async_callback(client.close)
        thread_count = max(1, (os.cpu_count() or 1) - 1)  # leave one core for the event loop
        server_options = {"threads": thread_count, **options, **endpoint}
        child = await stack.enter_async_context(
            run_supervised(
                name,
                [sys.executable, "-m", module, json.dumps(server_options, default=str)],
                check_ready=lambda: _is_healthy(client),
                log_file=log_file,
                start_timeout_seconds=_START_TIMEOUT_SECONDS,
            )
        )
        try:
            yield child, client
        finally:
            await client.close()  # an open request would delay the child's exit


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def _is_healthy(client: HttpClient) -> bool:
    deadline = asyncio.get_running_loop().time() + _PROBE_TIMEOUT_SECONDS
    try:
        async with await client.request("GET", "/health", None, deadline) as response:
            return response.status == HTTPStatus.OK
    except (ConnectionFailed, TimeoutError):
        return False
