"""Transports to MCP servers, over HTTP and a process's pipes, bounded in size."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

import anyio
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from typing_extensions import override

from bot.runtime.subprocesses import DIE_WITH_PARENT
from bot.runtime.tasks import cancel_and_wait

LOGIN_REFUSED = "it refuses the token"
MAX_RESPONSE_BYTES = 1024 * 1024
"""The longest response; a connection for events is reopened after this much."""

NOT_REACHED = -32098
"""The error code for a request that did not reach the server."""
NOT_ANSWERED = -32097
"""The error code for a request that the server may have received, but did not answer."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""The longest message of a server; a longer one is dropped, so that its request times out."""

_END_SECONDS = 2.0
_Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]
"""Received messages, and a stream for those to be sent."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Reads no more of a response than `MAX_RESPONSE_BYTES`, and none that is compressed.

    What goes wrong with a request becomes an error response to it: an exception would end the
    connection, with the requests of all others.
    """

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        try:
            response = await super().handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return _refusal(NOT_REACHED, f"it cannot be reached ({str(error) or 'no answer'})")
        except httpx2.HTTPError as error:
            return _refusal(NOT_ANSWERED, f"no response ({str(error) or 'no answer'})")
        problem = None
        if response.has_redirect_location and not _is_same_server(response, request.url):
            # which one may be a secret
            problem = f"it redirects to another address ({response.status_code})"
        elif response.headers.get("content-encoding", "identity") != "identity":
            problem = "it sent a compressed response, which it was not asked for"
        elif response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            problem = f"{LOGIN_REFUSED} ({response.status_code})"
        if problem is not None:
            await response.aclose()
            return _refusal(mcp_types.INTERNAL_ERROR, problem)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 -- it is async
        response.stream = _BoundedStream(response.stream)
        return response


def _refusal(code: int, why: str) -> httpx2.Response:
    error = {"code": code, "message": why}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})


def _is_same_server(response: httpx2.Response, asked: httpx2.URL) -> bool:
    try:
        target = asked.join(response.headers["location"])
    except httpx2.InvalidURL:
        return False
    return (target.scheme, target.host, target.port) == (asked.scheme, asked.host, asked.port)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        with contextlib.suppress(httpx2.HTTPError):  # the request ends without a response
            async for chunk in self._stream:
                received += len(chunk)
                if received > MAX_RESPONSE_BYTES:
                    return
                yield chunk

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


@contextlib.asynccontextmanager
async def stdio_transport(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_file: Path,
    on_end: Callable[[], object],
) -> AsyncIterator[_Streams]:
    """Run the process while the block runs, and yield the streams of its messages.

    Args:
        command: the program and its arguments.
        environment: variables beside PATH, HOME and the like; nothing else is inherited.
        log_file: gets its stderr.
        on_end: is called when its output ends.

    Raises OSError where it cannot be started.
    """
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**get_default_environment(), **environment},
            limit=MAX_MESSAGE_BYTES,
            preexec_fn=DIE_WITH_PARENT,
            start_new_session=True,
        )
    received_to, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, sent_from = anyio.create_memory_object_stream[SessionMessage](0)
    jobs = [
        asyncio.create_task(_receive(process, received_to, on_end)),
        asyncio.create_task(_send(process, sent_from, received_to)),
    ]
    try:
        yield received, sent
    finally:
        try:
            await _end(process)
        finally:
            await cancel_and_wait(jobs)
            for stream in (received_to, received, sent, sent_from):
                stream.close()
            with contextlib.suppress(TimeoutError, ValueError):
                async with asyncio.timeout(_END_SECONDS):
                    await process.communicate()  # until its pipes are closed


async def _receive(
    process: asyncio.subprocess.Process,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], object],
) -> None:
    """Pass on each line; the stream ends with the output. What is too long is left out."""
    assert process.stdout is not None  # noqa: S101 -- it is a pipe
    try:
        with received, contextlib.suppress(OSError, anyio.BrokenResourceError):
            while True:
                try:
                    line = await process.stdout.readline()
                    message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError as error:  # too long, or no message, such as a line of a log
                    if process.stdout.at_eof():
                        return
                    await received.send(error)
                else:
                    await received.send(SessionMessage(message))
    finally:
        on_end()


async def _send(
    process: asyncio.subprocess.Process,
    sent: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Write each message; when the process reads no more, the connection ends."""
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    with received, contextlib.suppress(OSError):
        async for one in sent:
            written = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(written.encode() + b"\n")
            await process.stdin.drain()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, then end it with all its children: first asked, then killed."""
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    process.stdin.close()
    for ask in (None, signal.SIGTERM, signal.SIGKILL):
        if ask is not None:
            _signal_all(process, ask)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
                break
    _signal_all(process, signal.SIGKILL)  # what it has left behind


def _signal_all(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
